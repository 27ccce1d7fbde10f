"""The peak and the badges of a cell, from two looks at counters nobody resets."""

from __future__ import annotations

import pytest

from gpumagic.devices.memory_history import MemoryEvent
from gpumagic.gpu_mem.cell import peak_between, with_replay
from gpumagic.gpu_mem.records import Counters, Peak, PeakKind


def looks(*, before, after):
    """Two looks, each as (current, peak, sum of what was taken)."""
    return tuple(
        Counters(0, allocated_bytes=now, peak_bytes=peak, taken_bytes=taken)
        for now, peak, taken in (before, after)
    )


@pytest.mark.parametrize(
    ("before", "after", "peak"),
    [
        # a new record is the cell's own
        ((10, 50, 100), (20, 70, 200), Peak(PeakKind.EXACT, 70, 70)),
        # none: at most the old one
        ((10, 50, 100), (20, 50, 200), Peak(PeakKind.BOUND, 20, 50)),
        # nor more than all that was taken, had nothing been given back
        ((10, 50, 100), (5, 50, 115), Peak(PeakKind.BOUND, 10, 25)),
        # both bounds agree: nothing was given back
        ((10, 50, 100), (25, 50, 115), Peak(PeakKind.EXACT, 25, 25)),
        # nothing happened
        ((10, 50, 100), (10, 50, 100), Peak(PeakKind.EXACT, 10, 10)),
        # it had all been taken already
        ((50, 50, 100), (0, 50, 400), Peak(PeakKind.EXACT, 50, 50)),
        # the peaks were reset
        ((10, 50, 100), (20, 30, 200), Peak(PeakKind.BOUND, 30)),
        # only the sums were reset: they bound nothing any more
        ((10, 50, 100), (20, 50, 15), Peak(PeakKind.BOUND, 20, 50)),
        ((10, 50, 100), (20, 70, 15), Peak(PeakKind.EXACT, 70, 70)),
        # no sums: not torch's own allocator, whose peak is only a bound
        ((10, 50, None), (20, 70, None), Peak(PeakKind.BOUND, 20, 70)),
        ((10, 50, None), (20, 50, None), Peak(PeakKind.BOUND, 20, 50)),
        # no peaks at all
        ((10, None, None), (20, None, None), Peak(PeakKind.UNKNOWN)),
        ((None, 50, 100), (None, 70, 200), Peak(PeakKind.UNKNOWN)),
    ],
)
def test_each_rule(before, after, peak):
    """Each rule for a peak that is not reset gives its kind and its bounds."""
    assert peak_between(*looks(before=before, after=after)) == peak


def events(taken, given_back):
    """A piece that is taken, and one that is given back."""
    return [MemoryEvent(True, 1, taken), MemoryEvent(False, 2, given_back)]


def test_a_replay_stands_in_for_bounds():
    """What each allocation tells is taken where the counters give only bounds."""
    before, after = looks(before=(10, 50, 100), after=(20, 50, 200))
    counted = peak_between(before, after)

    assert with_replay(counted, before, after, events(23, 13)) == Peak(
        PeakKind.REPLAYED, 33, 33
    )
