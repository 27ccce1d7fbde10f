"""Runs handlers of signals while the simulator is on: always, never in a wrong place.

A handler may raise: Ctrl-C's does, and that of a time limit. Two places are wrong for
that. Inside torch's C++ an exception ends the process (see `registration.py`). Inside
the books of the simulator, between two entries that belong together, it would leave
them wrong.

So the handler that is really there does nothing of it. It is a C function without
bytecode that asks the interpreter for a call between two bytecodes of the main thread,
which no C++ runs (`Py_AddPendingCall`). That call runs the user's handler, and what it
raises is raised there. While the books are written it only stays asked for, and is
asked for again afterwards. Who sets a handler, or asks for it, notices nothing of this:
`signal.signal` and `signal.getsignal` have stand-ins.

A thread that waits comes to no bytecode: after a signal whose handler raises nothing,
Python goes on waiting. So another thread looks, a moment after each signal, whether
its handler has run. If not, and the main thread still stands at the same instruction,
outside of torch and of the simulator, then it waits in C that can bear a handler that
raises.

Since 3.13 the interpreter first reads what there is to do and then runs the handler of
a signal: what that asks for is done at the next place where it looks. This is one too
late: of `try: wait() finally: tidy()` the wait is over by then, and `tidy` is what is
interrupted. `threading` lets its locks go twice that way, and blocks are left without
their `__exit__`.

So where the interpreter itself runs the handler, between two instructions, the user's
is run at once. That can be told, still without bytecode: the interpreter takes the mark
of a pending signal away before it runs handlers. C code that runs them, such as
torch's, leaves it there. The mark is read out of CPython's thread state by its offset
(`_marks_of_this_thread`), on 3.13 and later alone, and never written. Where the state
is laid out in another way, nothing is read and all is asked for.
"""

from __future__ import annotations

import ctypes
import operator
import queue
import signal
import sys
import threading
import time
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_LOOK_AFTER_S = 0.05
_COME_AFTER_S = 0.001
_MEETS_AT_ONCE = sys.version_info < (3, 13)
_POINTER_BYTES = ctypes.sizeof(ctypes.c_void_p)
# Where `PyThreadState` (cpython/pystate.h) has its interpreter, and then the marks.
_INTERPRETER, _MARKS = 2 * _POINTER_BYTES, 3 * _POINTER_BYTES
_SIGNAL_PENDING = 1 << 1  # pycore_ceval.h


