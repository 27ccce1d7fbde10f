"""Something long shows how far it is, in one place, and leaves its last state."""

from __future__ import annotations

import pytest

from tests.notebook.shells import PATIENCE_S, see_in_kernel, see_in_terminal

STEPS = """
from gpumagic.notebook.live import progress
import time
with progress(get_ipython(), 40, "Measuring") as steps:
    for number in range(40):
        time.sleep(0.01)
        steps.advance()
"""
INTERRUPTED = """
with progress(get_ipython(), 40, "Measuring") as steps:
    steps.advance(10)
    raise KeyboardInterrupt
"""


@pytest.mark.kernel
def test_a_notebook_keeps_one_output_with_the_last_state():
    """One output is shown and then updated; saved, it says that it has finished."""
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

    finished = notebook.cells[0].outputs
    (stopped, error) = notebook.cells[1].outputs
    assert [each.output_type for each in finished] == ["display_data"]
    assert "Measuring: finished in" in finished[0].data["text/plain"]
    assert "40 of 40" in finished[0].data["text/html"]
    assert "stopped at 25.0 %" in stopped.data["text/plain"]
    assert error.ename == "KeyboardInterrupt"


@pytest.mark.kernel
def test_a_kernel_displays_once_and_updates_that():
    """Forty steps are one display, not forty."""
    (seen,) = see_in_kernel([STEPS])
    assert seen.status == "ok"
    assert len(seen.shown) == 1


def test_output_that_goes_to_a_file_gets_the_last_state_only():
    """No carriage returns or escapes where there is no terminal."""
    finished, stopped = see_in_terminal([STEPS, INTERRUPTED])
    assert finished.printed.startswith("Measuring: finished in")
    assert "40 of 40" in finished.printed
    assert "stopped at 25.0 %" in stopped.traceback
    assert "\r" not in finished.printed
