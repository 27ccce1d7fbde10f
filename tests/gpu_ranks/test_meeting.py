"""Ranks that meet in a store, and compare their clocks there."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_ranks import joining, meeting
from gpumagic.gpu_ranks.meeting import Meeting

dist = pytest.importorskip("torch.distributed", reason="torch is not installed")

AHEAD_NS = 7_000_000_000
NO_OFFSET = {"offset_ns": 0, "offset_error_ns": 0}


@pytest.fixture
def store():
    """Of torch; several ranks of this process share it."""
    return dist.HashStore()


def compared(store, own_of_rank, monkeypatch):
    """The meeting of all ranks, each in a thread of its own."""
    of_thread = threading.local()
    monkeypatch.setattr(meeting, "own_clock", lambda: own_of_rank[of_thread.rank])
    now_ns = meeting.now_ns

    def ahead_ns():
        return now_ns() + AHEAD_NS * (own_of_rank[of_thread.rank] != own_of_rank[0])

    monkeypatch.setattr(meeting, "now_ns", ahead_ns)
    found = {}

    def run(rank):
        of_thread.rank = rank
        found[rank] = Meeting(store, rank, len(own_of_rank))
        assert found[rank].begin(20.0)
        found[rank].compare()

    threads = [
        threading.Thread(target=run, args=(rank,)) for rank in range(len(own_of_rank))
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return [found[rank] for rank in range(len(own_of_rank))]


def test_another_hosts_clock_is_put_right(store, monkeypatch):
    """All that have it ask for what one of them has found; drift is in the error."""
    here, also_here, *there = compared(
        store, ["here", "here", "there", "there"], monkeypatch
    )

    assert here.offset() == also_here.offset() == NO_OFFSET
    for each in there:
        offset = each.offset(of_s=0.0)
        assert abs(offset["offset_ns"] + AHEAD_NS) <= offset["offset_error_ns"]
        later = each.offset(of_s=10.0)
        assert later["offset_error_ns"] == offset["offset_error_ns"] + 1_000_000


def test_who_does_not_come_is_not_waited_for_long(store):
    """A cell begins without them; a store that is gone is an error at once."""
    assert not Meeting(store, 0, 2).all_come("begun", 0.2)

    def gone(*_):
        raise RuntimeError("the store is gone")

    dead = SimpleNamespace(add=lambda *_: 1, wait=gone, check=gone, set=gone)
    with pytest.raises(RuntimeError, match="gone"):
        Meeting(dead, 0, 2).all_come("begun", 60.0)


@pytest.fixture
def group_that_never_ends(monkeypatch):
    """The function of torch does not come back, until the test is over."""
    over = threading.Event()
    job = SimpleNamespace(is_initialized=lambda: True, destroy_process_group=over.wait)
    monkeypatch.setattr(joining, "distributed_here", lambda: job)
    monkeypatch.setattr(joining, "_ENDS_S", 0.01)
    yield
    over.set()


@pytest.mark.usefixtures("group_that_never_ends")
def test_a_group_that_does_not_end_is_not_waited_for():
    """It is said that torch does not come back."""
    with pytest.raises(GpuMagicError, match="destroy_process_group"):
        joining.end_group()
