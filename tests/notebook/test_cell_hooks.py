"""What goes round every cell can neither break one nor stay behind in the shell."""

from __future__ import annotations

import contextlib
import gc
import sys
import time

import pytest
from IPython.core.interactiveshell import InteractiveShell

from gpumagic.notebook import cell_hooks, faults

ON = "%cuda_sync_time on\n%gpu_mem on"
OFF = "%cuda_sync_time off\n%gpu_mem off"
OURS = (cell_hooks.__file__, faults.__file__)


@pytest.fixture(autouse=True, scope="module")
def _nothing_of_other_tests_is_looked_through():
    """What is put round every cell looks at all objects: here, at those of the test."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def modules_as_before():
    """Put the package's modules back if a reload of it has made them anew.

    Tests after these hold classes and functions of the first ones.
    """
    modules = {name: each for name, each in sys.modules.items() if _is_ours(name)}
    contents = {name: dict(vars(each)) for name, each in modules.items()}
    yield
    if all(sys.modules.get(name) is each for name, each in modules.items()):
        return  # and those that were imported for the first time stay
    for name in [*filter(_is_ours, sys.modules)]:
        del sys.modules[name]
    sys.modules.update(modules)
    for name, module in modules.items():
        vars(module).update(contents[name])


def _is_ours(name):
    return name.partition(".")[0] == "gpumagic"


@pytest.fixture
def shell():
    """A shell with the extension loaded."""
    shell = InteractiveShell()
    shell.run_line_magic("load_ext", "gpumagic")
    yield shell
    shell.run_line_magic("unload_ext", "gpumagic")
    shell.history_manager.end_session()


def fingerprint(shell):
    """All of a shell and of Python that we may put something into."""
    return {
        "attributes": {
            name: shell.__dict__.get(name)
            for name in ("run_ast_nodes", "showtraceback", "CustomTB", "run_cell")
        },
        "events": {event: list(each) for event, each in shell.events.callbacks.items()},
        "display": (sys.displayhook, shell.display_trap.hook),
        "transforms": list(shell.input_transformers_cleanup),
        "tree transforms": list(shell.ast_transformers),
        "finders": list(sys.meta_path),
        "matchers": list(shell.Completer.custom_matchers),
    }


CELLS = {
    "a value": "6 * 7",
    "an error": "1 / 0",
    "a captured cell": "%%capture caught\nprint('x')\n1",
    "a captured error": "%%capture caught\n1 / 0",
    "a nested cell": "get_ipython().run_cell('5').result",
    "nested cells of ours": "get_ipython().run_cell('%%cuda_sync_time -q\\n5').result",
    "ours in a captured cell": "%%capture caught\n%%gpu_mem\n5",
    "a captured cell in ours": "%%cuda_sync_time -q\n%%capture caught\n5",
    "a syntax error": "if",
    "an await": "import asyncio\nawait asyncio.sleep(0, 3)",
    "an await in a captured cell": (
        "%%capture caught\nimport asyncio\nawait asyncio.sleep(0)"
    ),
    "an exit from a function": "import sys\nsys.exit(1)",
    "an interrupt": "raise KeyboardInterrupt",
    "nothing": "   ",
    "a comment": "# nothing",
    "a mode that goes off in mid-cell": "%cuda_sync_time off\n8",
    "a mode that comes on in mid-cell": (
        "%cuda_sync_time off\n%cuda_sync_time on\nget_ipython().run_cell('9').result"
    ),
    "an unload in mid-cell": "%unload_ext gpumagic\n10",
    "a reload in mid-cell": "%reload_ext gpumagic\n11",
}


@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
def test_the_shell_is_as_before_when_all_is_off(cell):
    """Whatever the cell was, nothing of ours is left, and the next cell runs."""
    shell = InteractiveShell()
    before = fingerprint(shell)
    shell.run_line_magic("load_ext", "gpumagic")
    loaded = fingerprint(shell)
    shell.run_cell(ON)

    shell.run_cell(cell)

    assert shell.run_cell("2 + 2").result == 4
    if "load_ext" not in cell:
        shell.run_cell(OFF)
        assert fingerprint(shell) == loaded
    shell.run_cell("%unload_ext gpumagic")
    assert fingerprint(shell) == before
    assert shell.run_cell("3 + 3").result == 6
    shell.history_manager.end_session()


@pytest.mark.parametrize("modes", ["None", ON], ids=["plain", "with all modes on"])
@pytest.mark.parametrize(
    "ours",
    ["%%gpu_doctor", "%%cuda_sync_time", "%%gpu_mem --lines", "%%pin_loader --watch"],
)
@pytest.mark.parametrize(
    "outer", ["%%capture caught", "%%time", "%%timeit -n 1 -r 1", "%%prun -q"]
)
def test_our_magics_run_under_the_magics_of_others(outer, ours, modes, shell):
    """The body runs, its names are there, and the next cell is as ever."""
    shell.run_cell(modes)

    done = shell.run_cell(f"{outer}\n{ours}\nhere = 6 * 7")

    assert done.success
    assert shell.user_ns["here"] == 42
    assert shell.run_cell("here + 1").result == 43


def test_what_others_have_put_over_ours_stays(shell, capsys):
    """A library that replaces the drawing of tracebacks in mid-cell keeps its own."""
    shell.run_cell(ON)
    shell.run_cell(
        "ip = get_ipython()\n"
        "below = ip.showtraceback\n"
        "def drawn(*args, **options):\n"
        "    print('drawn by another')\n"
        "    return below(*args, **options)\n"
        "ip.showtraceback = drawn"
    )
    shell.run_cell(OFF)

    shell.run_cell("1 / 0")

    assert shell.showtraceback is shell.user_ns["drawn"]
    printed = capsys.readouterr().out
    assert "drawn by another" in printed
    assert "division by zero" in printed


SLOW = "class Slow:\n    def __repr__(self): time.sleep(0.5); return 'slow'\n"


@pytest.mark.parametrize(
    ("cell", "failed"),
    [
        ("raise type('No', (Exception,), {'__bool__': lambda _: 1 / 0})", "No"),
        (f"import time\n{SLOW}Slow()", None),
    ],
)
def test_the_clock_stops_before_what_a_cell_ends_with_is_drawn(
    cell, failed, shell, monkeypatch
):
    """However long drawing a traceback or a value takes, the cell is over before."""
    seen = []
    monkeypatch.setattr(
        "gpumagic.cuda_sync_time.magic.display", lambda *what: seen.extend(what)
    )
    real = shell.showtraceback

    def slowly(*args, **options):
        time.sleep(0.5)
        real(*args, **options)

    shell.showtraceback = slowly
    shell.run_cell("%cuda_sync_time on")

    shell.run_cell(cell)

    [brief] = seen
    assert brief.timing.failed == failed
    assert brief.timing.run.elapsed_s < 0.5
    assert shell.showtraceback is slowly


FAULTS = {
    "the beginning of timing": "gpumagic.cuda_sync_time.one_run.OneRun.begin",
    "the end of timing": "gpumagic.cuda_sync_time.one_run.OneRun.end",
    "its report": "gpumagic.cuda_sync_time.one_run.OneRun.report",
    "showing it": "gpumagic.cuda_sync_time.magic.display",
    "the first look at memory": "gpumagic.gpu_mem.cell.OneCell.begin",
    "the last look at memory": "gpumagic.gpu_mem.cell.OneCell.end",
    "its line": "gpumagic.gpu_mem.cell.OneCell.report",
    "making a run": "gpumagic.gpu_mem.cell.OneCell.__init__",
    "before every cell": "gpumagic.notebook.cell_hooks._runs_within_another",
    "after every cell": "gpumagic.notebook.cell_hooks._Cell.tell",
    "who starts CUDA": "gpumagic.gpu_select.watch.Watcher._ask",
    "a module is imported": "gpumagic.gpu_select.watch.TorchLooks._wrap",
    "the errors of cells": "gpumagic.gpu_mem.magic.loaded_torch",
}
BODIES = {
    "a value": ("import this_module as m\nprint('out')\nm.answer", 42, None),
    "an error": (
        "import this_module as m\nprint('out')\n1 / 0",
        None,
        ZeroDivisionError,
    ),
}


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module that has not been imported yet."""
    (tmp_path / "this_module.py").write_text("answer = 42", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "this_module", raising=False)


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("place", FAULTS.values(), ids=FAULTS)
def test_a_fault_of_ours_leaves_the_cell_alone(place, body, shell, monkeypatch, capsys):
    """Value, output and error are the plain ones; it is told, and only once."""
    shell.run_cell(ON)
    capsys.readouterr()
    monkeypatch.setattr(place, _broken)
    cell, value, error = BODIES[body]

    done = shell.run_cell(cell)
    first = capsys.readouterr()
    again = [shell.run_cell("2 + 2").result for _ in range(3)]
    second = capsys.readouterr()

    assert done.result == value
    assert isinstance(done.error_in_exec, error or type(None))
    assert again == [4, 4, 4]
    printed = first.out.splitlines()
    assert "out" in printed
    assert "Error in callback" not in first.out + second.out
    told = (first.err + second.err).count("has failed and is off now")
    asks_torch = place == FAULTS["a module is imported"] and "torch" in sys.modules
    least = not asks_torch and (error or place != FAULTS["the errors of cells"])
    assert bool(least) <= told <= (2 if place.startswith("gpumagic.gpu_select") else 1)
    monkeypatch.undo()
    shell.run_cell(OFF)
    assert shell.run_cell("5").result == 5
    assert shell.run_cell(ON).success


