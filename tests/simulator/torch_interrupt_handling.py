"""Ctrl-C outside of torch's work, and the handler of signals that comes and goes."""

from __future__ import annotations

import signal
import threading
import time

import pytest
import torch

import gpumagic

WAIT_S = 120


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


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="Windows has no SIGALRM")
@pytest.mark.usefixtures("box")
def test_a_time_limit_ends_a_wait():
    """A handler in Python that raises ends `time.sleep`, and gets the line's frame."""
    given = []

    def time_is_up(signum, frame):
        given.extend((signum, frame.f_code.co_filename))
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, time_is_up)
    start = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(TimeoutError):
            threading.Event().wait(WAIT_S)
    finally:
        signal.signal(signal.SIGALRM, before)

    assert given == [signal.SIGALRM, threading.__file__]
    assert time.monotonic() - start < WAIT_S


def test_the_handler_that_is_asked_for_is_the_users():
    """`signal.getsignal` says what it said before, with the simulator on and off."""
    before = signal.getsignal(signal.SIGINT)
    for _ in range(2):
        with gpumagic.simulate("h100"):
            assert signal.getsignal(signal.SIGINT) is before

        assert signal.getsignal(signal.SIGINT) is before
