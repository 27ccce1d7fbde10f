"""Each rule of the simulated machine's time, in one small program."""

from __future__ import annotations

import sys

import pytest

from gpumagic.simulator.engines import FULL_SHARE, Engine, Latencies
from gpumagic.simulator.scheduler import QUEUE_FULL, Scheduler

HALF = FULL_SHARE // 2


def kernel(scheduler, stream, duration_ns, share=FULL_SHARE):
    """A kernel whose launch costs the host nothing."""
    return scheduler.launch(stream, Engine.COMPUTE, duration_ns, share)


# ---------------------------------------------------- what it leaves behind


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
    scheduler.wait_for_device(0)
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
