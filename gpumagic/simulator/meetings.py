"""Which collectives this process has called, and which one its host waits in."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


class GroupCall(NamedTuple):
    """A collective that this process has called."""

    group: str  # what torch calls the group
    number: int  # how many the group had called before, and this one
    name: str  # as torch's function is called
    nbytes: int  # what it moves

    def __str__(self) -> str:
        return f"{self.name} of {self.nbytes} bytes"


class Wait(NamedTuple):
    """What the host waits in, and since when by `time.monotonic`."""

    call: GroupCall
    since_s: float


class CollectiveCall(NamedTuple):
    """One collective, as this process took part in it."""

    group: str  # the name that torch has for the group
    number: int  # how many the group had called before, and this one
    name: str  # of the kernel
    nbytes: int  # what it moved: the tensor that is reduced or sent, or all parts
    called_ns: int  # when the host called it
    ranks: tuple[int, ...]
    algorithm: str  # which way it went
    start_ns: int  # when this GPU came to it
    end_ns: int  # when it ended for all


class Roll:
    """Which collectives this process has called, and which its host waits in.

    Other threads look at it while the host waits: whatever they read was put there at
    once, without a lock.
    """

    def __init__(self) -> None:
        self.last: dict[str, GroupCall] = {}  # by group
        self.wait: Wait | None = None
        # what it last waited in, if Ctrl-C has ended that and nothing was called since
        self.broken_off: GroupCall | None = None

    def called(self, call: GroupCall) -> None:
        """A collective is called; all members do so in the same order."""
        self.last[call.group] = call
        self.broken_off = None

    @contextlib.contextmanager
    def waiting(self, call: GroupCall) -> Iterator[None]:
        """The host waits in a collective during the block."""
        self.wait = Wait(call, time.monotonic())
        try:
            yield
        except KeyboardInterrupt:
            self.broken_off = call
            raise
        finally:
            self.wait = None
