"""Waits are told by line and by what they are, the dearest first."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.cuda_sync_time.observers import points_of
from gpumagic.cuda_sync_time.report import SyncPoint
from gpumagic.report.events import CodeLine, SyncCall

FIRST, SECOND = CodeLine("In [1], line 1", "a.item()"), CodeLine("In [1], line 2")
CALLS = st.lists(
    st.builds(
        SyncCall,
        st.sampled_from([".item()", "copy to the host"]),
        st.sampled_from([FIRST, SECOND, None]),
        st.none() | st.floats(0, 10),
    )
)


def test_calls_of_one_line_are_one_point():
    """Waits of one line and kind are counted and added up."""
    calls = [SyncCall(".item()", FIRST, 0.25), SyncCall(".item()", FIRST, 0.5)]

    assert points_of(calls) == (SyncPoint(".item()", FIRST, 2, 0.75),)


def test_what_differs_on_one_line_stays_apart():
    """Two ways to wait on one line are two points."""
    calls = [SyncCall(".item()", FIRST, 1.0), SyncCall("copy to the host", FIRST, 2.0)]

    points = points_of(calls)

    assert [each.what for each in points] == ["copy to the host", ".item()"]


def test_unknown_costs_come_last_in_the_order_of_appearance():
    """What costs is told first; what costs nobody knows how much keeps its order."""
    calls = [
        SyncCall("one", SECOND),
        SyncCall("two", FIRST),
        SyncCall("three", FIRST, 0.0),
        SyncCall("four", FIRST, 1.0),
    ]

    points = points_of(calls)

    assert [each.what for each in points] == ["four", "three", "one", "two"]


def test_one_unknown_cost_leaves_the_whole_unknown():
    """A sum with an unknown part is unknown, never too small."""
    calls = [SyncCall(".item()", FIRST, 1.0), SyncCall(".item()", FIRST, None)]

    (point,) = points_of(calls)

    assert (point.times, point.waited_s) == (2, None)


@settings(deadline=None, max_examples=50)
@given(calls=CALLS)
def test_nothing_is_lost(calls):
    """All calls are in the points, and costs never rise from one to the next."""
    points = points_of(calls)

    known = [each.waited_s for each in points if each.waited_s is not None]
    assert sum(each.times for each in points) == len(calls)
    assert known == sorted(known, reverse=True)
    if all(each.waited_s is not None for each in calls):
        assert sum(known) == pytest.approx(sum(each.waited_s for each in calls))
