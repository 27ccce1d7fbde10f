"""What a trace of torch's profiler tells of one rank, of many, and of two runs.

Times of a rank count from its first device work on; `None` is what the file does not
tell.
"""

from __future__ import annotations

import enum
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.report.record import Record
from gpumagic.report.units import shortened

if TYPE_CHECKING:
    from gpumagic.report.events import OperatorTime
    from gpumagic.report.places import CodeLine

_LONGEST_TYPED = 90  # a longer path would fill the line that says what to do


@dataclass(frozen=True)
class FileRead(Record):
    """A file, and how much of it could be read.

    Attributes:
        name: Without its folder.

        nbytes: How much was read of it, unpacked.

        events: How many entries were read.

        missing: What could not be read, in a sentence; None if it is whole.

        unknown: Kinds of entries that nobody here knows, and how many there are.

        folder: Where it lies, as it was named; "" is the current one.
    """

    name: str
    nbytes: int
    events: int
    missing: str | None = None
    unknown: tuple[tuple[str, int], ...] = ()
    folder: str = ""

    @property
    def typed(self) -> str:
        """What is typed to open it again; of a very long path the name alone."""
        path = f"{self.folder.rstrip('/')}/{self.name}" if self.folder else self.name
        fits = len(path) <= _LONGEST_TYPED
        return shlex.quote(path) if fits else shortened(self.name, 60)


@dataclass(frozen=True)
class KernelSum(Record):
    """All runs of the kernels of one name.

    Attributes:
        name: As the file has it.

        kind: What it works out, in words: "matrix product", "communication", ...

        count: How often it ran.

        total_s: How long altogether.

        longest_s: And the longest of them.
    """

    name: str
    kind: str
    count: int
    total_s: float
    longest_s: float


@dataclass(frozen=True)
class LineSum(Record):
    """What a line of code launched, as far as the trace has stacks.

    The profiler knows of a function where it begins, and of one that already ran when
    it was started the line that it was at.
    """

    line: CodeLine
    launches: int
    device_s: float


@dataclass(frozen=True)
class HostWork(Record):
    """What the host was in while the device was idle and nothing was launched.

    Attributes:
        name: The outermost operator or annotation; where there is none the call, else
            the innermost function of the user's; None where the trace tells nothing.

        seconds: How long.
    """

    name: str | None
    seconds: float


@dataclass(frozen=True)
class Idle(Record):
    """Why nothing ran on the device, between its first work and its last.

    The first three add up to the idle time.

    Attributes:
        host_late_s: The next work was launched only after the device ran dry: until
            that launch.

        other_stream_s: It was launched in time, and what ran last before it ran on
            another stream, which it may have waited for.

        unknown_s: The rest, such as the way from one kernel to the next.

        host_was_in: What the host did while it was late, the longest first.

        unlaunched_s: How much of what is unknown ended with work whose launch is not
            in the file.

        between_s: How much of what is unknown was at most 10 us each from the kernel
            before, or from a late launch, to the beginning.
    """

    host_late_s: float
    other_stream_s: float
    unknown_s: float
    host_was_in: tuple[HostWork, ...] = ()
    unlaunched_s: float = 0.0
    between_s: float = 0.0

    @property
    def unexplained_s(self) -> float:
        """What is neither known nor one of the last two."""
        return max(self.unknown_s - self.unlaunched_s - self.between_s, 0.0)


@dataclass(frozen=True)
class Step(Record):
    """One step, as `torch.profiler.profile.step()` marks it.

    Attributes:
        number: Of its `ProfilerStep#`.

        start_s: When the host began it.

        length_s: Until the host ended it.

        busy_s: How long the device was busy meanwhile.
    """

    number: int
    start_s: float
    length_s: float
    busy_s: float | None = None


