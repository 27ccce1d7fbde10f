"""Which group each collective of gloo belongs to: against runs whose truth is known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpumagic.gpu_ranks.gloo_marks import Mark, RecordedCall, groups_of_threads, placed

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
    now = 0
    free = {thread: 0 for threads in THREADS.values() for thread in threads}
    for _ in range(count):
        group = random_of.choice(list(THREADS))
        name = random_of.choice(["gloo:all_reduce", "gloo:broadcast"])
        now += random_of.randint(MS // 100, 6 * MS)
        calls.append(RecordedCall(name, group, now, 8))
        thread = min(THREADS[group], key=lambda each: (free[each], random_of.random()))
        start = max(now, free[thread]) + random_of.randint(0, MS // 10)
        end = start + random_of.randint(MS // 10, 9 * MS)
        free[thread] = end
        off = random_of.randint(-MS // 3, MS // 3)  # of the profiler's clock
        marks.append(Mark(name, start + off, end + off, thread))
        truth.append(group)
        now = end if waits else now
    return marks, calls, truth


@given(random_of=st.randoms(use_true_random=False), count=st.integers(1, 30))
def test_calls_in_turn_are_all_known(random_of, count):
    """Who calls one thing after another is told of every collective."""
    marks, calls, truth = played(random_of, count, waits=True)

    groups = groups_of_threads(marks, calls, {}, is_whole=True)

    assert [each.group for each in placed(marks, calls, groups, is_whole=True)] == truth


@given(random_of=st.randoms(use_true_random=False), count=st.integers(1, 30))
def test_what_overlaps_is_told_rightly_or_not_at_all(random_of, count):
    """No collective is given to a group that it is not of."""
    marks, calls, truth = played(random_of, count, waits=False)

    for is_whole in (True, False):
        groups = groups_of_threads(marks, calls, {}, is_whole=is_whole)
        found = placed(marks, calls, groups, is_whole=is_whole)
        assert [each.group for each in found] in (truth, [None] * count)


def test_threads_that_were_known_before():
    """What could be one or the other is known by what its threads did before."""
    calls = [
        RecordedCall("gloo:all_reduce", group, at) for at, group in enumerate("01")
    ]
    marks = [Mark("gloo:all_reduce", 5, 9, 20), Mark("gloo:all_reduce", 6, 7, 10)]
    before = {10: "0", 20: "1"}

    groups = groups_of_threads(marks, calls, before, is_whole=True)

    found = placed(marks, calls, groups, is_whole=True)
    assert [each.group for each in found] == ["1", "0"]


def test_a_host_that_calls_more_has_gone_on():
    """It has worked until its last call, and what comes after may be waiting."""
    name = "gloo:all_reduce"
    calls = [RecordedCall(name, "0", 0), RecordedCall(name, "0", 30 * MS)]
    marks = [Mark(name, 0, 50 * MS, 1), Mark(name, 50 * MS, 51 * MS, 1)]

    found = placed(marks, calls, {1: "0"}, is_whole=True)

    assert [each.beside_ns for each in found] == [30 * MS, 0]


def test_a_mark_that_ends_late_is_no_overlap():
    """A host goes on a moment before the thread says that it is through."""
    name = "gloo:all_reduce"
    calls = [RecordedCall(name, "0", 0), RecordedCall(name, "0", 50 * MS - 1)]
    marks = [Mark(name, 0, 50 * MS, 1), Mark(name, 50 * MS, 51 * MS, 1)]

    found = placed(marks, calls, {1: "0"}, is_whole=True)

    assert [each.beside_ns for each in found] == [0, 0]
