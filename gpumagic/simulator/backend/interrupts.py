"""Ctrl-C while the simulator is on: it always arrives, and never in the wrong place.

Two places are wrong. Inside torch's C++ an exception from a signal handler ends the
process (see `guard.py`). Inside the books of the simulator, between two entries
that belong together, it would leave them wrong.

So the handler raises nothing. It is a C function without bytecode that asks the
interpreter to raise KeyboardInterrupt at the next bytecode of the main thread, which
no C++ runs. While the books are written, the address on that request is one at which
nobody lives; the request comes back as undelivered, and is sent again afterwards.
"""

from __future__ import annotations

import ctypes
import functools
import signal
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

NOBODY = 0


class Interrupts:
    """Delivers Ctrl-C to the main thread; `hold` and `deliver` go round the books.

    Attributes:
        address: Where the handler sends an interrupt; it is read at that moment.

        main: The address of the main thread.

        outcomes: For each that was sent since the last delivery, whether it arrived.
    """

    __slots__ = ("_handler", "_previous", "address", "main", "outcomes")

    def __init__(self) -> None:
        self.main = threading.main_thread().ident or NOBODY
        self.address = ctypes.c_ulong(self.main)
        self.outcomes: list[int] = []
        self._handler = functools.partial(
            _request(self.outcomes.append), self.address, KeyboardInterrupt
        )
        self._previous: Any = None

    def take_over(self) -> None:
        """Handle Ctrl-C if nobody but Python itself does; main thread only.

        To be repeated before each cell: ipykernel puts Python's handler back.
        """
        if threading.get_ident() != self.main:
            return
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._previous = signal.signal(signal.SIGINT, self._handler)

    def give_back(self) -> None:
        """Put Python's own handler back, if ours is still in place."""
        ours = signal.getsignal(signal.SIGINT) is self._handler
        if ours and threading.get_ident() == self.main:
            signal.signal(signal.SIGINT, self._previous)

    def hold(self) -> None:
        """From here on an interrupt waits."""
        self.address.value = NOBODY

    def deliver(self) -> None:
        """Interrupts arrive again, one that has waited at once."""
        self.address.value = self.main
        if self.outcomes:
            waited = NOBODY in self.outcomes
            self.outcomes.clear()
            if waited:
                self._handler(signal.SIGINT, None)


def _request(outcome: Callable[[int], object]) -> Any:
    """`PyThreadState_SetAsyncExc`, which also takes what a handler is given.

    Its result, how many threads were reached, goes to `outcome`: ctypes calls any
    callable that stands in the place of a result type.
    """
    request = ctypes.pythonapi["PyThreadState_SetAsyncExc"]
    request.argtypes = [
        ctypes.c_ulong,
        ctypes.py_object,
        ctypes.c_int,
        ctypes.py_object,
    ]
    request.restype = outcome
    return request
