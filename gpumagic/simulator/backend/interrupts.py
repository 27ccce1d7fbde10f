"""Defers handlers of signals, which may raise, to where that does no harm.

Inside torch's C++ an exception ends the process (see `registration.py`); inside the
books of the simulator, between two entries that belong together, it would leave them
wrong. So the handler that is really there raises nothing. It is a C function without
bytecode that asks the interpreter for a call between two bytecodes of the main thread,
where no C++ runs (`Py_AddPendingCall`). That call runs the user's handler; while the
books are written it is asked for again afterwards.

A main thread that waits in C comes to no bytecode: another thread looks, a moment after
each signal, whether its handler has run, and if the main thread stands where it stood,
outside of torch and of the simulator, sends the signal again for one that runs at once.
"""

from __future__ import annotations

import ctypes
import queue
import signal
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_LOOK_AFTER_S = 0.05


class Interrupts:
    """Runs the user's handlers; `held` and `deliver` go round the books.

    Code in folders that are off limits may be in C++ that must not be interrupted.
    """

    def __init__(self, off_limits: tuple[str, ...]) -> None:
        self._off_limits = off_limits
        self._noticed: queue.SimpleQueue[Any] = queue.SimpleQueue()  # of signals
        self._watching = False
        self.held = False  # whether the books are being written
        self.asked: dict[int, None] = {}  # signals that came while they were
        self._main: Any = threading.main_thread().ident
        self._get, self._set = signal.getsignal, signal.signal
        self._handlers: dict[int, _Handler] = {}

    # ------------------------------------------------------- handlers of signals

    def take_over(self) -> None:
        """Stand before each handler in Python that there is; main thread only."""
        if threading.get_ident() != self._main:
            return
        for signum in signal.valid_signals():
            there = self._get(signum)
            if callable(there) and not self._is_ours(signum, there):
                self.set(signum, there)

    def give_back(self) -> None:
        """Put the user's handlers back, wherever ours are still in place."""
        if threading.get_ident() == self._main:
            for signum, handler in self._handlers.items():
                if self._get(signum) is handler.ours:
                    self._set(signum, handler.users)
        self._watching = False
        self._noticed.put(None)

    def stand_ins(self) -> dict[str, Any]:
        """What `signal` offers, as if nobody stood before the user's handlers."""
        return {"signal": self.set, "getsignal": self.get}

    def set(self, signalnum: Any, handler: Any) -> Any:
        """`signal.signal`."""
        before = self.get(signalnum)
        if not callable(handler):
            self._set(signalnum, handler)
            return before
        if signalnum not in self._handlers:
            self._handlers[signalnum] = _Handler(self, int(signalnum), self._noticed)
        self._set(signalnum, self._handlers[signalnum].ours)
        self._handlers[signalnum].users = handler
        if not self._watching:
            self._watching = True
            threading.Thread(target=self._watch, daemon=True).start()
        return before

    def get(self, signalnum: Any) -> Any:
        """`signal.getsignal`."""
        there = self._get(signalnum)
        if self._is_ours(signalnum, there):
            return self._handlers[signalnum].users
        return there

    def _is_ours(self, signalnum: Any, there: Any) -> bool:
        handlers = self._handlers
        return signalnum in handlers and handlers[signalnum].ours is there

    # ------------------------------------------------------------ round the books

    def deliver(self) -> None:
        """Signals arrive again, one that has waited at once."""
        self.held = False
        while self.asked:
            self._handlers[self.asked.popitem()[0]].ask()

    def run(self, signum: int) -> None:
        """Run the user's handler, or remember that it is to run."""
        __tracebackhide__ = True
        if self.held:
            self.asked[signum] = None
            return
        frame: Any = sys._getframe(1)
        while frame.f_code.co_filename == __file__ and frame.f_back:
            frame = frame.f_back
        self._handlers[signum].users(signum, frame)

    # -------------------------------------------------------------- while it waits

    def _watch(self) -> None:
        pause = threading.Event()  # `time.sleep` would move the clock of the machine
        while (signum := self._noticed.get()) is not None:
            handler = self._handlers[signum]
            handler.due += 1
            stands = self._waits_in()
            pause.wait(_LOOK_AFTER_S)
            if not handler.is_due() or stands is None or stands != self._waits_in():
                continue
            handler.ours.restype = handler.at_once
            if hasattr(signal, "pthread_kill"):
                signal.pthread_kill(self._main, signum)
            else:  # Windows, which wakes the main thread of any that raises it
                signal.raise_signal(signum)
            pause.wait(_LOOK_AFTER_S)
            handler.ours.restype = handler.ask

    def _waits_in(self) -> tuple[int, int] | None:
        """Where the main thread stands, unless in torch or in the simulator."""
        frame = sys._current_frames().get(self._main)
        if self.held or frame is None:
            return None
        if frame.f_code.co_filename.startswith(self._off_limits):
            return None
        return id(frame), frame.f_lasti


class _Handler:
    """What stands before a handler; the interpreter calls it by asking its `bool`."""

    users: Callable[..., Any]

    def __init__(
        self, interrupts: Interrupts, signum: int, noticed: queue.SimpleQueue[Any]
    ) -> None:
        self._interrupts, self._signum = interrupts, signum
        self.due = 0  # how often it was asked for, as far as was noticed
        self._called = self._skipped = 0
        # ctypes calls any callable in the place of a result type, and one that checks:
        # so the signal leads without bytecode to `Py_AddPendingCall`, and that to us.
        is_true = ctypes.cast(ctypes.pythonapi["PyObject_IsTrue"], ctypes.c_void_p)
        add: Any = ctypes.pythonapi["Py_AddPendingCall"]
        add.argtypes = (ctypes.c_void_p, ctypes.py_object)
        add.restype = (signum,).__getitem__  # whose result is 0 or -1
        add.errcheck = noticed.put
        self.ask = partial(add, is_true, self)
        self.ours: Any = ctypes.pythonapi["Py_IsInitialized"]
        self.ours.argtypes = (ctypes.c_int, ctypes.py_object)
        self.ours.restype = self.ask

    def is_due(self) -> bool:
        """Whether it was asked for, and has not been called since."""
        return self._called < self.due

    def at_once(self, *_: Any) -> None:
        """In the place of the call that is due: the main thread waits."""
        __tracebackhide__ = True
        if self.is_due() and not self._skipped:
            self._skipped += 1
            self._interrupts.run(self._signum)

    def __bool__(self) -> bool:
        __tracebackhide__ = True
        self._called += 1
        if self._skipped:
            self._skipped -= 1
        else:
            self._interrupts.run(self._signum)
        return False  # whatever else would pass for an error
