"""What a memory snapshot of torch tells, what grew between two, what a replay gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.report.record import Record

if TYPE_CHECKING:
    from gpumagic.gpu_mem.records import Fragmentation, Segment
    from gpumagic.report.places import CodeLine


@dataclass(frozen=True)
class Failure(Record):
    """An out-of-memory error that the history has recorded.

    Attributes:
        event: Its number in the history, from 1 on.

        asked_bytes: What the driver was asked for.

        free_bytes: What the device had free then.

        allocated_bytes: What was in use then.

        line: Where; None without stacks.
    """

    event: int
    asked_bytes: int
    free_bytes: int | None
    allocated_bytes: int
    line: CodeLine | None = None


@dataclass(frozen=True)
class LineMemory(Record):
    """What one line of code has taken; line None is all that is known by no line.

    Attributes:
        line: The user's innermost line; the last is the rest, where there are many.

        before: Whether this is what was taken before the recording began. Its line is
            known of what is still there in the end.

        now_bytes: What of it is in use at the end.

        at_peak_bytes: What of it was in use at the peak.

        taken: How many allocations it made while recorded.

        taken_bytes: How much they are together.

        given_back: How many of them have been freed.

        lived_events: For how many events those lived in the median; None for none.

        each_step: Whether it took and gave back the same again and again.
    """

    line: CodeLine | None
    before: bool
    now_bytes: int
    at_peak_bytes: int
    taken: int
    taken_bytes: int
    given_back: int
    lived_events: int | None = None
    each_step: bool = False


@dataclass(frozen=True)
class MemoryCourse(Record):
    """How much was in use from event to event, by line: stretches of equal length.

    Attributes:
        events: How many there are in all.

        lines: For each of the largest dozen its place in `SnapshotOfDevice.lines`;
            the last is None: all others together.

        levels_bytes: For each of these the most it held in each stretch, at the moment
            when all of them together were highest there.

        length_s: From the first event to the last; None without times.
    """

    events: int
    lines: tuple[int | None, ...]
    levels_bytes: tuple[tuple[int, ...], ...]
    length_s: float | None = None


@dataclass(frozen=True)
class SnapshotOfDevice(Record):
    """One device of a snapshot.

    Attributes:
        device: Its number.

        allocated_bytes: In use, as the allocator rounds.

        reserved_bytes: Taken from the driver.

        segments: As the snapshot has them.

        fragmentation: How usable the free memory is; None without segments.

        total_bytes: What the device has for this process, where an error in the
            history tells: free and reserved together, then.

        events: How many allocations and frees are recorded, and errors for want of
            memory. Numbers of events count these alone.

        complete: Whether the history reaches back to the first allocation.

        fits_together: Whether history and segments tell the same in the end.

        peak_bytes: The most that was in use while recorded.

        peak_event: At which event, from 1 on; 0 is before the first.

        peak_reserved_bytes: The most that was taken from the driver meanwhile.

        lines: By line, what was highest at the peak first.

        has_stacks: Whether the history knows lines.

        course: To be drawn.

        failure: The last out-of-memory error.
    """

    device: int
    allocated_bytes: int
    reserved_bytes: int
    segments: tuple[Segment, ...]
    fragmentation: Fragmentation | None = None
    total_bytes: int | None = None
    events: int = 0
    complete: bool = False
    fits_together: bool = True
    peak_bytes: int | None = None
    peak_event: int | None = None
    peak_reserved_bytes: int | None = None
    lines: tuple[LineMemory, ...] = ()
    has_stacks: bool = False
    course: MemoryCourse | None = None
    failure: Failure | None = None


@dataclass(frozen=True)
class Growth(Record):
    """What one line holds in the second snapshot more than in the first.

    Attributes:
        line: None for what no line is known of.

        before_bytes: In the first.

        after_bytes: In the second.

        before: How many pieces.

        after: Of the second.

        is_new: Whether none of its pieces of the second lie where one of the first did.
    """

    device: int
    line: CodeLine | None
    before_bytes: int
    after_bytes: int
    before: int
    after: int
    is_new: bool = False


# What no replay can know; for whoever shows one.
REPLAY_LIMITS = (
    "A program with more memory, or less, may ask and free at other times.",
    "Behind a failure that is new the recording has no requests that would follow.",
    "What failed and now fits is given back at once: what it led to is unknown.",
)
REPLAY_FROM_ANEW = (
    "What was in use before the recording is asked for first, in order of address."
)
REPLAY_COLLECTS = (
    "garbage_collection_threshold works with set_per_process_memory_fraction alone."
)


@dataclass(frozen=True)
class AllocatorSetting(Record):
    """How the allocator is set, as PYTORCH_CUDA_ALLOC_CONF would say it.

    Attributes:
        text: "" is torch's default.

        total_bytes: How much memory torch may take of the device, without the context
            and what others hold; None: as much as is asked for. Where an error of the
            recording tells how much there was, a replay fills it in.
    """

    text: str
    total_bytes: int | None = None


@dataclass(frozen=True)
class Replayed(Record):
    """The recorded requests, served by torch's rules under a setting.

    Attributes:
        setting: Under which.

        recorded: Whether it is the setting of the recording itself.

        exact: Of that one: whether each recorded address and segment came out; None of
            the others.

        requests: How many were served.

        peak_allocated_bytes: The most in use.

        peak_reserved_bytes: The most taken from the driver.

        segments: How many were taken from the driver altogether; of expandable ones,
            how often memory was mapped.

        failed_event: The last event at which memory ran out, of the number that
            `Failure.event` is; 0 is before the first, None if it never did.

        asked_bytes: What was asked for there.

        retries: How often the cache was emptied to make room.

        differing: Of the recorded setting: how many recorded addresses, segments and
            levels of memory came out otherwise; None of the others.

        from_anew: Whether what was in use before the recording was asked for first, in
            order of address, as its history is not known.
    """

    setting: AllocatorSetting
    recorded: bool
    exact: bool | None
    requests: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    segments: int
    failed_event: int | None = None
    asked_bytes: int | None = None
    retries: int = 0
    differing: int | None = None
    from_anew: bool = False


@dataclass(frozen=True)
class ReplayOf(Record):
    """The replays of one device's history.

    Attributes:
        device: Which one.

        replays: The recorded setting first.

        needed_bytes: So much is enough under the recorded setting, and 2 MiB less is
            not. By chance much less may be, as a cache that is emptied may help.

        why_not: Why nothing could be replayed; None if it could.

        notes: What of the recording cannot be told, in sentences.
    """

    device: int
    replays: tuple[Replayed, ...] = ()
    needed_bytes: int | None = None
    why_not: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class WouldFit(Record):
    """Whether one more allocation would have fitted, at the end of a snapshot.

    Attributes:
        nbytes: How much.

        fits: Whether it would; None where the memory of the device is not known.

        into_cache: Whether it would without asking the driver.

        from_driver_bytes: What the driver would have been asked for.

        free_bytes: What the device has free, as far as it is known.
    """

    device: int
    nbytes: int
    fits: bool | None
    into_cache: bool
    from_driver_bytes: int
    free_bytes: int | None
