"""Something long shows how far it is, in one place, and leaves it to the answer."""

from __future__ import annotations

import pytest

from tests.asleep import TORCH_ALONE
from tests.notebook.shells import PATIENCE_S
from tests.quick_kernels import quick_kernels

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
    ((finished,), (stopped, error)), _ = seen_outputs(STEPS, INTERRUPTED)

    assert finished.data == {"text/plain": "", "text/html": ""}
    assert finished.metadata == stopped.metadata == {"gpumagic": "progress"}
    assert "stopped at 25.0 %" in stopped.data["text/plain"]
    assert error.ename == "KeyboardInterrupt"


# ------------------------------------------------------------------ a cell that runs

LIVE = "%load_ext gpumagic\nimport os, signal, sys, threading, time"
LONG = """
%gpu_mem live
from torch.utils.data import DataLoader
for batch in DataLoader(range(30)):
    time.sleep(0.05)
"""
TIMED = """
%%cuda_sync_time --live
time.sleep(0.8)
"""
SIMULATED = """
import gpumagic
box = gpumagic.simulate("h100")
kept = torch.zeros(2**20, device="sim")
"""
THREADS = (
    "[each.name for each in threading.enumerate() if each.name == 'gpumagic-live']"
)
# Somebody presses Ctrl-C so many seconds after the cell has begun.
PRESSED = """
%gpu_mem live
threading.Timer({}, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
time.sleep(0.6)
time.sleep(0.6)
"""


def seen_outputs(*cells):
    """The outputs of these cells in a kernel of their own, and all updates of each."""
    import nbformat
    from nbclient import NotebookClient

    class Watching(NotebookClient):
        def process_message(self, message, cell, number):
            if message["msg_type"].endswith("display_data"):
                text = message["content"]["data"]["text/plain"]
                updates.setdefault(number, []).append(text)
            return super().process_message(message, cell, number)

    updates = {}
    notebook = nbformat.v4.new_notebook(
        cells=list(map(nbformat.v4.new_code_cell, cells))
    )
    client = Watching(
        notebook,
        timeout=PATIENCE_S,
        startup_timeout=PATIENCE_S,
        iopub_timeout=PATIENCE_S,
        allow_errors=True,
    )
    with quick_kernels(TORCH_ALONE):
        client.execute()
    return [cell.outputs for cell in notebook.cells], updates


@pytest.mark.kernel
def test_a_panel_shows_a_long_cell_and_ends_with_it():
    """One output counts the steps of the loop; kept where no answer takes its place."""
    pytest.importorskip("torch")
    outputs, updates = seen_outputs(
        LIVE, "import torch", LONG, TIMED, THREADS, SIMULATED, LONG
    )

    (kept,), (gone, report) = outputs[2:4]
    assert any("of 30," in text and "steps/s" in text for text in updates[2])
    assert kept.data["text/plain"].startswith("Live: ran for")
    assert "this process, in use" in kept.data["text/plain"]
    assert gone.data["text/plain"] == ""
    assert not report.data["text/plain"].startswith("Live")
    assert outputs[4][0].data["text/plain"] == "[]"
    (simulated,) = outputs[6][:1]
    assert "sim:0, tensors  4.00 MiB" in simulated.data["text/plain"]
    assert "[simulated" in simulated.data["text/plain"]


@pytest.mark.kernel
def test_ctrl_c_at_any_moment_leaves_no_thread_and_no_half_panel():
    """Whenever it is pressed, the panel says how it ended, or was never there."""
    moments = (0.0, 0.1, 0.24, 0.26, 0.5, 0.8)  # later, the kernel itself is met
    outputs, _ = seen_outputs(
        LIVE,
        *(PRESSED.format(moment) for moment in moments),
        "time.sleep(0.5)",
        THREADS,
    )

    shown = [
        output.data["text/plain"].split()[1]
        for cell in outputs[1:-2]
        for output in cell
        if output.output_type == "display_data"
    ]
    assert set(shown) <= {"stopped", "ran"}
    assert outputs[-1][0].data["text/plain"] == "[]"
