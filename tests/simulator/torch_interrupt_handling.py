"""Ctrl-C outside of torch's work, and the handler of signals that comes and goes."""

from __future__ import annotations

import _thread
import queue
import signal
import threading
import time

import pytest
import torch

import gpumagic
from gpumagic.simulator.backend import interrupts as interrupts_module
from gpumagic.simulator.backend.interrupts import Interrupts
from tests.simulator.interrupting import other_process

WAIT_S = 120


@pytest.fixture(scope="module")
def sender():
    """Another process that interrupts this one when told to."""
    with other_process() as one:
        yield one


@pytest.mark.usefixtures("box")
def test_plain_python_is_interrupted(sender):
    """An interrupt that falls between operations arrives as anywhere."""
    torch.ones(2, device="sim") + 1

    assert sender.interrupt(lambda: sum(range(100)))


@pytest.mark.parametrize(
    "wait",
    [time.sleep, lambda seconds: threading.Event().wait(seconds)],
    ids=["sleep", "event"],
)
@pytest.mark.usefixtures("box")
def test_a_wait_is_interrupted_before_its_end(sender, wait):
    """A wait between operations ends with the interrupt, as without the simulator."""
    torch.ones(2, device="sim") + 1
    start = time.monotonic()

    def strike_and_wait():  # in one: a busy machine may begin the wait after the strike
        sender.strike(0.5)
        wait(WAIT_S)

    with pytest.raises(KeyboardInterrupt):
        strike_and_wait()

    assert time.monotonic() - start < WAIT_S


@pytest.mark.usefixtures("box")
def test_an_interrupt_is_caught_where_it_falls(sender):
    """`except KeyboardInterrupt` in a loop over operations goes on with the loop."""
    x, caught = torch.zeros(2, device="sim"), 0
    while caught < 20:
        caught += sender.interrupt(lambda: x + 1)

    assert (x + 1).tolist() == [1, 1]


class NoWatch:
    """In the place of the watch: does nothing by itself, as the test does its part."""

    def __init__(self, *_):
        self.notice = queue.SimpleQueue().put

    def end(self):
        """Nothing has begun."""


@pytest.fixture
def interrupts(monkeypatch):
    """Ctrl-C as the simulator handles it, without the simulator."""
    monkeypatch.setattr(interrupts_module, "Watch", NoWatch)
    ours = Interrupts(())
    ours.take_over()
    yield ours
    ours.give_back()


def test_a_wait_that_ends_by_itself_is_not_interrupted_twice(interrupts):
    """The request was met while the watch made up its mind: its own signal is mute."""
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    interrupts.raise_unmet()
    assert interrupts.to_come  # which the watch waits for before it requests again

    signal.raise_signal(signal.SIGINT)

    assert not interrupts.to_come
    interrupts.request_again()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_request_that_is_not_met_is_taken_back_where_the_handler_raises(interrupts):
    """Of the request and the watch's signal only one arrives."""
    interrupts.hold()
    signal.raise_signal(signal.SIGINT)
    interrupts.raise_unmet()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    interrupts.request_again()

    interrupts.deliver()

    assert interrupts.outcomes == []


def test_switching_off_puts_pythons_handler_back():
    """With the simulator off, Ctrl-C is handled as it was before."""
    before = signal.getsignal(signal.SIGINT)
    for _ in range(2):
        with gpumagic.simulate("h100"):
            assert signal.getsignal(signal.SIGINT) is not before

        assert signal.getsignal(signal.SIGINT) is before


def test_switching_off_leaves_a_handler_of_the_user_alone():
    """A handler that was set by somebody else stays, during and after."""
    mine = []
    before = signal.signal(signal.SIGINT, lambda *_: mine.append(True))
    try:
        with gpumagic.simulate("h100"):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)

    assert mine == [True, True]


def test_replacing_one_simulation_by_another_keeps_interrupts(sender):
    """After `simulate` upon `simulate`, interrupts arrive as before."""
    before = signal.getsignal(signal.SIGINT)
    gpumagic.simulate("h100")
    with gpumagic.simulate("t4"):
        assert sender.interrupt(lambda: torch.ones(2, device="sim") + 1)

    assert signal.getsignal(signal.SIGINT) is before


# --------------------------------------------- between two instructions: met there

# Notes the signal and runs no handler, as Ctrl-C does during a long call in C.
ctrl_c = _thread.interrupt_main


@pytest.fixture
def used():
    """A simulated machine on which something has been computed."""
    with gpumagic.simulate("h100"):
        torch.ones(2, device="sim")
        yield


class Block:
    """Has to be left through its end."""

    left = 0

    def __enter__(self):
        """Begin the block."""

    def __exit__(self, *_):
        self.left += 1


@pytest.mark.usefixtures("used")
def test_a_block_is_left_through_its_end_if_ctrl_c_falls_on_its_last_call():
    """What was pressed during a long call at the end of a block stops it inside."""
    block = Block()

    with pytest.raises(KeyboardInterrupt), block:
        ctrl_c()

    assert block.left == 1


@pytest.mark.usefixtures("used")
def test_cleaning_up_is_not_what_is_interrupted():
    """The function that a `finally` calls runs to its end."""
    tidied = []

    def tidy():
        tidied.append(True)

    def interrupted():
        try:
            ctrl_c()
        finally:
            tidy()

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert tidied == [True]


@pytest.mark.usefixtures("used")
def test_one_ctrl_c_is_one_interrupt():
    """After it has been raised nothing of it is left."""
    with pytest.raises(KeyboardInterrupt):
        ctrl_c()

    assert sum(range(1000)) == 499_500
    assert (torch.ones(2, device="sim") + 1).tolist() == [2, 2]


@pytest.mark.usefixtures("used")
def test_c_code_that_runs_handlers_is_not_interrupted_inside():
    """It goes on as if nothing had happened; the interrupt falls behind it."""
    done = []

    with pytest.raises(KeyboardInterrupt):
        done.extend(map(signal.raise_signal, (signal.SIGINT,)))

    assert done == [None]


@pytest.mark.usefixtures("used")
def test_an_interpreter_laid_out_in_another_way_is_not_read(monkeypatch):
    """Where its marks are not in their place, the handler goes on requesting."""
    monkeypatch.setattr(interrupts_module, "_MEETS_AT_ONCE", False)
    monkeypatch.setattr(interrupts_module, "_INTERPRETER", 0)
    later = object()

    assert interrupts_module.raising_at_once(later, None, raise_now=None) is later
