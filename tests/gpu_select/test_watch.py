"""Who started CUDA is found, imports are as before, and the guard is honest."""

from __future__ import annotations

import pytest

from tests.gpu_select.watched import watched
from tests.notebook.shells import see_in_kernel, see_in_terminal

STARTS_CUDA = "import ctypes\nctypes.CDLL('libcuda.so.1').cuInit(0)\n"


def test_the_cell_that_started_cuda_is_named():
    """CUDA started by anything at all in cell 4 is known to have started there."""
    seen = watched("""
        run("import ctypes")
        watch()
        run("x = 1")
        run("y = 2")
        run(f"y = 3\\n{CUINIT}")
        run("z = 4")
        show(watcher.start(), len(told))
    """).json()

    assert (seen[0]["cell"], seen[0]["line"]) == (4, None)
    assert seen[1] == 1


def test_in_a_cell_of_one_line_the_line_is_known():
    """Where a cell has one line of code, that line has started CUDA."""
    (seen,) = watched("""
        watch()
        run("import ctypes")
        run(f"\\n# start\\n{CUINIT}\\n")
        show(watcher.start())
    """).json()

    assert (seen["cell"], seen["line"]) == (2, 2)
    assert "cuInit" in seen["source"]


def test_the_innermost_import_is_named():
    """An import that starts CUDA is named, also where another module imports it."""
    (seen,) = watched(
        """
        watch()
        run("x = 1")
        run("x = 2\\nimport outer\\ny = 3")
        show(watcher.start())
        """,
        {
            "outer.py": "import culprit\nimport late",
            "culprit.py": STARTS_CUDA,
            "late.py": "",
        },
    ).json()

    assert seen["by"] == "import culprit"
    assert (seen["cell"], seen["line"], seen["source"]) == (2, 2, "import outer")


def test_a_forked_child_claims_nothing():
    """A child that starts CUDA for itself calls nobody, and the parent goes on."""
    seen = watched("""
        watch()
        run("import ctypes, os")
        run("if (pid := os.fork()) == 0:\\n    " + CUINIT)
        if shell.user_ns["pid"] == 0:
            import os
            (folder / "child").write_text(str((watcher.start(), told)))
            os._exit(0)
        import os
        os.waitpid(shell.user_ns["pid"], 0)
        show(watcher.start(), told, (folder / "child").read_text())
    """).json()

    assert seen == [None, [], "(None, [])"]


def test_everything_is_gone_after_the_start_and_after_unloading():
    """Finders, events and torch are as before once CUDA runs, or at the undoing."""
    started, undone = (
        watched(
            f"""
            before = places()
            watch()
            run("import ctypes, torch")
            core = sys.modules["torch"]._C
            during = places(), core._cuda_init.__name__
            {how}
            after = places()
            show(before == after, before == during[0],
                 [hasattr(each, "__wrapped__") for each in vars(core).values()])
            """,
            torch=True,
        ).json()
        for how in ("run(CUINIT)", "undo.close()")
    )
    assert started == undone == [True, False, [False, False]]


WATCHING = """\
import sys
from contextlib import ExitStack
from gpumagic.gpu_select.watch import Watcher
started = []
watcher = Watcher(lambda: bool(started), on_start=lambda: print('told'))
watcher.install(get_ipython(), ExitStack())
"""
LOOKING = """\
def look():
    started.append(1)
    watcher.looked(sys._getframe(), before=False, in_vain=False)
"""


@pytest.mark.parametrize(
    "see", [see_in_terminal, pytest.param(see_in_kernel, marks=pytest.mark.kernel)]
)
def test_cells_and_lines_are_known_in_both_real_shells(see):
    """A terminal and a kernel number their cells, and the line in them, alike."""
    *_, look, seen = see(
        [
            WATCHING,
            LOOKING,
            "x = 1",
            "x = 2\n\nlook()",
            "start = watcher.start()\nstart.cell, start.line, start.source",
        ]
    )
    assert look.printed == "told\n"
    assert seen.result == "(4, 3, 'look()')"


