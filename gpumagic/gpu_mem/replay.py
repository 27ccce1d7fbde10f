"""The course of what was allocated, from each piece that was taken and given back."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumagic.devices.memory_events import MemoryEvent


class Replayed(NamedTuple):
    """What came of it.

    Attributes:
        peak_bytes: The most that was allocated at once.

        end_bytes: What was allocated in the end.

        before_peak: How many events there were up to the peak, first to reach it;
            none if there was never more than at the beginning.
    """

    peak_bytes: int
    end_bytes: int
    before_peak: int


def replay(events: Sequence[MemoryEvent], allocated_bytes: int) -> Replayed:
    """Go through what happened.

    Args:
        events: Of one device, in their order.

        allocated_bytes: What was allocated before the first of them.
    """
    now = peak = allocated_bytes
    before_peak = 0
    for number, event in enumerate(events, 1):
        now += event.nbytes if event.taken else -event.nbytes
        if now > peak:
            peak, before_peak = now, number
    return Replayed(peak, now, before_peak)


def alive_after(events: Sequence[MemoryEvent], count: int) -> tuple[MemoryEvent, ...]:
    """Those of the first events that took what was still there after all of them."""
    alive: dict[int, MemoryEvent] = {}
    for event in events[:count]:
        if event.taken:
            alive[event.address] = event
        else:
            alive.pop(event.address, None)
    return tuple(alive.values())
