"""On a real GPU what the leaks have told comes back, and an error is explained."""

from __future__ import annotations

import pytest

from gpumagic.gpu_mem.records import Cause

MIB = 1 << 20
FAILING = """
def fails():
    held = torch.ones(64 << 18, device="cuda")
    raise ValueError("held")
fails()
"""


def ask(shell, line):
    """The report that a line hands out."""
    return shell.run_line_magic("gpu_mem", f"-o -q {line}")


def test_freeing_brings_back_what_the_leaks_have_told(torch, shell):
    """A shown result and the frames of an error, to the byte."""
    shell.run_cell("torch.ones(16 << 18, device='cuda')", store_history=True)
    shell.run_cell(FAILING, store_history=True)
    told = dict(ask(shell, "leaks").total_bytes)
    before = torch.cuda.memory_allocated()

    ask(shell, "free")

    assert before - torch.cuda.memory_allocated() == told[0] == 80 * MIB


def test_a_real_out_of_memory_error_is_explained(torch, shell):
    """More than the device has is said to be that; a fit is foreseen."""
    _, total = torch.cuda.mem_get_info()
    shell.user_ns["n"] = 2 * total
    shell.run_cell(
        "torch.empty(n, dtype=torch.uint8, device='cuda')", store_history=True
    )

    report = ask(shell, "why")
    fits = ask(shell, "fit 64MiB")

    assert report.oom.requested_bytes == pytest.approx(2 * total, rel=0.01)
    assert report.verdict.causes[0] is Cause.NEVER_FITS
    assert fits.answers[0].place in ("hole", "driver", "after releasing")
    torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
