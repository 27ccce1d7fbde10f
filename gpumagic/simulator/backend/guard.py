"""A device guard that no interrupt and no raising hook can turn into a crash.

torch's C++ asks a device guard written in Python for its `type()` from places that
must not throw: at every recorded operation, and around every node of a backward
pass. If an exception is pending there, or is raised there, the process ends.

Two things would do that. A hook of the user that raises leaves its exception
pending while torch unwinds through the guard. And looking up a Python method runs
signal handlers, of which the usual one raises KeyboardInterrupt.

So `type_` here is a chain of C iterators: no bytecode runs in it. It answers a
constant and, before that, moves a pending exception out of the way into a slot.
`restoring` puts it back where torch's Python side can raise it. The other half of
the cure, a signal handler that never raises, is in `interrupts.py`.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import operator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

# One backward pass unwinds through a handful of guards at once. The slots are used
# in turn and emptied at the end of the pass.
_SLOTS = 256

_Slot = tuple[ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]


class SetAside:
    """Exceptions that were pending when the guard was asked."""

    def __init__(self) -> None:
        self._slots: list[_Slot] = [
            (ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p())
            for _ in range(_SLOTS)
        ]
        self._restore = ctypes.pythonapi["PyErr_Restore"]
        self._restore.argtypes = [ctypes.c_void_p] * 3
        self._restore.restype = None

    def answering(self, constant: Any) -> Callable[[], Any]:
        """A callable without bytecode: sets a pending exception aside, answers."""
        fetch = ctypes.pythonapi["PyErr_Fetch"]
        fetch.restype = None
        targets = [tuple(map(ctypes.byref, slot)) for slot in self._slots]
        fetched = itertools.starmap(fetch, itertools.cycle(targets))
        answers = zip(itertools.repeat(constant), fetched, strict=False)
        return map(operator.itemgetter(0), answers).__next__

    def take(self) -> BaseException | None:
        """The first exception that was set aside; forgets them all."""
        found = None
        for slot in self._slots:
            if slot[0].value:
                found = found or self._raised(slot)
        return found

    def _raised(self, slot: _Slot) -> BaseException | None:
        pending = [pointer.value for pointer in slot]
        for pointer in slot:
            pointer.value = None
        try:
            self._restore(*pending)
        except BaseException as error:  # noqa: BLE001 -- it is handed to the caller
            return error
        return None


def restoring(run_backward: Callable[..., Any], set_aside: SetAside) -> Any:
    """A backward pass that raises what a hook has raised in it."""

    @functools.wraps(run_backward)
    def run(*arguments: Any, **options: Any) -> Any:
        try:
            return run_backward(*arguments, **options)
        except SystemError:  # "returned NULL without setting an exception"
            error = set_aside.take()
            if error is None:
                raise
        # Out here, so that it keeps its own cause and context.
        raise error

    return run
