"""What a real terminal and a real kernel let go of, and that they go on working.

An object that can be referred to weakly stands in for a tensor: it is gone when its
finaliser has run.
"""

from __future__ import annotations

import pytest

from tests.notebook.shells import see_in_kernel, see_in_terminal

pytest.importorskip("ipykernel")
pytestmark = pytest.mark.kernel

START = """
import gc, sys, weakref
from gpumagic.devices.cpu import CpuRuntime
from gpumagic.gpu_mem import answer_leaks as freeing
from gpumagic.gpu_mem.answer_leaks import free
from gpumagic.gpu_mem.names import drop_errors, held_errors
from gpumagic.gpu_mem.names import frames_with_locals
from gpumagic.gpu_mem.names import drop_outputs, shown_results

gone = []

class Big:
    def __init__(self, name):
        weakref.finalize(self, gone.append, name)
    def __repr__(self):
        return "Big()"

def inner():
    local = Big("local")
    raise ValueError("inner")

def outer():
    mine = Big("mine")
    try:
        inner()
    except ValueError as error:
        raise RuntimeError("outer") from error

freeing.holding = lambda values, *_: {id(v) for v in values if type(v) is Big}

def let_go():
    gone.clear()
    report = free(get_ipython(), CpuRuntime())
    print(sorted(gone), *report.lost, sep="; ")
"""

LET_GO = "let_go()"
# Nothing may be left to the collector here: what goes, goes by being let go of.
AT_ONCE = """
gc.disable()
gone.clear()
drop_errors(get_ipython()), drop_outputs(get_ipython())
print(sorted(gone))
gc.enable()
"""
ERROR_GONE = "['local', 'mine']; %debug for that error\n"
MODES = ("Context", "Verbose", "Plain", "Minimal")


@pytest.fixture(scope="module", params=[see_in_terminal, see_in_kernel])
def see(request):
    """Runs cells in a fresh shell of one kind."""

    def run(*cells):
        return see_printed(request.param, cells)

    return run


def see_printed(see_in, cells):
    """What each cell after the first has printed, without what shows values."""
    first, *others = see_in([START, *cells])
    assert first.status == "ok", first.traceback
    return others


def printed(seen):
    """The last thing that a cell has printed."""
    return seen.printed.strip("\n") + "\n"


def test_an_error_goes_in_every_mode_of_tracebacks(see):
    """Locals of chained errors go in the cell that asks, and the loss is told."""
    cells = [cell for mode in MODES for cell in (f"%xmode {mode}", "outer()", LET_GO)]

    seen = see(*cells)

    assert [printed(each) for each in seen[2::3]] == [ERROR_GONE] * len(MODES)


def test_an_error_goes_after_it_was_debugged(see):
    """A debugger that was left keeps a frame and its locals: they go as well."""
    debug = """
sys.stdin = __import__("io").StringIO("p local\\nq\\n")
shell = get_ipython()
shell.InteractiveTB.pdb = __import__("IPython.core.debugger").core.debugger.Pdb(
    stdin=sys.stdin, stdout=__import__("io").StringIO()
)
shell.InteractiveTB.pdb.use_rawinput = False
shell.InteractiveTB.debugger(force=True)
del shell
"""

    seen = see("outer()", debug, "1", "2", LET_GO, "outer()", LET_GO)

    assert printed(seen[-3]).startswith("['local', 'mine']")
    assert printed(seen[-1]) == ERROR_GONE


def test_variables_and_what_was_typed_stay(see):
    """A variable keeps the object that was shown; `In` and `_i` are as before."""
    seen = see(
        "x = Big('x'); x",
        "_ = 'mine'",
        AT_ONCE,
        "print(_, x, In[2], Out, len(In) > 3)",
    )

    assert printed(seen[2]) == "[]\n"
    assert printed(seen[3]) == "mine Big() x = Big('x'); x {} True\n"
