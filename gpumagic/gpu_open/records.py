"""What recordings tell: traces of ranks and of two runs, memory snapshots, replays.

Times of a rank count from its first device work on; without any, its sums are 0. `None`
is what the file does not tell.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from gpumagic.report.record import Record

if TYPE_CHECKING:
    from gpumagic.gpu_mem.records import Segment
    from gpumagic.report.events import Piece
    from gpumagic.report.places import CodeLine

_LONGEST_TYPED = 90  # a longer path would fill the line that says what to do


@dataclass(frozen=True)
class FileRead(Record):
    """A file that was read, or why it was left out."""

    name: str  # without its folder
    nbytes: int  # how much was read of it, unpacked
    events: int  # how many entries were read
    missing: str = ""  # why it could not be read, in a sentence
    # kinds of entries that nobody here knows, and how many there are
    unknown: tuple[tuple[str, int], ...] = ()
    folder: str = ""  # where it lies, as it was named; "" is the current one

    @property
    def typed(self) -> str:
        """What is typed to open it again; of a very long path its end."""
        path = str(PurePath(self.folder, self.name))
        return shlex.quote(path) if len(path) <= _LONGEST_TYPED else self.name[-60:]


# -------------------------------------------------------------------------- one rank


@dataclass(frozen=True)
class KernelSum(Record):
    """All runs of the kernels of one name."""

    name: str  # as the file has it
    kind: str  # what it works out, in words: "matrix product", "communication", ...
    count: int
    total_s: float


@dataclass(frozen=True)
class Idle(Record):
    """Why nothing ran on the device; the first three add up to the idle time."""

    # the next work was launched only after the device ran dry: until that launch
    host_late_s: float = 0.0
    # it was launched in time, and what ran last before it ran on another stream
    other_stream_s: float = 0.0
    unknown_s: float = 0.0  # the rest, such as the way from one kernel to the next
    # What the host was in while it was late and for how long, the longest first: the
    # outermost operator or annotation, else the call, else the user's function, or ""
    host_was_in: tuple[tuple[str, float], ...] = ()
    # what of the unknown was at most 10 us each from the kernel before, or from a late
    # launch, to the beginning
    between_s: float = 0.0

    @property
    def unexplained_s(self) -> float:
        """What is neither known nor the way to the next kernel."""
        return max(self.unknown_s - self.between_s, 0.0)


@dataclass(frozen=True)
class Step(Record):
    """One step, as `torch.profiler.profile.step()` marks it."""

    number: int  # of its `ProfilerStep#`
    length_s: float  # until the host ended it
    busy_s: float = 0.0  # how long the device was busy meanwhile


@dataclass(frozen=True, slots=True)
class Collective(Record):
    """One communication of this rank with others."""

    name: str  # "all_reduce", "send", ...; as the file has it where it is none
    group: str  # the name of its process group; "" where none is told
    number: int  # the group's own, or its place in the order of the calls
    numbered: bool  # whether it is the group's own, which the file has of all
    start_s: float  # when its kernel began
    end_s: float
    nbytes: int | None = None  # what this rank put in
    during: str = ""  # "forward", "backward" or "optimizer" where the host was in one
    # which ranks are in the group, as the file writes them: "[0, 1]". Groups of one
    # name with other members are other groups.
    members: str = ""
    # how long a kernel ran meanwhile that does not communicate, and when; of very many
    # gaps the narrowest count as part
    hidden_s: float = 0.0
    hidden: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class RankTrace(Record):
    """One process, by its trace."""

    file: FileRead  # where from
    rank: int | None = None
    world_size: int | None = None  # how many ranks there are
    device_name: str = ""
    simulated: bool = False  # whether the device was a simulated one
    length_s: float = 0.0  # from the first device work to the last; 0 without any
    busy_s: float = 0.0  # of it, how long at least one piece of device work ran
    compute_s: float = 0.0  # how long a kernel ran that does not communicate
    communication_s: float = 0.0  # how long one ran that does
    hidden_communication_s: float = 0.0  # how long both did at once
    copy_s: float = 0.0  # how long a copy or a fill ran
    idle_s: float = 0.0  # the rest of the length
    # how often the host gave the device something to do; None: no call was recorded
    launches: int | None = None
    kernels: tuple[KernelSum, ...] = ()  # by name, the longest altogether first
    idle: Idle = Idle()  # why it was idle
    # The host's, then the busiest streams: the name, and in order what it did, of which
    # short neighbours of a kind are put together. The kind is a word of
    # drawing/palette.py: kernel, copy, communication, host code...
    lanes: tuple[tuple[str, tuple[Piece[str], ...]], ...] = ()
    steps: tuple[Step, ...] = ()  # in order
    collectives: tuple[Collective, ...] = ()  # in order of their beginning
    # how long the device worked for "forward", "backward" and "optimizer", by what the
    # host was in when it launched, without communication (there it may only wait);
    # "input": how long the host waited for batches. Each where it can be told.
    phases: tuple[tuple[str, float], ...] = ()
    host_length_s: float = 0.0  # from the host's first event to its last
    # the moment of second 0, by the clock of the file since 1970, or of the simulated
    # machine; 0 where that clock began anywhere
    zero_ns: int = 0

    @property
    def known_length_s(self) -> float:
        """Its length, by the host where no device worked."""
        return self.length_s or self.host_length_s

    @property
    def exposed_s(self) -> float:
        """How long it communicated with no kernel computing meanwhile."""
        return max(self.communication_s - self.hidden_communication_s, 0.0)


# ------------------------------------------------------------------------ many ranks


@dataclass(frozen=True)
class RankShare(Record):
    """What one rank did with the time that all of them took."""

    rank: int  # its number, or its place among the files where none is told
    length_s: float  # from its first device work to its last
    own_s: float  # its length without its waits and what it moved
    waits_s: float  # for others in what they did together, doing nothing beside
    # how long it did nothing but move data; and the whole of what tells no waits
    moves_s: float
    # how long others waited for it: of each collective the longest, and once where
    # collectives overlap
    blamed_s: float
    # how long its GPU did nothing, which lies in its own work; None without GPU work
    idle_s: float | None = None
    host_late_s: float | None = None  # as of the rank
    # how much longer it may have waited, at most, as it is not known to the moment
    # when something else ran
    waits_more_s: float = 0.0


@dataclass(frozen=True)
class Difference(Record):
    """Something that the slowest rank spent more on than the rank in the middle."""

    # "input", "forward", "backward", "optimizer", "host late", or a kind of kernels
    what: str
    slow_s: float  # what the slowest rank spent
    median_s: float  # what the others spent in the median


@dataclass(frozen=True)
class Together(Record):
    """What ranks did to each other."""

    ranks: tuple[RankShare, ...]  # in order of their numbers
    world_size: int  # how many there were, as far as the files tell
    matched: int  # how many collectives were found on all ranks of their group
    # how many were not, and tell nothing of waits; what is between two is neither
    unmatched: int
    slowest: int | None = None  # whose own work took longest; None: nobody stands out
    ratio: float = 1.0  # its own work over that in the median
    differences: tuple[Difference, ...] = ()  # what it spent more on, the most first
    one_clock: bool = False  # whether the clocks of all agree

    @property
    def slow(self) -> RankShare | None:
        """The slowest, where one stands out."""
        return next((each for each in self.ranks if each.rank == self.slowest), None)

    @property
    def tried(self) -> int:
        """How many collectives there are."""
        return self.matched + self.unmatched


# ------------------------------------------------------------------------ two runs


@dataclass(frozen=True)
class Change(Record):
    """One kernel in two runs."""

    name: str
    count_before: int
    count_after: int
    before_s: float
    after_s: float

    @property
    def more_s(self) -> float:
        """How much longer it took."""
        return self.after_s - self.before_s


@dataclass(frozen=True)
class Comparison(Record):
    """Two traces of the same code."""

    length_before_s: float  # from the first device work to the last
    length_after_s: float
    busy_before_s: float
    busy_after_s: float
    kernels: tuple[Change, ...]  # the largest differences first
    per_step: bool = False  # whether all is of a median step, as their numbers differ

    @property
    def ratio(self) -> float:
        """How many times as long the second took."""
        return self.length_after_s / self.length_before_s

    @property
    def more_s(self) -> float:
        """How much longer the second took."""
        return self.length_after_s - self.length_before_s

    @property
    def more_idle_s(self) -> float:
        """How much longer the device was idle in it."""
        return self.more_s - (self.busy_after_s - self.busy_before_s)

    @property
    def culprit(self) -> Change | None:
        """What changed most in the direction of the whole."""
        more_s = self.more_s
        return next((each for each in self.kernels if each.more_s * more_s > 0), None)


# ------------------------------------------------------------------ memory snapshots


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

    line: CodeLine | None  # the user's innermost
    # whether this is what was taken before the recording began; its line is known of
    # what is still there in the end
    before: bool
    now_bytes: int  # what of it is in use at the end
    at_peak_bytes: int  # what of it was in use at the peak
    taken: int  # how many allocations it made while recorded
    given_back: int  # how many of them have been freed
    # of the largest dozen, how much it held at each of `SnapshotOfDevice.course_bytes`
    course_bytes: tuple[int, ...] = ()


@dataclass(frozen=True)
class SnapshotOfDevice(Record):
    """One device of a snapshot."""

    device: int  # its number
    allocated_bytes: int  # in use, as the allocator rounds
    reserved_bytes: int  # taken from the driver
    segments: tuple[Segment, ...]  # as the snapshot has them
    # how many allocations, frees and errors for want of memory are recorded; numbers
    # of events count these alone
    events: int = 0
    complete: bool = False  # whether the history reaches back to the first allocation
    fits_together: bool = True  # whether history and segments tell the same in the end
    # the most that was in use while recorded; without a history, what is in use
    peak_bytes: int = 0
    peak_event: int = 0  # at which event, from 1 on; 0 is before the first
    peak_reserved_bytes: int = 0  # the most that was taken from the driver meanwhile
    lines: tuple[LineMemory, ...] = ()  # by line, what was highest at the peak first
    # the most that was in use in each of some stretches with equally many events
    course_bytes: tuple[int, ...] = ()
    failure: Failure | None = None  # the last out-of-memory error

    @property
    def has_stacks(self) -> bool:
        """Whether any line is known."""
        return any(each.line for each in self.lines)


@dataclass(frozen=True)
class Growth(Record):
    """What one line holds in the second snapshot more than in the first."""

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

    setting: str  # as PYTORCH_CUDA_ALLOC_CONF would say it; "" is torch's default
    # what torch may take of the device, without the context and what others hold;
    # None: as much as is asked for
    total_bytes: int | None
    peak_reserved_bytes: int  # the most taken from the driver
    # how many were taken from the driver altogether; of expandable ones, how often
    # memory was mapped
    segments: int
    # the last event at which memory ran out, of the number that `Failure.event` is; 0
    # is before the first, None if it never did
    failed_event: int | None = None

    @property
    def name(self) -> str:
        """Its setting in words."""
        return self.setting or "torch's default"

    @property
    def fails(self) -> bool:
        """Whether memory ran out."""
        return self.failed_event is not None


@dataclass(frozen=True)
class ReplayOf(Record):
    """The replays of one device's history."""

    device: int  # which one
    replays: tuple[Replayed, ...]  # what was recorded first
    # the recorded setting by the rules, to be held against what was recorded
    again: Replayed
    notes: tuple[str, ...] = ()  # what of the recording cannot be told, in sentences
