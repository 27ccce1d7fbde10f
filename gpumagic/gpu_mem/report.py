"""What `%gpu_mem` found: bytes, whose they are, and how well that is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.report.record import Report

if TYPE_CHECKING:
    from gpumagic.gpu_mem.records import (
        Answer,
        CaughtOoms,
        Cause,
        CellBadge,
        Counters,
        Course,
        DeviceChange,
        DeviceMemory,
        Fragmentation,
        Growth,
        Holder,
        Holdings,
        HostMemory,
        Leak,
        LedgerEntry,
        LineUse,
        OomFacts,
        Pinning,
        Segment,
        Setting,
    )
    from gpumagic.report.places import Code


@dataclass(frozen=True)
class MemoryReport(Report):
    """How things stand: the balance, and the names that hold most."""

    setting: Setting
    devices: tuple[DeviceMemory, ...]
    holdings: Holdings | None = None
    host: HostMemory | None = None
    badges: tuple[CellBadge, ...] = ()
    top: int = 10  # how many names are to be shown
    why_not: str | None = None  # why there is nothing to tell, if there is nothing
    hint: str | None = None


@dataclass(frozen=True)
class CellReport(Report):
    """What one cell did to the memory of every device."""

    code: Code
    setting: Setting
    changes: tuple[DeviceChange, ...]  # of devices on which something moved
    badges: tuple[CellBadge, ...] = ()
    # the names, each with how much more it reaches than before; None where too little
    # moved to look
    holdings: Holdings | None = None
    # by line of the cell; None where that was not asked for
    lines: tuple[LineUse, ...] | None = None
    # whether the recording was full before the cell had ended
    lines_partial: bool = False
    failed: str | None = None  # the error that the code raised, in one line
    top: int = 10
    remarks: tuple[str, ...] = ()
    # how much was in use in the course of the cell, by device; empty where that was
    # not recorded
    courses: tuple[Course, ...] = ()


@dataclass(frozen=True)
class BriefReport(Report):
    """One cell in a line, for when every cell is watched."""

    cell: CellReport


@dataclass(frozen=True)
class LedgerReport(Report):
    """All watched cells of the notebook, oldest first."""

    entries: tuple[LedgerEntry, ...]
    automatic: bool = False


@dataclass(frozen=True)
class MapReport(Report):
    """Every segment and block of the caching allocator."""

    setting: Setting
    segments: tuple[Segment, ...]
    fragmentation: tuple[Fragmentation, ...]
    why_not: str | None = None
    hint: str | None = None


@dataclass(frozen=True)
class LeakReport(Report):
    """What could be let go of, largest first."""

    setting: Setting
    leaks: tuple[Leak, ...]
    # by device, counting what two of them hold only once
    total_bytes: tuple[tuple[int, int], ...] = ()
    # what has come back by device already, as cycles were collected to look at them
    collected_bytes: tuple[tuple[int, int], ...] = ()
    partial: bool = False
    remarks: tuple[str, ...] = ()
    # names that hold more than when they were first looked at
    grown: tuple[Growth, ...] = ()


@dataclass(frozen=True)
class FreeReport(Report):
    """What was let go of, and what came back."""

    setting: Setting
    # what was done, in words, in the order in which it was done
    dropped: tuple[str, ...]
    before: tuple[Counters, ...]
    after: tuple[Counters, ...]
    free_before_bytes: tuple[int | None, ...] = ()
    free_after_bytes: tuple[int | None, ...] = ()
    lost: tuple[str, ...] = ()  # what is not there any more: `%debug`, `Out`
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class WhyReport(Report):
    """An out-of-memory error in words; `oom` is None where no words are known."""

    setting: Setting
    oom: OomFacts | None
    causes: tuple[Cause, ...] = ()  # all that apply, the most telling first
    answer: Answer | None = None
    memory: DeviceMemory | None = None
    holders: tuple[Holder, ...] = ()
    # what may be held without need, less what the failing run had needed
    leaks: tuple[Leak, ...] = ()
    pinning: tuple[Pinning, ...] = ()
    expandable_segments: bool | None = None
    next_steps: tuple[str, ...] = ()  # what to type, the best first
    # those that were met since the error, or instead of one, of which no error is
    # left
    caught: CaughtOoms | None = None
    # what the frames of this error still hold of that; None is unknown
    own_bytes: int | None = None


@dataclass(frozen=True)
class FitReport(Report):
    """Whether so many bytes would fit now, on each device in use."""

    setting: Setting
    requested_bytes: int
    answers: tuple[Answer, ...]
    causes: tuple[Cause, ...] = ()
    next_steps: tuple[str, ...] = ()
    why_not: str | None = None
    hint: str | None = None
