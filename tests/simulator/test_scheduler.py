"""Any program takes the time that a patient reader of the rules would find."""

from __future__ import annotations

import sys
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.simulator.scheduler import (
    BEGINNING,
    FULL_SHARE,
    QUEUE_FULL,
    Engine,
    Latencies,
    Scheduler,
)
from tests.simulator.brute_force import BruteForce

HALF = FULL_SHARE // 2
QUARTER = FULL_SHARE // 4
EVENTS = 3

# Mostly one device and few engines: without a crowd there is nothing to decide.
machines = st.lists(
    st.tuples(st.sampled_from([0, 0, 0, 1]), st.integers(-1, 0)),
    min_size=1,
    max_size=4,
)
small_latencies = st.builds(
    Latencies,
    launch_ns=st.integers(1, 5),
    gap_ns=st.integers(0, 7),
    record_ns=st.integers(0, 3),
    cross_stream_ns=st.integers(0, 5),
    queue_length=st.sampled_from([1, 2, 4, 1000, 1000, 1000]),
)
streams = st.integers(0, 3)
events = st.integers(0, EVENTS - 1)
host_times = st.integers(0, 4)
launches = st.tuples(
    st.just("launch"),
    streams,
    st.sampled_from([Engine.COMPUTE] * 5 + [Engine.H2D, Engine.D2H]),
    st.integers(0, 25),
    st.sampled_from([FULL_SHARE, HALF, QUARTER, 3 * QUARTER, 1]),
    host_times,
)
records = st.tuples(st.just("record"), streams, events, host_times)
waits = st.tuples(st.just("wait"), streams, events, host_times)
questions = [
    st.tuples(st.sampled_from(["done", "wait_for"]), events),
    st.tuples(st.sampled_from(["busy", "wait_for_stream"]), streams),
    st.tuples(st.just("wait_for_device"), st.integers(0, 1)),
    st.tuples(st.just("elapse"), st.integers(0, 30)),
]
steps = st.sampled_from([launches] * 15 + [records] * 3 + [waits] * 4 + questions)
programs = st.lists(steps.flatmap(lambda step: step), min_size=12, max_size=36)


class Pair:
    """A scheduler and the brute force, given the same program side by side."""

    def __init__(self, machine, latencies):
        self.size = len(machine)
        self.real = Scheduler(latencies)
        self.naive = BruteForce(machine, latencies)
        self.streams = [self.real.add_stream(*stream) for stream in machine]
        self.events = [(BEGINNING, None)] * EVENTS
        self.works = []

    def step(self, word, *rest):
        """Do one step in both and return what each answers."""
        return getattr(self, word)(*rest)

    def launch(self, stream, engine, duration, share, host):
        """Submit a work to both."""
        stream %= self.size
        real = self.real.launch(self.streams[stream], engine, duration, share, host)
        part = Fraction(share, FULL_SHARE)
        self.works.append(
            (real, self.naive.launch(stream, engine, duration, part, host))
        )

    def record(self, stream, event, host):
        """Record an event, perhaps once more, in both."""
        stream %= self.size
        real = self.real.record(self.streams[stream], host)
        self.events[event] = (real, self.naive.record(stream, host))
        self.works.append(self.events[event])

    def wait(self, stream, event, host):
        """Let a stream of both wait for the latest record of an event."""
        stream %= self.size
        real, naive = self.events[event]
        self.real.wait(self.streams[stream], real, host)
        self.naive.wait(stream, naive, host)

    def done(self, event):
        """Whether an event has been reached."""
        real, naive = self.events[event]
        return self.real.done(real), self.naive.done(naive)

    def busy(self, stream):
        """Whether a stream has work."""
        stream %= self.size
        entries = self.naive.of_stream(stream)
        idle = all(self.naive.done(entry) for entry in entries)
        return self.real.busy(self.streams[stream]), not idle

    def wait_for(self, event):
        """Block both hosts until an event."""
        real, naive = self.events[event]
        self.real.wait_for(real)
        self.naive.wait_for([naive] if naive else [])

    def wait_for_stream(self, stream):
        """Block both hosts until a stream is idle."""
        stream %= self.size
        self.real.wait_for(self.streams[stream].last)
        self.naive.wait_for(self.naive.of_stream(stream))

    def wait_for_device(self, device):
        """Block both hosts until a device is idle."""
        self.real.wait_for_device(device)
        self.naive.wait_for(self.naive.of_device(device))

    def elapse(self, ns):
        """Let time pass in both."""
        self.real.elapse(ns)
        self.naive.now += ns

    def finish(self):
        """Wait for everything and return all starts and ends of both."""
        for device in (0, 1):
            self.real.wait_for_device(device)
        self.naive.wait_for(self.naive.entries)
        return (
            [(real.start_ns, real.end_ns) for real, _ in self.works],
            [(naive.start, naive.end) for _, naive in self.works],
        )


@settings(deadline=None, max_examples=250)
@given(machines, small_latencies, programs)
def test_every_program_takes_the_time_that_the_rules_say(machine, latencies, program):
    """All times, answers and the host's clock equal those of a naive full replay."""
    pair = Pair(machine, latencies)
    for step in program:
        answers = pair.step(*step)
        if answers is not None:
            assert answers[0] == answers[1], step
        assert pair.real.now_ns == pair.naive.now, step
    ends, naive_ends = pair.finish()
    assert ends == naive_ends
    assert pair.real.now_ns == pair.naive.now


# ------------------------------------------------------------ what costs too much


def kernel(scheduler, stream, duration_ns, share=FULL_SHARE):
    """A kernel whose launch costs the host nothing."""
    return scheduler.launch(stream, Engine.COMPUTE, duration_ns, share)


def test_what_is_submitted_after_an_answer_does_not_change_it():
    """Who asks for an end ahead of time keeps it, also before what is more urgent."""
    scheduler = Scheduler(Latencies())
    stream, other = scheduler.add_stream(0), scheduler.add_stream(0, -1)
    first, second = (kernel(scheduler, stream, 10**6) for _ in range(2))
    end_ns = scheduler.end_of(second)
    favoured = kernel(scheduler, other, 10)
    scheduler.wait_for_device(0)
    assert second.end_ns == end_ns == favoured.start_ns > first.end_ns


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
    scheduler, heard = Scheduler(Latencies(queue_length=2)), []
    stream = scheduler.add_stream(0)
    first, _ = (scheduler.launch(stream, Engine.COMPUTE, 1_000_000) for _ in range(2))
    scheduler.wait_observers.append(lambda *wait: heard.append(wait))
    began_ns = scheduler.now_ns
    scheduler.launch(stream, Engine.COMPUTE, 1_000_000)
    assert heard == [(QUEUE_FULL, began_ns, first.end_ns)]
    assert scheduler.now_ns == first.end_ns > began_ns
