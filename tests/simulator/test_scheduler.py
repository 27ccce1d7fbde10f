"""Each rule of the simulated machine's time, in one small program."""

from __future__ import annotations

import gc
import sys

import pytest

from gpumagic.simulator.engines import FULL_SHARE, Engine, Latencies, Work
from gpumagic.simulator.scheduler import QUEUE_FULL, Scheduler

HALF = FULL_SHARE // 2


@pytest.fixture
def scheduler():
    """A scheduler with latencies that are easy to add up."""
    return Scheduler(
        Latencies(
            launch_ns=20,
            gap_ns=5,
            record_ns=3,
            cross_stream_ns=30,
            queue_length=100,
        )
    )


def kernel(scheduler, stream, duration_ns, share=FULL_SHARE):
    """A kernel whose launch costs the host nothing."""
    return scheduler.launch(stream, Engine.COMPUTE, duration_ns, share)


def test_a_launch_returns_before_its_work_starts(scheduler):
    """The host pays for the call only; the work starts a latency after the call."""
    stream = scheduler.add_stream(0)
    work = scheduler.launch(stream, Engine.COMPUTE, 1000, host_ns=7)
    assert scheduler.now_ns == 7
    assert work.end_ns is None
    scheduler.wait_for(work)
    assert (work.start_ns, work.end_ns, scheduler.now_ns) == (27, 1027, 1027)


def test_a_full_queue_makes_a_launch_cost_what_a_kernel_takes():
    """Launches cost the host their own time until the queue is full, then a kernel."""
    scheduler = Scheduler(Latencies(queue_length=50))
    stream = scheduler.add_stream(0)
    costs = []
    for _ in range(120):
        before = scheduler.now_ns
        scheduler.launch(stream, Engine.COMPUTE, 190_000, host_ns=4_000)
        costs.append(scheduler.now_ns - before)
    assert set(costs[:50]) == {4_000}
    assert set(costs[55:]) == {190_000 + scheduler.latencies.gap_ns}


def test_a_wait_for_what_never_was_has_no_effect(scheduler):
    """An event never recorded costs its call only, and counts as reached."""
    stream = scheduler.add_stream(0)
    scheduler.wait(stream, None, host_ns=9)
    assert scheduler.now_ns == 9
    assert stream.last is None
    assert scheduler.done(None)
    scheduler.wait_for(None)
    assert scheduler.now_ns == 9


def test_the_host_waits_for_what_it_names_and_for_nothing_else(scheduler):
    """Waiting for a stream or a device leaves the others to go on."""
    short, long, far = (scheduler.add_stream(device) for device in (0, 0, 1))
    quick = kernel(scheduler, short, 100, HALF)
    slow = kernel(scheduler, long, 1000, HALF)
    slowest = kernel(scheduler, far, 5000)
    scheduler.wait_for_stream(short)
    assert scheduler.now_ns == quick.end_ns
    assert scheduler.busy(long)
    scheduler.wait_for_device(0)
    assert scheduler.now_ns == slow.end_ns
    assert scheduler.busy(far)
    scheduler.wait_for_all()
    assert scheduler.now_ns == slowest.end_ns
    assert not scheduler.busy(far)


# ------------------------------------------------------ looking ahead


def test_asking_for_an_end_leaves_the_clock(scheduler):
    """The end of a work can be had before the host has come that far."""
    stream = scheduler.add_stream(0)
    first, second = (kernel(scheduler, stream, 1000) for _ in range(2))
    assert scheduler.end_of(second) == 20 + 1000 + 5 + 1000
    assert scheduler.end_of(first) == 20 + 1000
    assert scheduler.now_ns == 0


def test_what_could_change_an_end_already_told_is_refused(scheduler):
    """After `end_of`, nothing is submitted before the host has come that far."""
    stream, other = scheduler.add_stream(0), scheduler.add_stream(0, -1)
    kernel(scheduler, stream, 1000)
    second = kernel(scheduler, stream, 1000)
    scheduler.end_of(second)
    with pytest.raises(RuntimeError, match="already decided"):
        kernel(scheduler, other, 10)
    scheduler.elapse(second.start_ns)
    favoured = kernel(scheduler, other, 10)
    scheduler.wait_for_all()
    assert favoured.start_ns == second.end_ns


def test_what_could_change_an_end_told_among_several_streams_is_refused(scheduler):
    """The promise of `end_of` holds as well where streams take turns."""
    first, second = (kernel(scheduler, scheduler.add_stream(0), 1000) for _ in range(2))
    urgent = scheduler.add_stream(0, -1)
    assert scheduler.end_of(second) == first.end_ns + 1000
    with pytest.raises(RuntimeError, match="already decided"):
        kernel(scheduler, urgent, 10)


def test_a_work_of_another_scheduler_is_refused(scheduler):
    """Waiting for what will never end here is a mistake, not a hang."""
    stranger = Scheduler()
    work = kernel(stranger, stranger.add_stream(0), 10)
    with pytest.raises(RuntimeError, match="another scheduler"):
        scheduler.wait_for(work)


