"""Lets time pass for a host that polls or sleeps: nothing else would move its clock.

The machine's clock knows what calls cost and what `time.sleep` was asked for, and so
is the same in every run. What else a loop may do between two questions takes no time
on it: a loop that awaits `asyncio.sleep`, or has imported `sleep` beforehand, would
ask for hours of ours. So who has asked in vain several times, with a pause of the
host before each and nothing simulated in between, waits by this machine's own clock
from then on; only then a time differs from run to run.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.simulator.backend.simulation import Simulation

_PAUSE_NS = 500_000  # a loop that only asks comes back much sooner
_IN_VAIN = 8  # a busy machine pauses a loop now and then, but not so often in a row


class _Asked(threading.local):
    """What a thread found when it last asked: its clocks then, and how often."""

    ever = False
    simulated_ns = -1
    real_ns = 0
    pauses = 0


class Polling:
    """Asks for a program of the user's whether something is done."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._asked = _Asked()

    def ask(self, is_done: Callable[[], bool], cost_ns: int) -> bool:
        """Whether something is done, after what the question costs the host.

        To be called with the books held.
        """
        scheduler, asked = self._simulation.machine.scheduler, self._asked
        if not is_done():
            passed_ns = time.perf_counter_ns() - asked.real_ns
            paused = asked.simulated_ns == scheduler.now_ns and passed_ns > _PAUSE_NS
            asked.pauses = asked.pauses + 1 if paused else 0
            if asked.pauses >= _IN_VAIN:
                scheduler.elapse(passed_ns)
        scheduler.elapse(cost_ns)
        done = is_done()
        asked.ever = True
        asked.simulated_ns = -1 if done else scheduler.now_ns
        asked.real_ns = time.perf_counter_ns()
        return done

    def sleep(self) -> Callable[[float], None]:
        """`time.sleep`, which passes on the machine's clock as well.

        It does for the main thread, and for those that have polled: what a thread
        of somebody else's sleeps is no wait for the machine.
        """
        sleep, simulation, asked = time.sleep, self._simulation, self._asked

        def sleeping(seconds: float, /) -> None:
            __tracebackhide__ = True
            main = threading.current_thread() is threading.main_thread()
            began_ns = simulation.machine.scheduler.now_ns
            if seconds > 0:  # on a lock, which signals end
                threading.Event().wait(seconds)
            else:
                sleep(seconds)
            if simulation.on and (main or asked.ever):
                with simulation.books():
                    # Others may have moved the clock: all sleep at the same time.
                    scheduler = simulation.machine.scheduler
                    until_ns = began_ns + round(float(seconds) * 1e9)
                    scheduler.elapse(max(0, until_ns - scheduler.now_ns))

        return sleeping
