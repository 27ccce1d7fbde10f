"""Reading the allocator's counters: torch's keys in, a record out, unknown as None."""

# ruff: noqa: ARG001, ARG002, D102 -- stand-ins have the words of what they stand in for

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from gpumagic.gpu_mem.counters import (
    badges_between,
    read,
)
from gpumagic.gpu_mem.records import BadgeKind, CellBadge, Counters

FLAT = {
    "allocated_bytes.all.current": 1024,
    "allocated_bytes.all.peak": 4096,
    "allocated_bytes.all.allocated": 9216,
    "allocated_bytes.all.freed": 8192,
    "allocation.all.allocated": 7,
    "reserved_bytes.all.current": 1 << 21,
    "active_bytes.all.current": 1536,
    "num_alloc_retries": 1,
    "num_ooms": 2,
    "num_device_alloc": 4,
    "num_device_free": 5,
}
ALL = Counters(
    device=1,
    allocated_bytes=1024,
    reserved_bytes=1 << 21,
    active_bytes=1536,
    peak_bytes=4096,
    taken_bytes=9216,
    given_back_bytes=8192,
    taken=7,
    retries=1,
    ooms=2,
    driver_calls=9,
)
UNKNOWN = Counters(device=1)


class StandIn:
    """A runtime of CUDA's kind with given counters."""

    kind = "cuda"
    simulated = False

    def __init__(self, stats):
        self.stats = stats

    def memory_stats(self, device):
        return self.stats


@pytest.fixture
def torch(monkeypatch):
    """A stand-in for a torch that nobody has to install."""
    cuda = SimpleNamespace(get_allocator_backend=lambda: "native")
    torch = SimpleNamespace(cuda=cuda, _C=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.delenv("PYTORCH_NO_CUDA_MEMORY_CACHING", raising=False)
    monkeypatch.delenv("PYTORCH_NO_HIP_MEMORY_CACHING", raising=False)
    return torch


def zero():
    """Counters of an allocator that has never counted anything."""
    return dict.fromkeys(FLAT, 0)


@pytest.mark.parametrize("key", FLAT)
def test_a_missing_key_is_unknown(torch, key):
    """A counter that this torch does not have is None, and all others are there."""
    stats = {name: value for name, value in FLAT.items() if name != key}

    counters = read(StandIn(stats), 1)

    gone = [name for name in vars(ALL) if getattr(counters, name) is None]
    assert len(gone) == 1
    assert vars(ALL) == {**vars(counters), gone[0]: getattr(ALL, gone[0])}


def test_without_caching_nothing_is_known(torch, monkeypatch):
    """Counters that stay zero since caching is switched off are None, never 0."""
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "0")

    assert read(StandIn(zero()), 1) == UNKNOWN


def test_cudas_own_pools_tell_little(torch):
    """Of cudaMallocAsync's figures, those torch always reports as zero are None."""
    torch.cuda.get_allocator_backend = lambda: "cudaMallocAsync"
    stats = zero() | {
        "allocated_bytes.all.current": 0,
        "allocated_bytes.all.peak": 4096,
        "reserved_bytes.all.current": 1 << 25,
        "reserved_bytes.all.peak": 1 << 25,
    }

    counters = read(StandIn(stats), 1)

    assert counters.allocated_bytes == 0
    assert counters.peak_bytes == 4096
    assert counters.reserved_bytes == 1 << 25
    assert counters.taken_bytes is None
    assert counters.retries is None


# ------------------------------------------------------------------------ badges

QUIET = Counters(
    0,
    allocated_bytes=512,
    active_bytes=512,
    peak_bytes=1024,
    taken_bytes=2048,
    given_back_bytes=1536,
    taken=4,
    retries=1,
    ooms=1,
    driver_calls=3,
)


@pytest.mark.parametrize(
    ("change", "badge"),
    [
        ({"retries": 3}, CellBadge(BadgeKind.RETRY, 0, 2)),
        ({"ooms": 2}, CellBadge(BadgeKind.OOM_CAUGHT, 0, 1)),
        ({"driver_calls": 10}, CellBadge(BadgeKind.DRIVER_CALLS, 0, 7)),
        # what comes of another is left out
        ({"retries": 2, "driver_calls": 9}, CellBadge(BadgeKind.RETRY, 0, 1)),
        # counted anew since a reset
        ({"driver_calls": 1}, CellBadge(BadgeKind.DRIVER_CALLS, 0, 1)),
    ],
)
def test_each_badge(change, badge):
    """Each counter that moved gives its badge, with how much it moved."""
    assert badges_between(QUIET, replace(QUIET, **change)) == (badge,)
