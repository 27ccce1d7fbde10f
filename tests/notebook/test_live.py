"""Something long shows how far it is, in one place, and leaves it to the answer."""

from __future__ import annotations

import pytest

from tests.notebook.shells import PATIENCE_S, see_in_kernel, see_in_terminal

STEPS = """
from gpumagic.notebook.live import progress
import time
with progress(get_ipython(), 40, "Measuring", begins_after_s=0) as steps:
    for number in range(40):
        time.sleep(0.01)
        steps.advance()
"""
INTERRUPTED = """
with progress(get_ipython(), 40, "Measuring", begins_after_s=0) as steps:
    steps.advance(10)
    raise KeyboardInterrupt
"""


@pytest.mark.kernel
def test_a_notebook_keeps_what_was_stopped_and_nothing_of_what_was_done():
    """One output is shown and then updated; saved, it says how far it came."""
    import nbformat
    from nbclient import NotebookClient

    cells = [nbformat.v4.new_code_cell(STEPS), nbformat.v4.new_code_cell(INTERRUPTED)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(
        notebook,
        timeout=PATIENCE_S,
        startup_timeout=PATIENCE_S,
        iopub_timeout=PATIENCE_S,  # otherwise outputs that come late are left out
        allow_errors=True,
    ).execute()

    (finished,) = notebook.cells[0].outputs
    (stopped, error) = notebook.cells[1].outputs
    assert finished.data == {"text/plain": "", "text/html": ""}
    assert finished.metadata == stopped.metadata == {"gpumagic": "progress"}
    assert "stopped at 25.0 %" in stopped.data["text/plain"]
    assert error.ename == "KeyboardInterrupt"


@pytest.mark.kernel
def test_a_kernel_displays_once_and_updates_that():
    """Forty steps are one display, not forty."""
    (seen,) = see_in_kernel([STEPS])
    assert seen.status == "ok"
    assert len(seen.shown) == 1


def test_output_that_goes_to_a_file_gets_one_line_of_what_was_stopped():
    """No carriage returns or escapes in a file, and nothing of what was done."""
    finished, stopped = see_in_terminal([STEPS, INTERRUPTED])
    assert finished.printed == ""
    assert "stopped at 25.0 %" in stopped.traceback
    assert "\r" not in stopped.traceback
