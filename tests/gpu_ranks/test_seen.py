"""Which group each collective of gloo belongs to: against runs whose truth is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumagic.gpu_open.trace_records import Collective
from gpumagic.gpu_ranks import seen
from gpumagic.gpu_ranks.seen import Mark, RecordedCall, calls_of_marks

MS = 1_000_000
THREADS = {"0": (10, 11), "1": (20, 21)}


def played(random_of, count, *, waits):
    """Calls of two groups, each of which has two threads that take them in order.

    Args:
        random_of: What varies.

        count: How many.

        waits: Whether each is made once the one before it has ended.
    """
    calls, marks, truth = [], [], []
    now, off = 0, random_of.randint(-MS // 3, MS // 3)  # of the profiler's clock
    free = {thread: 0 for threads in THREADS.values() for thread in threads}
    for _ in range(count):
        group = random_of.choice(list(THREADS))
        name = random_of.choice(["gloo:all_reduce", "gloo:broadcast"])
        now += random_of.randint(MS if waits else MS // 100, 6 * MS)
        calls.append(RecordedCall(name, group, now, 8))
        thread = min(THREADS[group], key=lambda each: (free[each], random_of.random()))
        start = max(now, free[thread]) + random_of.randint(0, MS // 10)
        end = start + random_of.randint(MS // 10, 9 * MS)
        free[thread] = end
        marks.append(Mark(name, start + off, end + off))
        truth.append(group)
        now = end if waits else now
    return marks, calls, truth


def groups(found):
    """Those of the calls that marks were found to be of."""
    return [None if each is None else each.group for each in found]


@given(random_of=st.randoms(use_true_random=False), count=st.integers(1, 30))
def test_calls_in_turn_are_all_known(random_of, count):
    """Who calls one thing after another is told of every collective."""
    marks, calls, truth = played(random_of, count, waits=True)

    assert groups(calls_of_marks(marks, calls, None)) == truth


@given(random_of=st.randoms(use_true_random=False), count=st.integers(1, 30))
def test_what_overlaps_is_told_rightly_or_not_at_all(random_of, count):
    """No collective is given to a group that it is not of."""
    marks, calls, truth = played(random_of, count, waits=False)
    alone = truth[0] if len(set(truth)) == 1 else None

    assert groups(calls_of_marks(marks, calls, alone)) in (truth, [None] * count)


def test_of_two_at_once_it_is_not_known_which_is_which():
    """Within the error of the profiler's clock the later call may have begun first."""
    calls = [RecordedCall("a", "0", 10_000), RecordedCall("a", "1", 20_000)]
    marks = [Mark("a", 20_001, 120_001), Mark("a", 20_000, 120_000)]

    assert calls_of_marks(marks, calls, None) == [None, None]


def test_a_host_that_calls_more_has_gone_on(monkeypatch):
    """It has worked until its last call, and what comes after may be waiting."""
    name = "gloo:all_reduce"
    entries = [
        {"profiling_name": name, "time_created_ns": at, "record_id": at}
        for at in (0, 30 * MS)
    ]
    monkeypatch.setattr(seen.flight_recorder, "calls", lambda: entries)
    monkeypatch.setattr(seen, "last_numbers", lambda: {"0": 2})
    marks = [Mark(name, 0, 50 * MS), Mark(name, 50 * MS, 51 * MS)]
    seconds = [(each.start_ns / 1e9, each.end_ns / 1e9) for each in marks]
    own = [Collective(name, None, 0, False, *each) for each in seconds]

    found = seen.with_groups(own, marks, {"0": 0}, 0)

    assert [each.group for each in found] == ["0", "0"]
    assert [each.hidden_s or 0.0 for each in found] == pytest.approx([0.03, 0.0])


def test_of_many_calls_the_last_are_told(monkeypatch):
    """From the first of these on all is known; what the ring has lost is said too."""
    entries = [
        {"time_created_ns": at, "record_id": at, "process_group": ["0", ""]}
        | {"profiling_name": "gloo:barrier", "collective_seq_id": at}
        for at in range(5, 15)
    ]
    monkeypatch.setattr(seen.flight_recorder, "calls", lambda: entries)

    assert seen.recorded(8, 100)[1] is None
    assert len(seen.recorded(8, 100)[0]) == 7
    assert seen.recorded(8, 3)[1] == 12
    assert seen.recorded(0, 100)[1] == 5
