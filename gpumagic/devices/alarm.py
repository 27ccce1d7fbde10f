"""Calls something in the main thread after a while, in the middle of what that does."""

from __future__ import annotations

import _thread
import signal
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_AGAIN_S = 0.1


class Alarm:
    """Rings once, between two steps of whatever Python code the main thread runs."""

    def __init__(self, after_s: float, call: Callable[[], bool]) -> None:
        self._after_s, self._call = after_s, call
        self._signal: Any = None  # its number
        self._timer: threading.Timer | None = None

    def set(self) -> None:
        """From now on it runs."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._signal = next(_unused(), None)
        if self._signal is not None:
            signal.signal(self._signal, self._ring)
            self._wait(self._after_s)

    def off(self) -> None:
        """It rings no more, and the signal is as it was."""
        if self._timer is not None:
            self._timer.cancel()
        number, self._signal = self._signal, None
        if number is not None and signal.getsignal(number) == self._ring:
            # One that is on its way is heard first: `signal` sees to that.
            signal.signal(number, signal.SIG_DFL)

    def _wait(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._ask)
        self._timer.daemon, self._timer.name = True, "gpumagic-alarm"
        self._timer.start()

    def _ask(self) -> None:
        number = self._signal
        if number is not None:
            _thread.interrupt_main(number)

    def _ring(self, *_: Any) -> None:
        if self._signal is None:
            return
        if self._call():
            self.off()
        else:
            self._wait(_AGAIN_S)


def _unused() -> Iterator[int]:
    """Signals that nobody listens to, and that nobody is likely to send."""
    last = getattr(signal, "SIGRTMAX", 0)
    found = [*range(last - 1, getattr(signal, "SIGRTMIN", last), -1)]
    found.append(getattr(signal, "SIGURG", 0))
    return (each for each in found if each and signal.getsignal(each) == signal.SIG_DFL)
