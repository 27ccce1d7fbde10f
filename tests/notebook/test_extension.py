"""Loading costs next to nothing, and unloading leaves nothing behind."""

from __future__ import annotations

import json
import sys

import pytest

from tests import quick_python
from tests.notebook.shells import environment, see_in_kernel, see_in_terminal

HEAVY = ("torch", "rich", "pynvml", "numpy", "ctypes", "gpumagic.drawing")

# What a shell can be told apart by, before and after.
STATE = """
import os, sys
def state(shell):
    formatters = shell.display_formatter.formatters
    mime = shell.display_formatter.mimebundle_formatter
    every = [mime, *formatters.values()]
    return {
        "magics": {k: sorted(v) for k, v in shell.magics_manager.magics.items()},
        "registry": sorted(shell.magics_manager.registry),
        "printers": [sorted(map(str, f.type_printers)) for f in every],
        "deferred": [sorted(map(str, f.deferred_printers)) for f in every],
        "matchers": list(map(repr, shell.Completer.custom_matchers)),
        "cleanup": list(map(repr, shell.input_transformers_cleanup)),
        "post": list(map(repr, shell.input_transformers_post)),
        "ast": list(map(repr, shell.ast_transformers)),
        "events": {k: len(v) for k, v in shell.events.callbacks.items()},
        "hooks": sorted(shell.strdispatchers),
        "configurables": [type(c).__name__ for c in shell.configurables],
        "names": sorted(shell.user_ns),
        "environment": dict(os.environ),
        "meta_path": [getattr(f, "__name__", type(f).__name__) for f in sys.meta_path],
        "shown": (repr(sys.displayhook), repr(sys.excepthook)),
    }
"""


