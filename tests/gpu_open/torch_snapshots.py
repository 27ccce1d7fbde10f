"""Snapshots that torch's own function dumps on the simulated GPU, read as files.

Run by test_in_process.py, in a process of its own.
"""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

import gpumagic
from gpumagic.gpu_open.memory_history import device_of
from gpumagic.gpu_open.snapshot_file import read

MIB = 1 << 20
STEPS = 6


@pytest.fixture
def box():
    """A small H100 that stands in for CUDA, for one test."""
    with gpumagic.simulate("h100", as_cuda=True, memory="1GiB") as machine:
        yield machine


class Training:
    """A small training that keeps something of each step."""

    def __init__(self):
        self.model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 8))
        self.model.cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.kept = []

    def step(self):
        """One step; the leak is in its last line but one."""
        data = torch.empty(256, 512, device="cuda")
        scratch = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
        loss = self.model(data).sum()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.kept.append(torch.empty(3 * MIB, dtype=torch.uint8, device="cuda"))
        del scratch


def line_of(text):
    """The line of the training that has this text, as reports tell it."""
    source, first = inspect.getsourcelines(Training.step)
    (number,) = (n for n, line in enumerate(source, first) if text in line)
    return f"torch_snapshots.py, line {number}"


def dumped(path):
    """What is read of the file that torch writes now."""
    torch.cuda.memory._dump_snapshot(str(path))
    return read(path)


@pytest.mark.usefixtures("box")
def test_a_training_is_read_from_its_file(tmp_path):
    """Peak, leak and what each step makes anew are found, and sums are torch's own."""
    training = Training()
    training.step()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.memory._record_memory_history()
    for _ in range(STEPS):
        training.step()

    snapshot = dumped(tmp_path / "training.pickle")
    found = device_of(snapshot, 0)

    assert snapshot.file.missing is None
    assert found.fits_together
    assert not found.complete  # the model was there before
    assert found.allocated_bytes == torch.cuda.memory_allocated()
    assert found.reserved_bytes == torch.cuda.memory_reserved()
    assert found.peak_reserved_bytes == torch.cuda.max_memory_reserved()
    spare = torch.cuda.max_memory_allocated() - found.peak_bytes
    assert 0 <= spare < MIB  # blocks that were handed out a little too large
    lines = {each.line.where: each for each in found.lines if each.line}
    leak, scratch = lines[line_of("kept.append")], lines[line_of("scratch =")]
    assert (leak.taken, leak.given_back) == (STEPS, 0)
    assert leak.now_bytes == STEPS * 3 * MIB
    assert (scratch.taken, scratch.given_back) == (STEPS, STEPS)
    assert scratch.at_peak_bytes == 8 * MIB
    assert (
        max(map(sum, zip(*found.course.levels_bytes, strict=True))) == found.peak_bytes
    )
