"""Who started CUDA is found, and nothing of the watch is left."""

from __future__ import annotations

import pytest

from tests.gpu_select.watched import watched
from tests.notebook.shells import see_in_kernel, see_in_terminal


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
from gpumagic.notebook.cells import keep_cell_numbers
keep_cell_numbers(get_ipython(), ExitStack())
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
            "start = watcher.start()\nstart.cell, start.line, start.by",
        ]
    )
    assert look.printed == "told\n"
    assert seen.result == "(4, 3, 'look()')"


def test_a_call_is_not_blamed_for_what_came_before_it():
    """CUDA started by a line above a look of torch's is not put down to the look."""
    (seen,) = watched(
        """
        watch()
        run("import torch, ctypes")
        run(f"{CUINIT}\\ntorch.cuda.is_available()")
        show(watcher.start())
        """,
        torch=True,
    ).json()

    assert (seen["cell"], seen["line"], seen["by"]) == (2, None, "")
