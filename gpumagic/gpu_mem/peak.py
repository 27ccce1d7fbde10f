"""Bounds the most that a cell had allocated at once, by two looks at the counters.

torch has one peak for each device, and resetting it would take it from the user. It
need not be reset: a new record is the cell's own, and without one the peak lies
between bounds that the other counters give.

A reset by the cell ends a stretch, within which the counters are whole. So what a cell
did is known as well as if it had left them alone, as long as somebody looks just before
and after each reset.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from gpumagic.gpu_mem.counters import from_zero
from gpumagic.gpu_mem.records import (
    PEAKS,
    SUMS,
    Peak,
    PeakKind,
    difference,
    peaks_were_reset,
    sums_were_reset,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gpumagic.gpu_mem.records import Counters

    Looks = Mapping[int, Counters]


def peak_between(before: Counters, after: Counters) -> Peak:
    """The peak of what ran between two looks at one device."""
    now, then = after.peak_bytes, before.peak_bytes
    low = _highest_seen(before, after)
    if now is None or then is None or low is None:
        return Peak(PeakKind.UNKNOWN)
    if peaks_were_reset(before, after):
        return Peak(PeakKind.SINCE_RESET, now, now)
    if after.taken_bytes is None:
        # Such an allocator is not torch's own, and its peak is only a bound.
        return _between(low, now)
    if now > then:
        return Peak(PeakKind.EXACT, now, now)
    return _between(low, min(now, _all_kept(before, after, now)))


def highest(one: Peak, other: Peak) -> Peak:
    """The peak of two stretches of one cell."""
    kinds = one.kind, other.kind
    if PeakKind.UNKNOWN in kinds:
        return Peak(PeakKind.UNKNOWN)
    low = max(one.low_bytes or 0, other.low_bytes or 0)
    if PeakKind.SINCE_RESET in kinds:
        return Peak(PeakKind.SINCE_RESET, low, low)
    return _between(low, max(one.high_bytes or 0, other.high_bytes or 0))


def peak_unseen(after: Counters) -> Peak:
    """The peak since a device's first use, if resets since then were not seen.

    Such a reset leaves no trace where there was nothing before. But memory was only
    taken from the driver for what did not fit into what there was.
    """
    low = after.peak_bytes
    sums = after.taken_bytes, after.reserved_bytes, after.flushed_bytes
    if low is None or None in sums:
        return Peak(PeakKind.UNKNOWN)
    taken, reserved, flushed = (each or 0 for each in sums)
    if sums_were_reset(from_zero(after), after):
        return Peak(PeakKind.SINCE_RESET, low, low)
    return _between(low, max(low, min(taken, reserved + flushed)))


def with_replay(
    counted: Peak, before: Counters, after: Counters, *, peak_bytes: int, end_bytes: int
) -> Peak:
    """A peak that knows each allocation, if the counters do not know it exactly."""
    if counted.kind is PeakKind.EXACT:
        return counted
    if counted.kind is PeakKind.UNKNOWN:
        return _of_host(before, after, peak_bytes, end_bytes)
    low = max(peak_bytes, _highest_seen(before, after) or 0)
    if counted.kind is PeakKind.BOUND and counted.high_bytes is not None:
        low = min(low, counted.high_bytes)
    return Peak(PeakKind.REPLAYED, low, low)


def _of_host(before: Counters, after: Counters, peak: int, end: int) -> Peak:
    """A peak where what is allocated is known by names, which may miss some of it."""
    low = _highest_seen(before, after)
    if low is None or after.allocated_bytes is None:
        return Peak(PeakKind.UNKNOWN)
    unseen = end - after.allocated_bytes
    lowest = max(low, peak - max(unseen, 0))
    highest = max(lowest, peak - min(unseen, 0))
    if lowest == highest:
        return Peak(PeakKind.REPLAYED, lowest, lowest)
    return Peak(PeakKind.BOUND, lowest, highest)


def _between(low: int, high: int) -> Peak:
    if low >= high:
        return Peak(PeakKind.EXACT, low, low)
    return Peak(PeakKind.BOUND, low, high)


def _highest_seen(before: Counters, after: Counters) -> int | None:
    if before.allocated_bytes is None or after.allocated_bytes is None:
        return None
    return max(before.allocated_bytes, after.allocated_bytes)


def _all_kept(before: Counters, after: Counters, otherwise: int) -> int:
    """What there would have been, had the cell given nothing back until its end."""
    known = (before.allocated_bytes, before.taken_bytes, after.taken_bytes)
    if None in known or sums_were_reset(before, after):
        return otherwise
    had, then, now = (each or 0 for each in known)
    return had + now - then


# ------------------------------------------------------------------ from reset to reset


class Stretches:
    """Goes on from stretch to stretch, and keeps what came of those that are over.

    Args:
        look: Reads the counters of each device in use; it does not raise.
    """

    def __init__(self, look: Callable[[], Looks]) -> None:
        self._look = look
        self._since: Looks = {}
        self._peaks: dict[int, Peak] = {}
        self._highest: dict[int, dict[str, int]] = {}
        self._lost: dict[int, dict[str, int]] = {}

    def begin(self, looks: Looks) -> None:
        """The first stretch begins with these."""
        self._since = looks

    @contextlib.contextmanager
    def over_a_reset(self) -> Iterator[None]:
        """A reset, which ends a stretch and begins the next."""
        before = self._look()
        self._peaks |= {device: self.peak(each) for device, each in before.items()}
        try:
            yield
        finally:
            self._since = self._look()
            for device, after in self._since.items():
                self._note_reset(before.get(device), after)

    def peak(self, after: Counters) -> Peak:
        """The most at once on a device until this look."""
        earlier, since = self._peaks.get(after.device), self._since.get(after.device)
        if earlier is None:
            return peak_between(since or from_zero(after), after)
        if since is None:  # it could not be asked after a reset
            return Peak(PeakKind.UNKNOWN)
        return highest(earlier, peak_between(since, after))

    def whole(self, after: Counters) -> Counters:
        """The counters as they would be, had nobody reset them."""
        highest, lost = (
            each.get(after.device, {}) for each in (self._highest, self._lost)
        )
        now = {name: getattr(after, name) for name in (*highest, *lost)}
        figures = {
            name: max(value, highest.get(name, 0)) + lost.get(name, 0)
            for name, value in now.items()
            if value is not None
        }
        return replace(after, **figures)

    def _note_reset(self, before: Counters | None, after: Counters) -> None:
        device = after.device
        if before is None:  # it could not be asked
            self._peaks[device] = Peak(PeakKind.UNKNOWN)
            return
        peaks = self._highest.setdefault(device, dict.fromkeys(PEAKS, 0))
        for name in PEAKS:
            peaks[name] = max(peaks[name], getattr(before, name) or 0)
        lost = self._lost.setdefault(device, dict.fromkeys(SUMS, 0))
        for name in SUMS:
            fall = difference(getattr(before, name), getattr(after, name))
            lost[name] += max(fall or 0, 0)
