"""Pinned memory, copies under way, and what is read too early."""

from __future__ import annotations

import pytest
import torch

import gpumagic
from gpumagic.simulator.backend.simulation import DataRace

BUSY = 1024  # a matmul of this size keeps a stream busy for a while


@pytest.fixture
def poisoned():
    """A machine on which a racing reader gets wrong values."""
    with gpumagic.simulate("h100", hazards="poison") as box:
        yield box


def keep_busy():
    """Give the current stream something to do."""
    x = torch.ones(BUSY, BUSY, device="sim")
    for _ in range(8):
        x = x @ x / BUSY


def test_memory_is_pinned_by_every_way(box):
    """pin_memory and every factory with `pin_memory=True` make pinned memory."""
    x = torch.ones(3, 4)
    pinned = x.pin_memory()

    assert not x.is_pinned()
    assert pinned.is_pinned()
    assert pinned.pin_memory() is pinned
    assert pinned[1:].is_pinned()
    assert not pinned.clone().is_pinned()
    assert pinned.tolist() == x.tolist()
    assert x.t().pin_memory().stride() == (1, 4)
    for made in (
        torch.empty(3, pin_memory=True),
        torch.tensor([1, 2], pin_memory=True),
        torch.empty(2, 2, 2, 2, pin_memory=True, memory_format=torch.channels_last),
        x.new_empty(3, pin_memory=True),
    ):
        assert made.is_pinned()
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        torch.ones(2, device="sim").pin_memory()


# ------------------------------------------------------------------- read too early


def test_a_side_stream_that_reads_too_early_gets_poison(poisoned):
    """Without a wait the side stream sees NaN, with one the numbers."""
    side = torch.sim.Stream()
    keep_busy()
    x = torch.ones(4, device="sim")
    with pytest.warns(DataRace, match="nothing makes it wait"), torch.sim.stream(side):
        early = x * 2
    side.wait_stream(torch.sim.default_stream())
    with torch.sim.stream(side):
        right = x * 2
    torch.sim.synchronize()

    assert early.isnan().all()
    assert right.tolist() == [2.0] * 4
    assert len(poisoned.races) == 1
