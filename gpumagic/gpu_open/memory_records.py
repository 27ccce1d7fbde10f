"""What a memory snapshot of torch tells, what grew between two, what a replay gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.report.record import Record

if TYPE_CHECKING:
    from gpumagic.gpu_mem.records import Segment
    from gpumagic.report.places import CodeLine


@dataclass(frozen=True)
class Failure(Record):
    """An out-of-memory error that the history has recorded."""

    event: int  # its number in the history, from 1 on
    asked_bytes: int  # what the driver was asked for
    free_bytes: int | None  # what the device had free then
    allocated_bytes: int  # what was in use then
    line: CodeLine | None = None  # where; None without stacks


@dataclass(frozen=True)
class LineMemory(Record):
    """What one line of code has taken; line None is all that is known by no line."""

    # the user's innermost line
    line: CodeLine | None
    # whether this is what was taken before the recording began. Its line is known of
    # what is still there in the end.
    before: bool
    now_bytes: int  # what of it is in use at the end
    at_peak_bytes: int  # what of it was in use at the peak
    taken: int  # how many allocations it made while recorded
    given_back: int  # how many of them have been freed


@dataclass(frozen=True)
class MemoryCourse(Record):
    """How much was in use from event to event, by line: stretches of equal length."""

    events: int  # how many there are in all
    # for each of the largest dozen its place in `SnapshotOfDevice.lines`; the last is
    # None: all others together
    lines: tuple[int | None, ...]
    # for each of these the most it held in each stretch, at the moment when all of
    # them together were highest there
    levels_bytes: tuple[tuple[int, ...], ...]
    # from the first event to the last; None without times
    length_s: float | None = None


@dataclass(frozen=True)
class SnapshotOfDevice(Record):
    """One device of a snapshot."""

    device: int  # its number
    allocated_bytes: int  # in use, as the allocator rounds
    reserved_bytes: int  # taken from the driver
    segments: tuple[Segment, ...]  # as the snapshot has them
    # how many allocations and frees are recorded, and errors for want of memory.
    # Numbers of events count these alone.
    events: int = 0
    complete: bool = False  # whether the history reaches back to the first allocation
    fits_together: bool = True  # whether history and segments tell the same in the end
    peak_bytes: int | None = None  # the most that was in use while recorded
    peak_event: int | None = None  # at which event, from 1 on; 0 is before the first
    # the most that was taken from the driver meanwhile
    peak_reserved_bytes: int | None = None
    lines: tuple[LineMemory, ...] = ()  # by line, what was highest at the peak first
    has_stacks: bool = False  # whether the history knows lines
    course: MemoryCourse | None = None  # to be drawn
    failure: Failure | None = None  # the last out-of-memory error


@dataclass(frozen=True)
class Growth(Record):
    """What one line holds in the second snapshot more than in the first."""

    device: int
    line: CodeLine | None  # none for what no line is known of
    before_bytes: int  # in the first
    after_bytes: int  # in the second
    before: int  # how many pieces
    after: int  # of the second

    @property
    def more_bytes(self) -> int:
        """What it holds more."""
        return self.after_bytes - self.before_bytes


@dataclass(frozen=True)
class Replayed(Record):
    """The requests of a history under a setting: as recorded, or served again."""

    # as PYTORCH_CUDA_ALLOC_CONF would say it; "" is torch's default
    setting: str
    # how much memory torch may take of the device, without the context and what
    # others hold; None: as much as is asked for
    total_bytes: int | None
    recorded: bool  # whether it is what the recording itself tells
    peak_reserved_bytes: int  # the most taken from the driver
    # how many were taken from the driver altogether; of expandable ones, how often
    # memory was mapped
    segments: int
    # the last event at which memory ran out, of the number that `Failure.event` is; 0
    # is before the first, None if it never did
    failed_event: int | None = None


@dataclass(frozen=True)
class ReplayOf(Record):
    """The replays of one device's history."""

    device: int  # which one
    replays: tuple[Replayed, ...] = ()  # what was recorded first
    # what the rules reserve under the recorded setting, to be held against what it
    # did reserve
    again_bytes: int | None = None
    again_failed: bool = False  # whether memory runs out by them as well
    why_not: str | None = None  # why nothing could be replayed; None if it could
    notes: tuple[str, ...] = ()  # what of the recording cannot be told, in sentences
