"""What the allocator counts, what a cell changed of it, and how well that is known."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gpumagic.gpu_mem.resets import sums_were_reset
from gpumagic.report.record import Record


@dataclass(frozen=True)
class Counters(Record):
    """The caching allocator's own counters of one device, at one moment.

    None is a counter that this allocator does not keep. On the CPU `allocated_bytes`
    is what the notebook's names hold, and the others are None.

    Attributes:
        allocated_bytes: Handed out to tensors, as the allocator rounds.

        reserved_bytes: Taken from the driver.

        active_bytes: Handed out, or given back and still awaited by another stream.

        requested_bytes: What the callers asked for.

        peak_bytes: The most of `allocated_bytes` since somebody reset the peaks.

        taken_bytes: Handed out altogether, since somebody reset the sums.

        given_back_bytes: Given back altogether.

        taken: How often memory was handed out.

        retries: How often the driver had none, so that the cache was emptied.

        ooms: How often that did not help either.

        stream_waits: How often all streams were waited for to free memory.

        driver_calls: How often the driver was asked for memory, or given it back.

        flushed_bytes: Given back to the driver altogether.

        stuck_bytes: Free parts of segments that are in use (not expandable ones).
    """

    device: int
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    active_bytes: int | None = None
    requested_bytes: int | None = None
    peak_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    taken_bytes: int | None = None
    given_back_bytes: int | None = None
    taken: int | None = None
    retries: int | None = None
    ooms: int | None = None
    stream_waits: int | None = None
    driver_calls: int | None = None
    flushed_bytes: int | None = None
    stuck_bytes: int | None = None

    @property
    def pending_bytes(self) -> int | None:
        """Given back, but awaited by another stream."""
        return difference(self.active_bytes, self.allocated_bytes)

    @property
    def rounding_bytes(self) -> int | None:
        """Handed out beyond what was asked for."""
        return difference(self.active_bytes, self.requested_bytes)


class PeakKind(enum.Enum):
    """How well the peak of a cell is known."""

    EXACT = "exact"
    BOUND = "between two bounds"
    SINCE_RESET = "since the cell itself reset the peaks"
    REPLAYED = "replayed from each allocation"  # as requested, without rounding
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Peak(Record):
    """The most that was allocated at once while a cell ran."""

    kind: PeakKind
    low_bytes: int | None = None
    high_bytes: int | None = None  # the same as `low_bytes` where it is exact


@dataclass(frozen=True)
class DeviceChange(Record):
    """What a cell did to the memory of one device.

    Attributes:
        before: The counters before it.

        after: And afterwards, as they would be had the cell not reset any.

        peak: The most at once in between.
    """

    before: Counters
    after: Counters
    peak: Peak

    @property
    def device(self) -> int:
        """Its number."""
        return self.after.device

    @property
    def allocated_delta(self) -> int | None:
        """How much more is allocated; negative is less."""
        return difference(self.after.allocated_bytes, self.before.allocated_bytes)

    @property
    def reserved_delta(self) -> int | None:
        """How much more is taken from the driver."""
        return difference(self.after.reserved_bytes, self.before.reserved_bytes)

    @property
    def gross_bytes(self) -> int | None:
        """All that was handed out in between, however soon it came back.

        None where somebody has reset the sums in between, unseen.
        """
        if sums_were_reset(self.before, self.after):
            return None
        return difference(self.after.taken_bytes, self.before.taken_bytes)

    @property
    def moved(self) -> bool:
        """Whether anything happened there at all."""
        return any((self.allocated_delta, self.reserved_delta, self.gross_bytes))


class BadgeKind(enum.Enum):
    """Something about a cell's memory that should be seen at once."""

    RETRY = "the driver had no memory left, so that the cache was emptied"  # times
    OOM_CAUGHT = "an out-of-memory error was caught inside"  # times
    DRIVER_CALLS = "memory was taken from the driver, or given back"  # calls
    STREAM_WAITS = "all streams were waited for to free memory"  # times
    PENDING = "memory that was given back is awaited by another stream"  # bytes
    FLUSHED = "the cache was given back to the driver"  # bytes
    PEAK_RESET = "the cell has reset the peaks"
    SUMS_RESET = "the cell has reset the sums"
    STARTED = "the device was used for the first time"
    NOT_CACHED = "caching is switched off, so that nothing is counted"
    BACKEND = "this allocator keeps no such counters"  # names: the backend
    SHARED = "other processes use the device"  # how many


@dataclass(frozen=True)
class CellBadge(Record):
    """One of them, with its figure."""

    kind: BadgeKind
    device: int | None = None
    amount: int | None = None
    names: tuple[str, ...] = ()


def difference(one: int | None, other: int | None) -> int | None:
    """How much more one is than the other; unknown if one of them is."""
    return None if one is None or other is None else one - other