@pytest.mark.parametrize(
    "latencies",
    [{"launch_ns": 0}, {"queue_length": 0}, {"gap_ns": -1}, {"record_ns": -1}],
)
def test_latencies_that_undo_the_rules_are_refused(latencies):
    """A launch takes time, a queue has a slot, and no latency is negative."""
    with pytest.raises(ValueError, match=r"latency|at least"):
        Latencies(**latencies)


# ---------------------------------------------------- what it leaves behind


def test_a_trace_holds_every_work_in_the_order_of_start(scheduler):
    """A timeline shows kernels and copies, neither records nor waits."""
    scheduler.trace = []
    first, second = scheduler.add_stream(0), scheduler.add_stream(0)
    works = [
        kernel(scheduler, first, 1000),
        scheduler.launch(second, Engine.H2D, 300, name="copy"),
    ]
    scheduler.wait(first, scheduler.record(second))
    works.append(kernel(scheduler, first, 10))
    scheduler.wait_for_all()
    assert scheduler.trace == works
    assert [work.name for work in works] == ["", "copy", ""]


@pytest.mark.parametrize("duration_ns", [10, 10**5])
def test_finished_works_are_forgotten(duration_ns):
    """However much was done, no more is kept than the queues hold."""
    scheduler = Scheduler(Latencies(queue_length=20))
    streams = [scheduler.add_stream(0) for _ in range(3)]
    gc.collect()
    before = _works_alive()
    for turn in range(3000):
        stream, other = streams[turn % 3], streams[(turn + 1) % 3]
        scheduler.launch(stream, Engine.COMPUTE, duration_ns, HALF, host_ns=500)
        scheduler.record(stream, 500)
        # Waits for waits: a chain of them must not be kept alive by its last link.
        scheduler.wait(stream, other.last)
        scheduler.wait(other, stream.last)
    scheduler.wait_for_all()
    gc.collect()
    assert _works_alive() - before <= 3 * 20 + 3
    assert not scheduler._engines.live
    assert not scheduler._engines._blocked
    assert len(scheduler._engines._agenda) <= 3


def test_a_held_work_keeps_its_end(scheduler):
    """Whoever holds a work can still read its times when it is long forgotten."""
    stream = scheduler.add_stream(0)
    work = kernel(scheduler, stream, 1000)
    for _ in range(1000):
        kernel(scheduler, stream, 1000)
    assert work.end_ns == 1020


@pytest.mark.parametrize("count", [1, 2])
def test_a_launch_into_a_full_queue_costs_the_same_however_long_it_is(count):
    """A host that is for ever ahead pays for one work at a time, not for the queue."""
    steps = [_lines_of_a_full_launch(length, count) for length in (10, 1000)]
    assert steps[0] == pytest.approx(steps[1], rel=0.1)


def test_streams_that_wait_for_each_other_in_turn_may_go_deep():
    """A long chain of records and waits across streams is settled all the same."""
    scheduler = Scheduler(Latencies(queue_length=10**5))
    streams = [scheduler.add_stream(0), scheduler.add_stream(0)]
    kernel(scheduler, streams[0], 10**6)
    depth = 2 * sys.getrecursionlimit()
    for turn in range(depth):
        record = scheduler.record(streams[turn % 2])
        scheduler.wait(streams[1 - turn % 2], record)
    scheduler.wait_for_all()
    latencies = scheduler.latencies
    hop_ns = latencies.record_ns + latencies.cross_stream_ns
    first_ns = 10**6 + latencies.launch_ns + latencies.gap_ns
    assert scheduler.now_ns == first_ns + depth * hop_ns


def test_a_wait_for_a_slot_is_told_with_its_time():
    """A launch that finds its queue full makes the host wait; who listens hears it."""
    # Given a queue of two, both taken
    scheduler, heard = Scheduler(Latencies(queue_length=2)), []
    stream = scheduler.add_stream(0)
    first, _ = (scheduler.launch(stream, Engine.COMPUTE, 1_000_000) for _ in range(2))
    scheduler.wait_observers.append(lambda *wait: heard.append(wait))
    began_ns = scheduler.now_ns

    # When
    scheduler.launch(stream, Engine.COMPUTE, 1_000_000)

    # Then
    assert heard == [(QUEUE_FULL, began_ns, first.end_ns)]
    assert scheduler.now_ns == first.end_ns > began_ns


def _works_alive():
    # By the exact type: asking other libraries' objects what they are may warn.
    return sum(type(thing) is Work for thing in gc.get_objects())


def _lines_of_a_full_launch(length, count):
    """How many lines of Python a launch runs, the queues being full."""
    scheduler = Scheduler(Latencies(queue_length=length))
    streams = [scheduler.add_stream(0) for _ in range(count)]
    for turn in range(3 * length):
        kernel(scheduler, streams[turn % count], 10**6, HALF)
    lines = 0

    def count_line(_frame, event, _argument):
        nonlocal lines
        lines += event == "line"
        return count_line

    traced_before = sys.gettrace()
    sys.settrace(count_line)
    try:
        for turn in range(200):
            kernel(scheduler, streams[turn % count], 10**6, HALF)
    finally:
        sys.settrace(traced_before)
    return lines / 200
