"""An alarm rings in the main thread, in the middle of what that does."""

from __future__ import annotations

import signal
import threading
import time

from gpumagic.devices.waiting import Alarm

PATIENCE_S = 30


def until(rung):
    """Compute, as a user's code does, until something has come."""
    until_s = time.monotonic() + PATIENCE_S
    while not rung and time.monotonic() < until_s:
        sum(range(1000))


def test_it_rings_once_in_the_main_thread():
    """What only that thread may end can be ended while its code goes on."""
    rung = []

    alarm = Alarm(0.01, lambda: not rung.append(threading.current_thread()))
    alarm.set()
    until(rung)
    sum(range(1_000_000))  # time enough for a second one

    assert rung == [threading.main_thread()]


def test_signals_are_as_they_were():
    """Those that somebody uses are left alone, and the one that it took is free."""
    mine = []
    last = signal.SIGRTMAX - 1
    signal.signal(last, lambda *_: mine.append(1))
    before = {each: signal.getsignal(each) for each in signal.valid_signals()}
    rung = []
    for after_s in (0.01, 60):
        alarm = Alarm(after_s, lambda: not rung.append(1))
        alarm.set()
        until(rung)
        alarm.off()
    after = {each: signal.getsignal(each) for each in signal.valid_signals()}
    signal.signal(last, signal.SIG_DFL)

    assert after == before
    assert (rung, mine) == ([1], [])
