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
    """How things stand: the balance, and the names that hold most.

    Attributes:
        top: How many names are to be shown.

        why_not: Why there is nothing to tell, if there is nothing.
    """

    setting: Setting
    devices: tuple[DeviceMemory, ...]
    holdings: Holdings | None = None
    host: HostMemory | None = None
    badges: tuple[CellBadge, ...] = ()
    top: int = 10
    why_not: str | None = None
    hint: str | None = None


@dataclass(frozen=True)
class CellReport(Report):
    """What one cell did to the memory of every device.

    Attributes:
        changes: Of devices on which something moved.

        holdings: The names, each with how much more it reaches than before; None
            where too little moved to look.

        lines: By line of the cell; None where that was not asked for.

        lines_partial: Whether the recording was full before the cell had ended.

        courses: How much was in use in the course of the cell, by device; empty where
            that was not recorded.

        failed: The error that the code raised, in one line.
    """

    code: Code
    setting: Setting
    changes: tuple[DeviceChange, ...]
    badges: tuple[CellBadge, ...] = ()
    holdings: Holdings | None = None
    lines: tuple[LineUse, ...] | None = None
    lines_partial: bool = False
    failed: str | None = None
    top: int = 10
    remarks: tuple[str, ...] = ()
    courses: tuple[Course, ...] = ()


@dataclass(frozen=True)
class BriefReport(Report):
    """One cell in a line, for when every cell is watched."""

    cell: CellReport


@dataclass(frozen=True)
class LedgerReport(Report):
    """All watched cells of the notebook, oldest first."""

    entries: tuple[LedgerEntry, ...]
    dropped: int = 0
    automatic: bool = False
    saved_as: str | None = None


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
    """What could be let go of, largest first.

    Attributes:
        total_bytes: By device, counting what two of them hold only once.

        collected_bytes: What has come back by device already, as cycles were collected
            to look at them.

        grown: Names that hold more than when they were first looked at.
    """

    setting: Setting
    leaks: tuple[Leak, ...]
    total_bytes: tuple[tuple[int, int], ...] = ()
    collected_bytes: tuple[tuple[int, int], ...] = ()
    partial: bool = False
    remarks: tuple[str, ...] = ()
    grown: tuple[Growth, ...] = ()


@dataclass(frozen=True)
class FreeReport(Report):
    """What was let go of, and what came back.

    Attributes:
        dropped: What was done, in words, in the order in which it was done.

        lost: What is not there any more: `%debug`, `Out`.
    """

    setting: Setting
    dropped: tuple[str, ...]
    before: tuple[Counters, ...]
    after: tuple[Counters, ...]
    free_before_bytes: tuple[int | None, ...] = ()
    free_after_bytes: tuple[int | None, ...] = ()
    lost: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class WhyReport(Report):
    """An out-of-memory error in words; `oom` is None where no words are known.

    Attributes:
        causes: All that apply, the most telling first.

        next_steps: What to type, the best first.

        leaks: What may be held without need, less what the failing run had needed.

        own_bytes: What the frames of this error still hold of that; None is unknown.

        caught: Those that were met since the error, or instead of one, of which no
            error is left.
    """

    setting: Setting
    oom: OomFacts | None
    causes: tuple[Cause, ...] = ()
    answer: Answer | None = None
    memory: DeviceMemory | None = None
    holders: tuple[Holder, ...] = ()
    leaks: tuple[Leak, ...] = ()
    pinning: tuple[Pinning, ...] = ()
    expandable_segments: bool | None = None
    next_steps: tuple[str, ...] = ()
    caught: CaughtOoms | None = None
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