IMPORTS = """
    import importlib, importlib.util, runpy, threading, traceback, warnings, zipimport

    class Shared:
        "A finder that is the loader of many modules, as pytest's is."
        def find_spec(self, name, path=None, target=None):
            if name.startswith("shared"):
                return importlib.util.spec_from_loader(name, self)
        def create_module(self, spec):
            return None
        def exec_module(self, module):
            module.made = module.__name__
            if module.__name__ == "shared_outer":
                import shared_inner

    shared = Shared()
    sys.meta_path.append(shared)

    def failure(name):
        try:
            exec(f'import {name}')
        except Exception as error:
            return traceback.format_exc()

    def everything():
        found = {}
        import plain, package.part, shared_outer
        found["plain"] = sorted(vars(plain.__loader__)), plain.__spec__.name
        found["shared"] = vars(shared), sys.modules["shared_inner"].made
        found["failing"] = failure("failing")
        found["missing"] = failure("missing")
        found["lacking"] = failure("lacking")
        found["no_syntax"] = failure("no_syntax")
        found["again"] = importlib.reload(plain) is plain
        spec = importlib.util.find_spec("unused")
        found["spec"] = spec.origin, "unused" in sys.modules
        spec = importlib.util.find_spec("lazy")
        spec.loader = importlib.util.LazyLoader(spec.loader)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found["lazy"] = module.value
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import warning
        found["warned"] = [each.filename for each in caught]
        found["run"] = runpy.run_module("plain")["value"]
        sys.path.append(str(folder / "archive.zip"))
        import zipped_outer
        found["zipped"] = zipped_outer.value, sorted(vars(zipped_outer.__loader__))
        names = [f"thread_{number}" for number in range(8)]
        threads = [threading.Thread(target=__import__, args=(n,)) for n in names]
        [each.start() for each in threads]
        [each.join() for each in threads]
        found["threads"] = [sys.modules[name].value for name in names]
        found["builtin"] = __import__("_bisect").__name__
        return {key: str(value) for key, value in found.items()}

    import zipfile
    with zipfile.ZipFile(folder / "archive.zip", "w") as archive:
        archive.writestr("zipped_outer.py", "from zipped_inner import value")
        archive.writestr("zipped_inner.py", "value = 5")
"""
MODULES = {
    "plain.py": "value = 1",
    "package/__init__.py": "",
    "package/part.py": "value = 2",
    "failing.py": "import plain\n1 / 0",
    "lacking.py": "import nowhere_at_all",
    "no_syntax.py": "def",
    "lazy.py": "value = 3",
    "unused.py": "",
    "warning.py": "import warnings\nwarnings.warn('careful', stacklevel=2)",
    **{f"thread_{number}.py": f"value = {number}" for number in range(8)},
}


def test_imports_work_as_they_did():
    """All kinds of imports give the same values, tracebacks and loaders as without."""
    with_and_without = [
        watched(f"{IMPORTS}\n    {first}\n    show(everything(), places())", MODULES)
        for first in ("watch()", "pass")
    ]
    (seen, _), (expected, _) = (each.json() for each in with_and_without)
    folders = [
        each["spec"].split("'")[1].removesuffix("/unused.py")
        for each in (seen, expected)
    ]
    for key, value in expected.items():
        assert seen[key].replace(folders[0], "") == value.replace(folders[1], ""), key


def test_an_import_is_not_blamed_for_what_came_before_it():
    """CUDA started by a line above an import is not put down to the import."""
    (seen,) = watched(
        """
        watch()
        run(f"import ctypes\\n{CUINIT}\\nimport innocent")
        show(watcher.start())
        """,
        {"innocent.py": "x = 1"},
    ).json()

    assert (seen["cell"], seen["by"]) == (1, None)
