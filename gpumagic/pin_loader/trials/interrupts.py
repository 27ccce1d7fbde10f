"""Ctrl-C while worker processes are started and ended: it is kept, and comes after.

An exception between a fork and the note of its process would leave that process behind
for good: a worker ends when it is told to, or with its parent, which is a notebook.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import CodeType, FrameType


class Interrupts:
    """Keeps Ctrl-C between `hold` and `release`, from `watch` to `end`.

    In another thread than the main one, where Ctrl-C never arrives, nothing is done.

    Args:
        ending: The function that ends what must not be left. From `watch` on, an
            interrupt between a call of it and its first line is kept as well.
    """

    def __init__(self, ending: CodeType) -> None:
        self._ending = ending
        self._pid = os.getpid()
        self._previous: Any = None
        self._in_place = self._throughout = self._holding = self._patient = False
        self._kept = 0

    def watch(self) -> None:
        """Be there from now on, in the place of Python's own handler.

        Anybody else's stays, and is replaced only while interrupts are held: it may
        have to be entered directly. Interrupts are held until the first `release`.
        """
        self._holding = self._patient = True
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._throughout = self._put_in()

    def hold(self, *, patient: bool = True) -> None:
        """Keep interrupts from now on.

        Args:
            patient: Whether to keep the second one, too: what runs now ends by itself.
        """
        self._holding, self._patient = True, patient
        if not self._in_place:
            self._put_in()

    def release(self) -> None:
        """Let interrupts through again; one that was kept arrives now."""
        self._holding = False
        if not self._throughout:
            self._take_out()
        self._deliver()

    def end(self) -> None:
        """The handler is what it was; an interrupt that was kept arrives now."""
        self._take_out()
        self._holding = self._throughout = False
        self._deliver()

    def _put_in(self) -> bool:
        previous = signal.getsignal(signal.SIGINT)
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or not callable(previous):
            return False
        self._previous = previous
        self._in_place = True
        signal.signal(signal.SIGINT, self._handle)
        return True

    def _take_out(self) -> None:
        if self._in_place:
            signal.signal(signal.SIGINT, self._previous)
            self._in_place = False

    def _deliver(self) -> None:
        if self._kept:
            self._kept = 0
            signal.raise_signal(signal.SIGINT)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            return  # a forked worker: its parent is going to end it
        if self._holding or (frame is not None and frame.f_code is self._ending):
            self._kept += 1
            if self._patient or self._kept == 1 or not self._holding:
                return
            self._kept = 0
        self._previous(number, frame)