def _broken(*_, **__):
    raise TypeError("a fault of ours")


class _Run:
    """A run that is had for nothing: what it would look at is not the point."""

    def begin(self):
        """Nothing needs to be looked at."""

    def end(self, *, error=None):
        """Neither here."""


@contextlib.contextmanager
def _modes_that_cost_nothing(shell, told):
    """A timer and another mode, on round every cell."""
    every_cell = cell_hooks.EveryCell(shell)
    modes = [
        cell_hooks.Mode("timer", _Run, lambda *what: told.append(what), is_timer=True),
        cell_hooks.Mode("other", _Run, lambda *_: None),
    ]
    for mode in modes:
        every_cell.switch_on(mode)
    yield
    for mode in modes:
        every_cell.switch_off(mode)


@contextlib.contextmanager
def _modes_of_the_magics(shell, told):
    """Those of %cuda_sync_time and %gpu_mem, in a notebook without torch.

    Where other tests have imported it there is much more to look at, and as slowly.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, "torch", raising=False)
        patch.setattr("gpumagic.cuda_sync_time.magic.display", told.append)
        shell.run_cell(ON)
        yield
        shell.run_cell(OFF)


@pytest.mark.parametrize(
    ("body", "modes"),
    [
        ("7", _modes_of_the_magics),
        ("7", _modes_that_cost_nothing),
        ("1 / 0", _modes_that_cost_nothing),
        ("%%capture caught\n7", _modes_that_cost_nothing),
        ("if", _modes_that_cost_nothing),
    ],
)
def test_ctrl_c_on_any_line_of_ours_leaves_the_shell_whole(body, modes, shell):
    """The cell ends or is interrupted, the next one runs and is told, all goes out."""
    told = []
    shell.run_line_magic("xmode", "Minimal")  # drawing tracebacks is not the point
    loaded = fingerprint(shell)
    with modes(shell, told):
        on = fingerprint(shell)
        assert _strikes(shell, body, told, on) > 10
    assert fingerprint(shell) == loaded


def _strikes(shell, body, told, on):
    """Strike every line once; how many there are."""
    line = 0
    while struck := _struck(shell, body, line):
        told.clear()
        assert shell.run_cell("2 + 2").result == 4, struck
        assert len(told) == 1, struck
        assert fingerprint(shell) == on, struck
        line += 1
    return line


def _struck(shell, body, line):
    """Run the cell with Ctrl-C on this line of ours; None if it has fewer."""
    with _Strike(line) as strike, contextlib.suppress(KeyboardInterrupt):
        done = shell.run_cell(body)
        assert done.result == (7 if body == "7" else None) or not done.success
    return strike.struck


class _Strike:
    """Ctrl-C on one of the lines of ours that are run meanwhile, by their order."""

    def __init__(self, number):
        self.left = number
        self.struck = None

    def __enter__(self):
        sys.settrace(self._call)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def _call(self, frame, *_):
        return self._line if frame.f_code.co_filename in OURS else None

    def _line(self, frame, event, _):
        if event == "line" and self.struck is None:
            self.left -= 1
            if self.left < 0:
                self.struck = f"{frame.f_code.co_name}, line {frame.f_lineno}"
                raise KeyboardInterrupt
        return self._line
