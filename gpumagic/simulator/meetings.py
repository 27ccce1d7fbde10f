"""Which collectives this process has called, and which one its host waits in."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


class GroupCall(NamedTuple):
    """A collective that this process has called."""

    group: str  # what torch calls the group
    number: int  # how many the group had called before
    name: str  # as torch's function is called
    nbytes: int  # what it moves

    def __str__(self) -> str:
        return f"{self.name} of {self.nbytes} bytes"


class CollectiveCall(NamedTuple):
    """One collective, as this process took part in it."""

    group: str  # the name that torch has for the group
    number: int  # how many the group had called before
    name: str  # of the kernel
    nbytes: int  # what it moved: the tensor that is reduced or sent, or all parts
    called_ns: int  # when the host called it
    ranks: tuple[int, ...]
    algorithm: str  # which way it went
    start_ns: int  # when this GPU came to it
    end_ns: int  # when it ended for all


class Roll:
    """What all groups of a process share: which collectives it has called.

    Other threads look at it while the host waits: whatever they read was put there at
    once, without a lock.
    """

    def __init__(self, host: int) -> None:
        self.host = host  # which node this process is on
        self.calls: list[CollectiveCall] = []
        self.last: dict[str, GroupCall] = {}  # by group
        # what the host waits in, or waited in last if Ctrl-C has ended that
        self.under_way: GroupCall | None = None

    def called(self, call: GroupCall) -> None:
        """A collective is called; all members do so in the same order."""
        self.last[call.group] = call
        self.under_way = None

    @contextlib.contextmanager
    def waiting(self, call: GroupCall) -> Iterator[None]:
        """The host waits in a collective during the block."""
        self.under_way = call
        try:
            yield
        except Exception:
            self.under_way = None
            raise
        self.under_way = None
