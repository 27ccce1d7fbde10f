"""Machines of several processes agree on when they met, in whichever order they ask."""

from __future__ import annotations

import threading
import time

import pytest

from gpumagic.errors import DeviceError
from gpumagic.simulator.engines import Engine, Latencies
from gpumagic.simulator.meetings import Circle, GroupCall, Pace, Roll
from gpumagic.simulator.scheduler import Scheduler

LATENCIES = Latencies(launch_ns=10, gap_ns=0, record_ns=0, cross_stream_ns=0)


class Board:
    """A store in this process, with what torch's stores are asked here."""

    def __init__(self):
        self.values = {}

    def set(self, key, value):
        """Write it down."""
        self.values[key] = value.encode()

    def check(self, keys):
        """Whether all are there."""
        return all(key in self.values for key in keys)

    def multi_get(self, keys):
        """All of these."""
        while not self.check(keys):
            time.sleep(1e-4)
        return [self.values[key] for key in keys]

    def compare_set(self, key, expected, wanted):
        """Write it down where there is the expected one."""
        if self.values.get(key, b"").decode() == expected:
            self.set(key, wanted)
        return self.values[key]

    def delete_key(self, key):
        """Forget it."""
        return self.values.pop(key, None) is not None


class Rank:
    """One process: a machine with a stream of kernels and one for each circle."""

    def __init__(self, rank, paces, timeout_s=20):
        self.rank = rank
        self.scheduler = Scheduler(LATENCIES)
        self.kernels = self.scheduler.add_stream(0)
        self.pace = Pace(paces, rank)
        self.timeout_s = timeout_s
        self.met = {}

    def meet(self, name, board, members, took_ns, *, after=True):
        """A collective behind the kernels so far, and a kernel behind that."""
        circle = Circle(
            board, members, members.index(self.rank), self.pace, self.timeout_s, int
        )
        stream = self.scheduler.add_stream(0)
        self.scheduler.wait(stream, self.scheduler.record(self.kernels))
        peers = circle.next_meeting(name, "it", took_ns)
        meeting = self.scheduler.meet(stream, peers, took_ns, 0, name)
        if after:
            other = self.scheduler.add_stream(0)
            self.scheduler.wait(other, meeting)
            self.scheduler.launch(other, Engine.COMPUTE, 5, share=1)
        self.met[name] = meeting

    def compute(self, ns):
        """A kernel."""
        self.scheduler.launch(self.kernels, Engine.COMPUTE, ns, share=1)


def together(*programs):
    """Run these at once; what they raise comes out."""
    raised = []

    def run(program):
        try:
            program()
        except DeviceError as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(each,)) for each in programs]
    for each in threads:
        each.start()
    for each in threads:
        each.join(30)
        assert not each.is_alive(), "they wait for each other"
    return raised


def test_a_meeting_ends_for_all_when_the_last_has_come():
    """Its end is the latest start and its time, on each machine, whoever is slow."""
    board, paces = Board(), Board()
    ranks = [Rank(each, paces) for each in range(3)]

    def program(rank, delay_s):
        def run():
            time.sleep(delay_s)
            rank.compute(100 * (1 + rank.rank))
            rank.meet("a", board, (0, 1, 2), 50)
            rank.scheduler.wait_for_all()

        return run

    together(*(program(each, 0.01 * (2 - each.rank)) for each in ranks))

    starts = [each.met["a"].start_ns for each in ranks]
    assert starts == [110, 210, 310]
    assert {each.met["a"].end_ns for each in ranks} == {360}


def test_two_circles_in_opposite_order_do_not_wait_for_each_other():
    """Where one process is first here and last there, both ends are still found."""
    ab, cd, paces = Board(), Board(), Board()
    first, second = Rank(0, paces), Rank(1, paces)

    def one():
        first.meet("ab", ab, (0, 1), 5)
        first.compute(1000)
        first.compute(1000)
        first.meet("cd", cd, (0, 1), 5)
        first.scheduler.wait_for_all()

    def other():
        second.meet("cd", cd, (0, 1), 5)
        second.compute(2000)
        second.compute(2000)
        second.meet("ab", ab, (0, 1), 5)
        second.scheduler.wait_for_all()

    together(one, other)

    for name, end_ns in (("ab", 4015), ("cd", 2015)):
        assert {each.met[name].end_ns for each in (first, second)} == {end_ns}


