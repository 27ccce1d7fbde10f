"""Ctrl-C while the main thread waits outside of torch: in `time.sleep`, for a lock.

A request for KeyboardInterrupt is met at the next bytecode, and a thread that waits
comes to none: after a signal whose handler raises nothing, Python goes on waiting. So
another thread looks, a moment after each Ctrl-C, whether the request was met. If it
was not, and the main thread still stands at the same instruction, outside of torch
and of the simulator, then it waits in C that can bear a handler that raises.
"""

from __future__ import annotations

import queue
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpumagic.simulator.backend.interrupts import Interrupts

_LOOK_AFTER_S = 0.05
_COME_AFTER_S = 0.001


class Watch:
    """A thread that wakes at a Ctrl-C, and at nothing else.

    Attributes:
        notice: Tells it of a Ctrl-C; a C function, as the handler may call no other.

    Args:
        interrupts: What the main thread is to be interrupted with.

        off_limits: Folders whose code may be in C++ that must not be interrupted.
    """

    def __init__(self, interrupts: Interrupts, off_limits: tuple[str, ...]) -> None:
        self._interrupts = interrupts
        self._off_limits = off_limits
        self._noticed: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.notice = self._noticed.put
        threading.Thread(target=self._look, name="gpumagic-ctrl-c", daemon=True).start()

    def end(self) -> None:
        """Let the thread end."""
        self._noticed.put(self)

    def _look(self) -> None:
        while self._noticed.get() is not self:
            before = self._standing()
            time.sleep(_LOOK_AFTER_S)
            stuck = self._interrupts.outcomes and before == self._standing()
            if stuck and self._is_elsewhere():
                self._strike()

    def _strike(self) -> None:
        self._interrupts.raise_unmet()
        signal.pthread_kill(self._interrupts.main, signal.SIGINT)
        while self._interrupts.to_come and self._interrupts.are_ours():
            time.sleep(_COME_AFTER_S)
        self._interrupts.request_again()

    def _standing(self) -> tuple[int, int]:
        """Where the main thread stands: its frame and the instruction in it."""
        frame = sys._current_frames().get(self._interrupts.main)
        return (id(frame), frame.f_lasti) if frame else (0, 0)

    def _is_elsewhere(self) -> bool:
        """Whether that is neither in torch nor in the simulator."""
        frame = sys._current_frames().get(self._interrupts.main)
        if frame is None:
            return False
        return not frame.f_code.co_filename.startswith(self._off_limits)
