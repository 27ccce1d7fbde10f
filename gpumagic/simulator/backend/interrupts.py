"""Ctrl-C while the simulator is on: it always arrives, and never in the wrong place.

Two places are wrong. Inside torch's C++ an exception from a signal handler ends the
process (see `guard.py`). Inside the books of the simulator, between two entries
that belong together, it would leave them wrong.

So the handler raises nothing. It is a C function without bytecode that asks the
interpreter to raise KeyboardInterrupt at the next bytecode of the main thread, which
no C++ runs; see `at_once.py` for Pythons where that would be one too late. While the
books are written, the address on that request is one at which nobody lives; the
request comes back as undelivered, and is sent again afterwards.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import signal
import threading
from typing import Any

from gpumagic.simulator.backend.at_once import raising_at_once
from gpumagic.simulator.backend.waiting import Watch

NOBODY = 0
_SIGNAL = 1
_RAISE: Any = signal.default_int_handler  # takes whatever comes for a frame


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