class Interrupts:
    """Runs the user's handlers; `hold` and `deliver` go round the books.

    Attributes:
        held: Whether the books are being written.

        asked: The signals that have come and whose handler has not run yet.

    Args:
        off_limits: Folders whose code may be in C++ that must not be interrupted.
    """

    __slots__ = (
        "_get",
        "_main",
        "_noticed",
        "_off_limits",
        "_ours",
        "_set",
        "_users",
        "_watching",
        "_ways",
        "asked",
        "held",
    )

    def __init__(self, off_limits: tuple[str, ...]) -> None:
        self.held = False
        self.asked: dict[int, object] = {}
        self._main: Any = threading.main_thread().ident
        self._off_limits = off_limits
        self._get, self._set = signal.getsignal, signal.signal
        self._users: dict[int, Callable[..., Any]] = {}
        self._ours: dict[int, Any] = {}
        self._ways: dict[int, list[Any]] = {}
        self._noticed: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._watching = False

    # ------------------------------------------------------- handlers of signals

    def take_over(self) -> None:
        """Stand before each handler in Python that there is; main thread only."""
        if threading.get_ident() != self._main:
            return
        for signum in signal.valid_signals():
            there = self._get(signum)
            if callable(there) and there is not self._ours.get(signum):
                self.set(signum, there)

    def give_back(self) -> None:
        """Put the user's handlers back, wherever ours are still in place."""
        if threading.get_ident() == self._main:
            for signum, ours in self._ours.items():
                if self._get(signum) is ours:
                    self._set(signum, self._users[signum])
        if self._watching:
            self._noticed.put(self)
            self._watching = False

    def stand_ins(self) -> dict[str, Any]:
        """What `signal` offers, as if nobody stood before the user's handlers."""
        return {"signal": self.set, "getsignal": self.get}

    def set(self, signalnum: Any, handler: Any) -> Any:
        """`signal.signal`."""
        before = self.get(signalnum)
        if not callable(handler):
            self._set(signalnum, handler)
            return before
        ours = self._ours.get(signalnum) or self._make(int(signalnum))
        self._set(signalnum, ours)
        self._users[signalnum] = handler
        if not self._watching:
            self._watching = True
            threading.Thread(
                target=self._watch, name="gpumagic-signals", daemon=True
            ).start()
        return before

    def get(self, signalnum: Any) -> Any:
        """`signal.getsignal`."""
        there = self._get(signalnum)
        ours = self._ours.get(signalnum)
        return there if ours is None or there is not ours else self._users[signalnum]

    def _make(self, signum: int) -> Any:
        """A handler without bytecode, for one signal."""
        is_true = ctypes.cast(ctypes.pythonapi["PyObject_IsTrue"], ctypes.c_void_p)
        ask: Any = ctypes.pythonapi["Py_AddPendingCall"]
        ask.argtypes = (ctypes.c_void_p, ctypes.py_object)
        # ctypes calls any callable that stands in the place of a result type.
        ask.restype = partial(operator.setitem, self.asked, signum)
        ask.errcheck = self._noticed.put
        later, at_once = partial(ask, is_true, _Asked(self)), partial(self.run, signum)
        self._ways[signum] = ways = [later, at_once]
        steps = map(operator.call, map(ways.__getitem__, _runs_at_once()))
        ours = self._ours[signum] = _calling_next(steps)
        return ours

    # ------------------------------------------------------------ round the books

    def hold(self) -> None:
        """From here on a signal waits."""
        self.held = True

    def deliver(self) -> None:
        """Signals arrive again, one that has waited at once."""
        self.held = False
        for signum in tuple(self.asked):
            self._ways[signum][0]()

    def run(self, signum: int) -> None:
        """Run the user's handler, or ask for it if the books are being written."""
        __tracebackhide__ = True
        self.asked[signum] = None
        if not self.held:
            self.run_asked()

    def run_asked(self) -> None:
        """Run the handlers of what has come, also while the books are held."""
        __tracebackhide__ = True
        if not self.asked or threading.get_ident() != self._main:
            return
        frame = sys._getframe(1)
        while frame.f_code.co_filename == __file__ and frame.f_back:
            frame = frame.f_back
        while self.asked:
            signum, _ = self.asked.popitem()
            self._users[signum](signum, frame)

    # -------------------------------------------------------------- while it waits

    def _watch(self) -> None:
        while self._noticed.get() is not self:
            before = self._standing()
            time.sleep(_LOOK_AFTER_S)
            for signum in tuple(self.asked):
                if before == self._standing() and self._is_elsewhere():
                    self._strike(signum)

    def _strike(self, signum: int) -> None:
        """Send a signal once more, whose handler then runs, unless it has meanwhile."""
        ways = self._ways[signum]
        before = ways[:]
        ways[:] = [self.run_asked] * len(ways)
        if hasattr(signal, "pthread_kill"):
            signal.pthread_kill(self._main, signum)
        else:  # Windows, which wakes the main thread of any that raises it
            signal.raise_signal(signum)
        while signum in self.asked and self._get(signum) is self._ours[signum]:
            time.sleep(_COME_AFTER_S)
        ways[:] = before

    def _standing(self) -> tuple[int, int]:
        """Where the main thread stands: its frame and the instruction in it."""
        frame = sys._current_frames().get(self._main)
        return (id(frame), frame.f_lasti) if frame else (0, 0)

    def _is_elsewhere(self) -> bool:
        """Whether that is neither in torch nor in the simulator."""
        frame = sys._current_frames().get(self._main)
        if frame is None:
            return False
        return not frame.f_code.co_filename.startswith(self._off_limits)


class _Asked:
    """What the interpreter calls: of C functions only one that asks `bool` fits."""

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts

    def __bool__(self) -> bool:
        __tracebackhide__ = True
        if not self._interrupts.held:
            self._interrupts.run_asked()
        return False  # whatever else would pass for an error


def _runs_at_once() -> Any:
    """At each signal whether the interpreter runs its handler, between instructions.

    Always no where what is asked for comes at once anyway.
    """
    marks = _marks_of_this_thread()
    if marks is None:
        return repeat(False)
    value = operator.attrgetter("value")
    pending = map(operator.and_, map(value, repeat(marks)), repeat(_SIGNAL_PENDING))
    return map(operator.not_, pending)


def _marks_of_this_thread() -> Any | None:
    """What the interpreter has to do for this thread; None where that is no matter."""
    if _MEETS_AT_ONCE or sys.implementation.name != "cpython":
        return None
    api = ctypes.pythonapi
    state_of = api["PyThreadState_Get"]
    state_of.restype = ctypes.c_void_p
    state = state_of()
    interpreter_of = api["PyThreadState_GetInterpreter"]
    interpreter_of.argtypes, interpreter_of.restype = (
        (ctypes.c_void_p,),
        ctypes.c_void_p,
    )
    found = ctypes.c_void_p.from_address(state + _INTERPRETER).value
    if found != interpreter_of(state):  # it is laid out in another way
        return None
    return ctypes.c_size_t.from_address(state + _MARKS)


def _calling_next(steps: Any) -> Any:
    """A C function that takes what a handler is given, and calls the next step.

    ctypes calls whatever stands in the place of a result type, with the result, which
    is what `next` gives where there is no step any more: never.
    """
    nothing = ctypes.pythonapi["Py_IsInitialized"]
    nothing.argtypes = (ctypes.c_int, ctypes.py_object)
    nothing.restype = partial(next, steps)
    return nothing
