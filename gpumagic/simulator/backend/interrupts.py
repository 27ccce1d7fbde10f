"""Delivers Ctrl-C while the simulator is on: always, and never in the wrong place.

Two places are wrong. Inside torch's C++ an exception from a signal handler ends the
process (see `registration.py`). Inside the books of the simulator, between two entries
that belong together, it would leave them wrong.

So the handler raises nothing. It is a C function without bytecode that asks the
interpreter to raise KeyboardInterrupt at the next bytecode of the main thread, which
no C++ runs, but for Pythons where that would be one too late (below). While the
books are written, the address on that request is one at which nobody lives; the
request comes back as undelivered, and is sent again afterwards.

A request for KeyboardInterrupt is met at the next bytecode, and a thread that waits
comes to none: after a signal whose handler raises nothing, Python goes on waiting. So
another thread looks, a moment after each Ctrl-C, whether the request was met. If it
was not, and the main thread still stands at the same instruction, outside of torch
and of the simulator, then it waits in C that can bear a handler that raises.

Since 3.13 the interpreter first reads what there is to do and then runs the handler of
a signal: what that requests is met at the next place where it looks. This is one too
late: of `try: wait() finally: tidy()` the wait is over by then, and `tidy` is what is
interrupted. `threading` lets its locks go twice that way, and blocks are left without
their `__exit__`.

So where the interpreter itself runs the handler, between two instructions, the handler
raises, as Python's own does. It can tell, still without bytecode: the interpreter takes
the mark of a pending signal away before it runs handlers. C code that runs them, such
as torch's, leaves it there.

That mark is read out of CPython's thread state by its offset (`_marks_of_this_thread`),
on 3.13 and later alone, and never written. A handler that only noted the signal, for a
kernel of ours to deliver when it leaves, could not do without: torch's C++ runs
handlers between kernels as well, and code of the user's that calls none would be
interrupted an instruction late, as `torch_interrupt_handling.py` says it must not be.
Where the state is laid out in another way, nothing is read and all is requested.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import operator
import queue
import signal
import sys
import threading
import time
from functools import partial
from itertools import repeat
from typing import Any

NOBODY = 0
_SIGNAL = 1
_RAISE: Any = signal.default_int_handler  # takes whatever comes for a frame
_LOOK_AFTER_S = 0.05
_COME_AFTER_S = 0.001
_MEETS_AT_ONCE = sys.version_info < (3, 13)
_POINTER_BYTES = ctypes.sizeof(ctypes.c_void_p)
# Where `PyThreadState` (cpython/pystate.h) has its interpreter, and then the marks.
_INTERPRETER, _MARKS = 2 * _POINTER_BYTES, 3 * _POINTER_BYTES
_SIGNAL_PENDING = 1 << 1  # pycore_ceval.h


class Interrupts:
    """Delivers Ctrl-C to the main thread; `hold` and `deliver` go round the books.

    Attributes:
        address: Where the handler sends a request; it is read at that moment.

        main: The address of the main thread.

        outcomes: For each request whether it arrived; empty once it is met.

        to_come: Empty once the signal of `raise_unmet` has come.

    Args:
        off_limits: Folders whose code may be in C++ that must not be interrupted.
    """

    __slots__ = (
        "_handler",
        "_kind",
        "_off_limits",
        "_previous",
        "_request",
        "_requests",
        "_watch",
        "_what",
        "address",
        "main",
        "outcomes",
        "to_come",
    )

    def __init__(self, off_limits: tuple[str, ...]) -> None:
        self.main = threading.main_thread().ident or NOBODY
        self.address = ctypes.c_ulong(self.main)
        self.outcomes: list[int] = []
        self.to_come: list[int] = []
        # Making one of these, when it is raised, says that the request was met; by a
        # C function, since no bytecode of ours may run between.
        self._kind = type(
            "KeyboardInterrupt",
            (KeyboardInterrupt,),
            {"__init__": self.outcomes.clear, "__module__": "builtins"},
        )
        self._what = ctypes.c_void_p(id(self._kind))
        self._request = _request()
        self._requests = functools.partial(self._request, self.address, self._what)
        self._handler: Any = self._requests
        self._off_limits = off_limits
        self._watch: Watch | None = None
        self._previous: Any = None
        self.request_again()

    def take_over(self) -> None:
        """Handle Ctrl-C if nobody but Python itself does; main thread only.

        To be repeated before each cell: ipykernel puts Python's handler back.
        """
        if threading.get_ident() != self.main:
            return
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            if self._watch is None:
                self._watch = Watch(self, self._off_limits)
                self._request.errcheck = self._watch.notice
                self._handler = raising_at_once(
                    self._requests,
                    self.address,
                    self.outcomes,
                    self.to_come,
                    raise_now=_RAISE,
                )
            self._previous = signal.signal(signal.SIGINT, self._handler)

    def give_back(self) -> None:
        """Put Python's own handler back, if ours is still in place."""
        if self.are_ours() and threading.get_ident() == self.main:
            signal.signal(signal.SIGINT, self._previous)
        if self._watch is not None:
            self._watch.end()
            self._watch = None

    def are_ours(self) -> bool:
        """Whether Ctrl-C still comes here: anybody may set a handler of their own."""
        return signal.getsignal(signal.SIGINT) is self._handler

    def hold(self) -> None:
        """From here on an interrupt waits."""
        self.address.value = NOBODY

    def deliver(self) -> None:
        """Interrupts arrive again, one that has waited at once."""
        self.address.value = self.main
        if NOBODY in self.outcomes:
            self.outcomes.clear()
            self._requests(signal.SIGINT, None)

    def raise_asked(self) -> None:
        """Meet a request now, in a place that waits while the books are held."""
        if self.outcomes:
            raise self._kind

    def raise_unmet(self) -> None:
        """At the next signal the handler takes a request back and raises by itself.

        If the request has been met by then, it does neither: whoever pressed Ctrl-C
        once is interrupted once. `sum` goes through all this when it is called.
        """
        self.to_come.append(_SIGNAL)
        arriving = iter(self.to_come.pop, _SIGNAL)
        unmet = map(_RAISE, itertools.repeat(signal.SIGINT), self.outcomes)
        self._what.value = None
        self._request.restype = functools.partial(sum, itertools.chain(arriving, unmet))

    def request_again(self) -> None:
        """Let the handler request, as it does from the beginning."""
        self.outcomes.clear()
        self.to_come.clear()
        self._what.value = id(self._kind)
        self._request.restype = self.outcomes.append