@dataclass(frozen=True, slots=True)
class Collective(Record):
    """One communication of this rank with others.

    Attributes:
        name: "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all",
            "send", "recv", "send_recv", ...; as the file has it where it is none.

        group: The name of its process group; None where the file does not tell.

        number: Its place in the order of its group: the group's own sequence number
            where the file has it of all, else from 0 on in the order of the calls.

        numbered: Whether it is the group's own.

        start_s: When its kernel began.

        end_s: When it ended.

        nbytes: What this rank put in.

        called_s: When the host called it.

        during: "forward", "backward", "optimizer" or "" where the host was in none.

        members: Which ranks are in the group, as the file writes them: "[0, 1]". Groups
            of one name with other members are other groups.

        size: How many ranks the group has.

        hidden_s: How long, from its start to its end, a kernel ran that does not
            communicate; None where nobody has looked.

        hidden: When that was, from and until; where there are very many gaps, the
            narrowest count as part.
    """

    name: str
    group: str | None
    number: int
    numbered: bool
    start_s: float
    end_s: float
    nbytes: int | None = None
    called_s: float | None = None
    during: str = ""
    members: str | None = None
    size: int | None = None
    hidden_s: float | None = None
    hidden: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class LaneSpan(Record):
    """A stroke of a lane: one event, or several short ones that were put together."""

    start_s: float
    end_s: float
    label: str
    kind: str  # a word of drawing/palette.py: kernel, copy, communication, host code...


@dataclass(frozen=True)
class LaneTrace(Record):
    """What one thread or stream did, with few enough spans to draw.

    Attributes:
        name: "host", "backward thread", "stream 7", ...

        spans: In order; short neighbours of a kind are put together.

        count: How many there were before.

        busy_s: How long at least one of them ran.
    """

    name: str
    spans: tuple[LaneSpan, ...]
    count: int
    busy_s: float


@dataclass(frozen=True)
class RankTrace(Record):
    """One process, by its trace.

    Attributes:
        file: Where from.

        rank: Its number; None where the file does not tell.

        world_size: How many there are.

        device_name: What the device is called.

        simulated: Whether the device was a simulated one.

        length_s: From the first device work to the last.

        busy_s: Of it, how long at least one piece of device work ran.

        compute_s: How long a kernel ran that does not communicate.

        communication_s: How long one ran that does.

        hidden_communication_s: How long both did at once.

        copy_s: How long a copy or a fill ran.

        idle_s: The rest of the length.

        launches: How often the host gave the device something to do.

        streams: On how many streams device work ran.

        kernels: By name, the longest altogether first; copies and fills are none.

        idle: Why it was idle.

        lanes: To be drawn: the host's first, then the streams by their busy time.

        steps: In order.

        operators: What the operators took on the host.

        lines: What lines launched, the longest on the device first.

        collectives: In order of their beginning.

        phases: How long the device worked for "forward", "backward" and "optimizer",
            by what the host was in when it launched, without what communicates (there
            it may only wait); "input": how long the host waited for batches. Each
            where it can be told.

        host_length_s: From the first event of the host to its last; where there is
            no device work, all that is known.

        zero_ns: The moment of second 0, by the clock of the file since 1970, or of
            the simulated machine; None where that clock began anywhere.

        devices: How many devices the file has work of.
    """

    file: FileRead
    rank: int | None = None
    world_size: int | None = None
    device_name: str | None = None
    simulated: bool = False
    length_s: float | None = None
    busy_s: float | None = None
    compute_s: float | None = None
    communication_s: float | None = None
    hidden_communication_s: float | None = None
    copy_s: float | None = None
    idle_s: float | None = None
    launches: int | None = None
    streams: int | None = None
    kernels: tuple[KernelSum, ...] = ()
    idle: Idle | None = None
    lanes: tuple[LaneTrace, ...] = ()
    steps: tuple[Step, ...] = ()
    operators: tuple[OperatorTime, ...] = ()
    lines: tuple[LineSum, ...] = ()
    collectives: tuple[Collective, ...] = ()
    phases: tuple[tuple[str, float], ...] = ()
    host_length_s: float | None = None
    zero_ns: int | None = None
    devices: int = 0