def in_fresh_shell(code: str, run=quick_python.run) -> dict:
    """Run code with a fresh `shell` and the function `state` at hand."""
    prelude = (
        "import json\n"
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        # Newer versions of IPython register these magics at their first use.
        "shell.run_line_magic('unload_ext', 'nothing')\n"
    )
    program = ["-W", "error::UserWarning", "-c", prelude + STATE + code]
    done = run([sys.executable, *program], env=environment(), timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_loading_imports_nothing_heavy_and_prints_nothing():
    """`%load_ext` stays under 40 modules, imports no torch, and is silent."""
    seen = in_fresh_shell(
        f"""
import contextlib, io
before, environment = set(sys.modules), dict(os.environ)
said = io.StringIO()
with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
    shell.run_line_magic("load_ext", "gpumagic")
new = set(sys.modules) - before
print(json.dumps({{
    "new": len(new), "heavy": [m for m in {HEAVY!r} if m in new],
    "said": said.getvalue(),
    "set": sorted(set(os.environ.items()) ^ set(environment.items())),
}}))
""",
        run=quick_python.anew,  # a fork has modules of the process it is from
    )
    assert seen["heavy"] == []
    assert seen["new"] <= 40
    assert seen["said"] == ""
    # The guard of %gpu_select, without which a stray question starts CUDA.
    assert seen["set"] == [["PYTORCH_NVML_BASED_CUDA_CHECK", "1"]]


def test_unloading_leaves_the_shell_as_it_was():
    """After load, use and unload every registry of the shell is as before."""
    seen = in_fresh_shell(
        """
before = state(shell)
shell.run_line_magic("load_ext", "gpumagic")
loaded = state(shell)
shell.run_cell("%gpu_doctor -q")
shell.run_cell("%%gpu_doctor\\npass")
shell.run_cell("%gpu_doctor -o", store_history=True)
shell.run_line_magic("unload_ext", "gpumagic")
after = state(shell)
after["names"] = before["names"]  # Out and _ are what the cells have left
print(json.dumps({
    "differs": [key for key in before if before[key] != after[key]],
    "loading_showed": [key for key in before if before[key] != loaded[key]],
}))
"""
    )
    assert seen["differs"] == []
    # The check can see: loading did change these.
    assert {"magics", "registry", "configurables", "matchers", "cleanup"} <= set(
        seen["loading_showed"]
    )


def test_loading_again_is_the_same_as_loading_once():
    """Load, unload, load: one of each, and the magic works."""
    seen = in_fresh_shell(
        """
shell.run_line_magic("load_ext", "gpumagic")
once = state(shell)
shell.run_line_magic("unload_ext", "gpumagic")
shell.run_line_magic("load_ext", "gpumagic")
again = state(shell)
import gpumagic
gpumagic.load_ipython_extension(shell)  # as a second `%load_ext` by other means
thrice = state(shell)
same = lambda a, b: [k for k in a if k not in ("matchers", "cleanup") and a[k] != b[k]]
print(json.dumps({
    "again": same(once, again), "thrice": same(once, thrice),
    "matchers": [len(each["matchers"]) for each in (once, again, thrice)],
    "cleanup": [len(each["cleanup"]) for each in (once, again, thrice)],
    "works": shell.run_cell("%gpu_doctor -q").success,
}))
"""
    )
    assert seen["again"] == seen["thrice"] == []
    assert len(set(seen["matchers"])) == len(set(seen["cleanup"])) == 1
    assert seen["works"]


def test_reloading_really_reloads_the_submodules():
    """After `%reload_ext` the code that runs is that of the files now."""
    seen = in_fresh_shell(
        """
shell.run_line_magic("load_ext", "gpumagic")
import gpumagic.report.units, gpumagic.extension
gpumagic.report.units.mark = gpumagic.extension.mark = "old"
shell.run_line_magic("reload_ext", "gpumagic")
import gpumagic, gpumagic.report.units, gpumagic.extension
print(json.dumps({
    "units": hasattr(gpumagic.report.units, "mark"),
    "extension": hasattr(gpumagic.extension, "mark"),
    "works": shell.run_cell("%gpu_doctor -q").success,
}))
"""
    )
    assert seen == {"units": False, "extension": False, "works": True}


def test_a_magic_redefined_by_the_user_survives_the_unload():
    """Unloading removes our magics only, not the user's of the same name."""
    seen = in_fresh_shell(
        """
shell.run_line_magic("load_ext", "gpumagic")
shell.register_magic_function(lambda line: 7, "line", "gpu_doctor")
shell.run_line_magic("unload_ext", "gpumagic")
print(json.dumps(shell.run_cell("%gpu_doctor").result))
"""
    )
    assert seen == 7


def test_a_failure_while_loading_leaves_nothing_half_loaded():
    """If one room cannot be loaded, none is, and the shell is as before."""
    seen = in_fresh_shell(
        """
import gpumagic.extension as extension
before = state(shell)
extension.ROOMS = (*extension.ROOMS, extension.Room("no_such_room", "X"))
try:
    extension.load(shell)
    raised = None
except ModuleNotFoundError as error:
    raised = error.name
after = state(shell)
print(json.dumps([raised, [k for k in before if before[k] != after[k]]]))
"""
    )
    assert seen == ["gpumagic.no_such_room", []]


def test_settings_are_found_by_config():
    """`%config GpuMagic.html = False` leaves the text form alone."""
    cells = [
        "%load_ext gpumagic",
        "%config GpuMagic.html = False",
        "%gpu_doctor",
        "%config GpuMagic.width = 60",
        "%gpu_doctor",
        "%config GpuMagic.html = True",
        "%gpu_doctor",
        "%config GpuMagic.width = 3",
    ]
    seen = see_in_kernel(cells)
    assert [list(each.shown[0]) for each in (seen[2], seen[6])] == [
        ["text/plain"],
        ["text/plain", "text/html"],
    ]
    assert _widest(seen[2]) > 60 >= _widest(seen[4])
    assert seen[7].status == "error" or "width" in seen[7].printed


def _widest(seen) -> int:
    return max(map(len, seen.shown[0]["text/plain"].splitlines()))


@pytest.mark.kernel
@pytest.mark.parametrize("see", [see_in_terminal, see_in_kernel])
def test_the_report_is_shown_once_and_handed_out_on_request(see):
    """-o returns what was shown, -q does not show it, --json shows plain values."""
    seen = see(
        [
            "%load_ext gpumagic",
            "%gpu_doctor",
            "for _ in range(2):\n    %gpu_doctor",
            "r = %gpu_doctor -o",
            "type(r).__name__",
            "%gpu_doctor -o",
            "r",
            "q = %gpu_doctor -q -o",
            "q.headline == r.headline",
            "%gpu_doctor --json",
            "%%gpu_doctor\n5",
            "%%gpu_doctor -o\n5",
            "%%gpu_doctor\n1/0",
        ]
    )
    one, loop, r, kind, out, again, quiet, same, dumped, cell, cell_out, failed = seen[
        1:
    ]
    assert (len(one.shown), one.result) == (1, None)
    assert len(loop.shown) == 2
    assert (len(r.shown), r.result, kind.result) == (1, None, "'DoctorReport'")
    assert (len(out.shown), out.result) == (1, "<DoctorReport: shown above>")
    assert again.result.startswith(r.shown[0]["text/plain"].splitlines()[0])
    assert (quiet.shown, quiet.result, same.result) == ([], None, "True")
    assert set(json.loads(dumped.shown[0]["text/plain"])) >= {"headline", "findings"}
    assert (len(cell.shown), cell.result) == (1, "5")
    assert cell_out.result == "<DoctorReport: shown above>"
    assert (len(failed.shown), failed.status) == (1, "error")


@pytest.mark.parametrize("see", [see_in_terminal, see_in_kernel])
def test_reports_from_before_a_reload_are_still_drawn(see):
    """Old and new reports have classes of one name; each is shown in full."""
    cells = [
        "old = %gpu_doctor -q -o",
        "%reload_ext gpumagic",
        "new = %gpu_doctor -q -o",
    ]
    seen = see(["%load_ext gpumagic", *cells, "old", "new", "old", "new"])
    shown = [each.result for each in seen[-4:]]
    assert len(set(shown)) == 1
    assert "More, by --show" in shown[0]
    assert "-> " in shown[0]


def test_unexpected_errors_keep_their_traceback():
    """Only expected failures are shortened; a bug of ours shows where it is."""
    seen = see_in_terminal(
        [
            "%load_ext gpumagic",
            "import gpumagic.gpu_doctor.api as m; m.gather = None",
            "%gpu_doctor",
        ]
    )
    assert "api.py" in seen[2].traceback
    assert "TypeError" in seen[2].traceback