def _request() -> Any:
    """`PyThreadState_SetAsyncExc`, which also takes what a handler is given.

    Its result, how many threads were reached, goes to `restype`: ctypes calls any
    callable that stands in the place of a result type. Then `errcheck` is called.
    """
    request = ctypes.pythonapi["PyThreadState_SetAsyncExc"]
    request.argtypes = [
        ctypes.c_ulong,
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.py_object,
    ]
    return request


class Watch:
    """A thread that wakes at a Ctrl-C, and at nothing else.

    Attributes:
        notice: Tells it of a Ctrl-C; a C function, as the handler may call no other.
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


def raising_at_once(
    later: Any, delivered: Any, *unmet: list[int], raise_now: Any
) -> Any:
    """A handler that raises where the interpreter runs it; elsewhere it requests.

    Args:
        later: What requests; called with a signal and None.

        delivered: Has a `value` that is 0 while nothing may be raised.

        unmet: Requests that are under way, which are to be met first.

        raise_now: What raises, called like `later`.

    Returns:
        A C function without bytecode; `later` itself where requests are met at once.
    """
    marks = _marks_of_this_thread()
    if marks is None:
        return later
    value = operator.attrgetter("value")
    pending = map(operator.and_, map(value, repeat(marks)), repeat(_SIGNAL_PENDING))
    allowed = map(value, repeat(delivered))
    conditions = (pending, *(map(len, repeat(each)) for each in unmet))
    none = (map(operator.not_, each) for each in conditions)
    raises = map(all, zip(allowed, *none, strict=False))
    ways = tuple(partial(way, signal.SIGINT, None) for way in (later, raise_now))
    return _calling_next(map(operator.call, map(ways.__getitem__, raises)))


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
