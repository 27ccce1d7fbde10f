"""Threads of one group submit their work in turn, and none waits for ever."""

from __future__ import annotations

import itertools
import threading
from types import SimpleNamespace

import pytest

from gpumagic.simulator.backend import current_devices
from gpumagic.simulator.backend.current_devices import Turns

PATIENT_S = 5  # with what is broken


def together(turns, *programs, begun=None):
    """Run these in threads of their own, which take part by their numbers.

    All but the first wait until they are told that it has begun, where that is said.
    """

    def run(number, program):
        if begun is not None and number:
            begun.wait(PATIENT_S)
        turns.begin(number)
        program()
        turns.leave(number)

    threads = [
        threading.Thread(target=run, args=each, daemon=True)
        for each in enumerate(programs)
    ]
    for number, _ in enumerate(programs):
        turns.enter(number)
    for each in reversed(threads):  # who begins first has no say
        each.start()
    for each in threads:
        each.join(PATIENT_S)
        assert not each.is_alive()


def test_each_goes_on_until_it_is_the_next_ones_turn(monkeypatch):
    """The order is the same each time, however the threads are scheduled."""
    monkeypatch.setattr(current_devices, "_PATIENCE_S", PATIENT_S)
    turns, order = Turns(), []

    def program(number, steps):
        def run():
            for step in range(steps):
                order.append((number, step))
                turns.next(number)

        return run

    together(turns, program(0, 3), program(1, 1), program(2, 3))

    assert order == [(0, 0), (1, 0), (2, 0), (0, 1), (2, 1), (0, 2), (2, 2)]


@pytest.mark.parametrize("computes", [True, False])
def test_only_who_does_nothing_loses_its_turn(monkeypatch, computes):
    """A long operation is waited for; who waits for another thread is passed over."""
    looks, order = itertools.count(), []
    begun, later = threading.Event(), threading.Event()

    def clock_gettime(_):
        number = next(looks)
        if number > 4 and computes:
            later.set()
        return number if computes else 0

    clocks = SimpleNamespace(
        pthread_getcpuclockid=lambda ident: ident, clock_gettime=clock_gettime
    )
    monkeypatch.setattr(current_devices, "time", clocks)
    monkeypatch.setattr(current_devices, "_PATIENCE_S", 0.001)

    def first():
        begun.set()
        later.wait(1)
        order.append("first")

    def second():
        order.append("second")
        later.set()

    together(Turns(), first, second, begun=begun)

    assert order == (["first", "second"] if computes else ["second", "first"])
