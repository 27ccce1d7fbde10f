"""What was taken and given back while a block ran, in one shape for every device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Spot(NamedTuple):
    """A line of the user's code."""

    file: str
    line: int | None


class MemoryEvent(NamedTuple):
    """A piece of memory that was taken, or given back."""

    taken: bool  # whether it was taken
    address: int  # where it lies: tells it from all others that are alive
    nbytes: int
    # the line that did it; None if it did not come from the user's code
    spot: Spot | None = None
    # whether a backward pass did it, which that line had started
    backward: bool = False


@dataclass(frozen=True)
class MemoryTrace:
    """What a recorder has seen."""

    # by device, in the order in which they happened
    events: Mapping[int, Sequence[MemoryEvent]] = field(default_factory=dict)
    # whether events are missing, since there was no room for more
    partial: bool = False
    lines: bool = False  # whether the events know their lines
    remarks: tuple[str, ...] = ()  # what a reader has to know of it, in sentences


class MemoryRecorder(Protocol):
    """Records between two calls; afterwards everything is as it was before."""

    def start(self) -> None:
        """Record from now on."""

    def stop(self) -> MemoryTrace:
        """End it, and tell what was seen; call it just once."""
