"""Calls something in the main thread after a while, and leaves signals to the user."""

from __future__ import annotations

import _thread
import ctypes
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_AGAIN_S = 0.1


class Alarm:
    """Rings once, between two steps of whatever Python code the main thread runs.

    Some things can only be ended by the thread that began them, which may be deep in
    somebody's code by then. Where that waits in C, it rings when that returns; in a
    thread that is not the main one never.

    Args:
        after_s: How long after it was set.

        call: Called then; whether it could do what it was to do, else it is called
            again soon.
    """

    def __init__(self, after_s: float, call: Callable[[], bool]) -> None:
        self._after_s, self._call = after_s, call
        self._is_off = True
        self._timer: threading.Timer | None = None
        # Kept, as the interpreter has but its address.
        self._ringing = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._ring)

    def set(self) -> None:
        """From now on it runs."""
        if threading.current_thread() is threading.main_thread():
            self._is_off = False
            self._wait(self._after_s)

    def off(self) -> None:
        """It rings no more."""
        self._is_off = True
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._ask)
        self._timer.daemon = True
        self._timer.start()

    def _ask(self) -> None:
        """In the timer's thread: what is asked here, the main thread does soon."""
        if ctypes.pythonapi["Py_AddPendingCall"](self._ringing, None):
            self._wait(_AGAIN_S)  # too many others have asked

    def _ring(self, _: object) -> int:
        try:
            if not self._is_off and not self._call():
                self._wait(_AGAIN_S)
        except KeyboardInterrupt:  # it was for the code that is interrupted by this
            _thread.interrupt_main()
        return 0
