"""An answer about room that the user will act on, under a limit of their own.

Run by test_in_process.py, in a process of its own.
"""

from __future__ import annotations

import pytest
import torch

import gpumagic
from gpumagic import gpu_mem
from gpumagic.gpu_mem.records import Cause

MIB, GIB = 1 << 20, 1 << 30


def test_what_a_limit_leaves_is_less_by_what_is_taken_already():
    """A process that may have half of the device, and has a quarter, fits no other."""
    with gpumagic.simulate("h100", memory="2GiB"):
        # Given 512 of 1024 MiB
        kept = torch.empty(512 * MIB, dtype=torch.uint8, device="sim")
        torch.sim.set_per_process_memory_fraction(0.5)

        # When
        report = gpu_mem.fit("600MiB")

        # Then what is said is what happens
        (answer,) = report.answers
        assert answer.cap_left_bytes == GIB - kept.numel()
        assert answer.place == "nowhere"
        assert Cause.CAPPED in report.causes
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(600 * MIB, dtype=torch.uint8, device="sim")