# ------------------------------------------------------------------------ many ranks


class Clock(enum.Enum):
    """How the times of several ranks were put on one scale."""

    SHARED = "the clock of one host"
    ALIGNED = "by the ends of what they did together"
    APART = "each by its own"


@dataclass(frozen=True)
class RankShare(Record):
    """What one rank did with the time that all of them took.

    Attributes:
        rank: Its number, or its place among the files where none is told.

        length_s: From its first device work to its last.

        own_s: Its length without its waits and what it moved.

        waits_s: How long it waited for others in what they did together, and did
            nothing beside, as far as `Collective.hidden` tells.

        moves_s: How long it did nothing but move data; and of what tells nothing of
            waits, the whole time.

        blamed_s: How long others waited for it: of each collective the longest, and
            once where collectives overlap.

        last: How often it was the last to come.

        offset_s: What is added to its times to put them on the common clock.

        busy_s: As of the rank.

        host_late_s: As of the rank.

        waiting: When it waited, from and until, by its own times.

        waits_more_s: How much longer it may have waited, at most, as it is not known to
            the moment when something else ran.
    """

    rank: int
    length_s: float
    own_s: float
    waits_s: float
    moves_s: float
    blamed_s: float
    last: int
    offset_s: float | None = None
    busy_s: float | None = None
    host_late_s: float | None = None
    waiting: tuple[tuple[float, float], ...] = ()
    waits_more_s: float = 0.0

    @property
    def idle_s(self) -> float:
        """How long its GPU did nothing, which lies in its own work."""
        idle_s = 0.0 if self.busy_s is None else self.length_s - self.busy_s
        return min(max(idle_s, 0.0), self.own_s)


@dataclass(frozen=True)
class Difference(Record):
    """Something that the slowest rank spent more on than the rank in the middle.

    Attributes:
        what: "input", "forward", "backward", "optimizer", "host late", or the kind of
            a kernel.

        slow_s: What the slowest rank spent.

        median_s: What the others spent in the median.
    """

    what: str
    slow_s: float
    median_s: float


@dataclass(frozen=True)
class Together(Record):
    """What ranks did to each other.

    Attributes:
        ranks: In order of their numbers.

        world_size: How many there were, also those whose file is not here.

        matched: How many collectives were found on all ranks of their group.

        unmatched: How many were not, and tell nothing of waits; sending from one rank
            to one other is neither.

        by_number: Whether they were matched by the group's own numbers.

        slowest: The rank whose own work took longest; None where none stands out.

        ratio: Its own work over that in the median.

        differences: What it spent more on, the most first.

        skew_s: How far apart the ranks came to a collective, in the median.

        clock: How their times were put together.

        clock_error_s: How far that may be off.
    """

    ranks: tuple[RankShare, ...]
    world_size: int | None
    matched: int
    unmatched: int
    by_number: bool
    slowest: int | None = None
    ratio: float | None = None
    differences: tuple[Difference, ...] = ()
    skew_s: float | None = None
    clock: Clock = Clock.APART
    clock_error_s: float | None = None


# ------------------------------------------------------------------------ two runs


@dataclass(frozen=True)
class Change(Record):
    """One kernel or operator in two runs; None where a run has none of it."""

    name: str
    kind: str
    count_before: int | None
    count_after: int | None
    before_s: float | None
    after_s: float | None


@dataclass(frozen=True)
class Comparison(Record):
    """Two traces of the same code.

    Attributes:
        length_before_s: From the first device work to the last.

        per_step: Whether all figures are those of a step in the median, as both
            traces have steps and their numbers differ.

        kernels: The largest differences first.

        operators: By what they took on the host by themselves, likewise.
    """

    length_before_s: float | None
    length_after_s: float | None
    busy_before_s: float | None
    busy_after_s: float | None
    kernels: tuple[Change, ...]
    operators: tuple[Change, ...]
    per_step: bool = False
