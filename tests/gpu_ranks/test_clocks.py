"""Clocks that are compared over a store, and what is asked of it afterwards."""

from __future__ import annotations

import threading

import pytest

from gpumagic.gpu_ranks import clocks
from gpumagic.gpu_ranks.clocks import ByStore
from gpumagic.report.collectives import Offset

pytest.importorskip("torch", reason="torch is not installed")

AHEAD_NS = 7_000_000_000


class Gone:
    """A store whose group has ended: whatever is asked of it fails."""

    def __getattr__(self, name):
        raise RuntimeError(name)


def compared(store, own_of_rank, monkeypatch):
    """Those of all ranks, each in a thread of its own."""
    of_thread = threading.local()
    monkeypatch.setattr(clocks, "own_clock", lambda: own_of_rank[of_thread.rank])
    now_ns = clocks.now_ns

    def ahead_ns():
        return now_ns() + AHEAD_NS * (own_of_rank[of_thread.rank] != own_of_rank[0])

    monkeypatch.setattr(clocks, "now_ns", ahead_ns)
    ranks = range(len(own_of_rank))
    told, found = threading.Barrier(len(ranks)), {}

    def run(rank):
        of_thread.rank = rank
        its = ByStore(store, "a cell", rank)
        its.tell()
        told.wait(20)
        its.compare()
        found[rank] = its

    threads = [threading.Thread(target=run, args=(rank,)) for rank in ranks]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return [found[rank] for rank in ranks]


@pytest.fixture
def store():
    """Of this process alone."""
    from torch.distributed import HashStore

    return HashStore()


def test_on_one_host_nothing_is_asked_once_they_are_compared(store, monkeypatch):
    """A cell may have ended the group, and torch's C++ writes a page about that."""
    every = compared(store, ["here"] * 3, monkeypatch)
    for each in every:
        each._store = Gone()

    assert [each.offset(since_s=1.0) for each in every] == [Offset(0, 0)] * 3


def test_another_hosts_clock_is_put_right(store, monkeypatch):
    """All that have it ask for what one of them has found; rank 0's host needs not."""
    here, also_here, *there = compared(
        store, ["here", "here", "there", "there"], monkeypatch
    )
    also_here._store = Gone()

    assert here.offset(since_s=0.0) == also_here.offset(since_s=0.0) == Offset(0, 0)
    for each in there:
        offset = each.offset(since_s=1.0)
        assert abs(offset.ns + AHEAD_NS) <= offset.error_ns