def test_who_only_computes_waits_for_nobody():
    """A kernel that nothing holds up is over without a word from the others."""
    board, paces = Board(), Board()
    alone = Rank(0, paces)
    Pace(paces, 1)

    alone.meet("a", board, (0, 1), 5, after=False)
    alone.compute(100)
    alone.scheduler.wait_for_stream(alone.kernels)

    assert alone.scheduler.now_ns == 110
    assert alone.met["a"].end_ns is None


def test_the_others_know_who_comes_before_anybody_waits():
    """One process says when it comes, and goes on: the other needs no more of it."""
    board, paces = Board(), Board()
    first, second = (Rank(each, paces, timeout_s=0.5) for each in range(2))
    first.compute(100)
    first.meet("a", board, (0, 1), 5, after=False)
    said_ns = first.scheduler.now_ns

    first.scheduler.come_to(first.met["a"])
    second.meet("a", board, (0, 1), 5, after=False)
    second.scheduler.wait_for_all()

    assert first.scheduler.now_ns == said_ns
    assert second.met["a"].end_ns == 110 + 5


def test_who_does_not_come_is_named():
    """After the time of the group the rank that is missing is told."""
    board, paces = Board(), Board()
    alone = Rank(0, paces, timeout_s=0.05)
    Pace(paces, 7)
    alone.meet("a", board, (0, 7), 5)

    with pytest.raises(DeviceError, match="rank 7 did not come to it"):
        alone.scheduler.wait_for_all()


def test_a_machine_can_be_used_again_when_it_has_told_who_did_not_come():
    """It is told once; then what stands behind the collective goes on."""
    board, paces = Board(), Board()
    alone = Rank(0, paces, timeout_s=0.05)
    Pace(paces, 7)
    alone.meet("a", board, (0, 7), 5)
    with pytest.raises(DeviceError):
        alone.scheduler.wait_for_all()

    alone.scheduler.wait_for_all()

    assert alone.met["a"].end_ns is not None


def test_different_collectives_in_one_place_are_told():
    """Ranks that call different things at the same place are an error, no hang."""
    board, paces = Board(), Board()
    ranks = [Rank(each, paces) for each in range(2)]

    def program(rank, what):
        def run():
            circle = Circle(board, (0, 1), rank.rank, rank.pace, 20, int)
            stream = rank.scheduler.add_stream(0)
            peers = circle.next_meeting("a", what, 5)
            rank.scheduler.meet(stream, peers, 5, 0, "a")
            rank.scheduler.wait_for_all()

        return run

    raised = together(program(ranks[0], "AllReduce"), program(ranks[1], "Broadcast"))

    assert len(raised) == 2
    assert "AllReduce" in str(raised[0])
    assert "Broadcast" in str(raised[0])


def test_ctrl_c_ends_the_wait_for_all_that_was_called():
    """Who is interrupted waits for nobody any more, in what was called before."""
    paces, board = Board(), Board()
    rank = Rank(0, paces)
    Pace(paces, 1)

    def interrupted():
        raise KeyboardInterrupt

    circle = Circle(board, (0, 1), 0, rank.pace, 20, interrupted)
    called = [circle.next_meeting(name, "it", 5) for name in ("a", "b")]
    for each in called:
        each.arrived(100)
    with pytest.raises(KeyboardInterrupt):
        called[0].end(105, 105)

    assert [each.end(105, 105) for each in called] == [(110, True)] * 2
    later = circle.next_meeting("c", "it", 5)
    later.arrived(200)
    with pytest.raises(KeyboardInterrupt):
        later.end(205, 205)


def test_who_says_another_size_is_refused_before_anything_is_sent():
    """The first who calls decides; the second is told whom it disagrees with."""
    paces, board = Board(), Board()
    one, other = (Circle(board, (4, 7), i, Pace(paces, i), 20, int) for i in range(2))

    other.agree("all 3", "all_reduce of 8 bytes")
    with pytest.raises(DeviceError, match="rank 7 calls all_reduce of 8 bytes"):
        one.agree("all 3", "all_reduce of 16 bytes")


def test_a_wait_of_an_earlier_group_is_another_one(monkeypatch):
    """A call that looks the same, in a group that was begun anew, is waited for anew.

    One that the host comes back to is the same wait all the time.
    """
    now = iter(range(100))
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    roll, call = Roll(), GroupCall("0", 1, "all_reduce", 4)
    since_s = []
    for anew in (True, False, True):
        if anew:
            roll.called(call)
        with roll.waiting(call):
            since_s.append(roll.wait.since_s)

    assert since_s == [0, 0, 1]
