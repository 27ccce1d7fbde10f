"""What `%%cuda_sync_time` measured: raw seconds, and what they do not tell alone."""

from __future__ import annotations

import dataclasses
import enum
import math
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from gpumagic.errors import UsageProblem
from gpumagic.report import robust
from gpumagic.report.places import CodeLine
from gpumagic.report.record import Record
from gpumagic.report.units import parse_seconds

if TYPE_CHECKING:
    import argparse

    from gpumagic.report.events import OperatorTime, TraceSpan
    from gpumagic.report.robust import Interval


class FlagKind(enum.Enum):
    """What a reader has to know besides the time, in the words of a table."""

    # Of one run.
    BACKLOG = "backlog"  # seconds
    TAIL = "tail"  # seconds
    FIRST_USE = "first use"  # the libraries that were started, or none: the device
    ERROR_AT_END = "late error"  # the error
    NOT_DRAINED = "not drained"  # why
    UNSEEN = "unseen GPU"
    INTERRUPTED = "interrupted"
    CAPTURING = "capturing"
    # Of the machine, while it ran.
    DRIVER_CALLS = "allocation"  # how many
    COMPILED = "compiled"  # times
    LIMITED = "limited"  # reasons
    SHARED = "shared"  # how many other processes
    LAUNCH_BLOCKING = "blocking"
    # Of the way of measuring.
    LOOKED_ON = "looked on"  # the option that did
    UNWATCHED = "unwatched"  # what could not be noted, and why
    LINES_CUT = "lines cut"
    # Of several runs.
    UNSTEADY = "unsteady"
    OUT_OF_TIME = "out of time"


@dataclass(frozen=True)
class Flag(Record):
    """Something a reader has to know, with its figure."""

    kind: FlagKind
    amount: float = 0.0
    names: tuple[str, ...] = ()
    device: int | None = None


@dataclass(frozen=True)
class Setting(Record):
    """Where it was measured."""

    kind: str  # the word before the colon of a torch device, as the user's code has it
    label: str = ""  # what all figures of a simulated machine are labelled with
    # those in use at the end, by number, and what the maker calls them
    devices: tuple[tuple[int, str | None], ...] = ()
    # what an empty cell is measured as, here and now; 0 where that could not be
    # measured. Nothing is subtracted for it.
    floor_s: float = 0.0
    torch_version: str = ""  # empty before torch has been imported


class Bound(enum.Enum):
    """What one run spent its time on, as far as two stamps can tell."""

    DEVICE = "the host mostly waited for the device"
    HOST = "the device kept up with the host"
    OVERLAPPED = "host and device both took their part"
    HOST_ONLY = "no device was used"


@dataclass(frozen=True)
class Run(Record):
    """One run, from all devices idle to all devices idle."""

    elapsed_s: float  # all of it: the true time
    naive_s: float  # until the code returned: what `%%time` would have said
    # from the end of the starting streams to the end of everything; None where
    # streams cannot be told apart
    tail_s: float | None = None
    # the wait before it, for what earlier cells had queued. Not part of the time.
    # None where no device had been started.
    backlog_s: float | None = None
    # from the start to the end of a device's stream by events, by device; of those in
    # use when it began
    events: dict[int, float | None] = field(default_factory=dict)
    uses_device: bool = True
    simulated_in_s: float = 0.0  # what this machine itself took to simulate it, if so

    @property
    def waited_s(self) -> float:
        """How long the host still had to wait when the code had returned."""
        return max(self.elapsed_s - self.naive_s, 0.0)


LIBRARY = CodeLine("library code", "")  # a wait with no line of the user's above it


@dataclass(frozen=True)
class SyncPoint(Record):
    """A line that made the host wait."""

    what: str
    line: CodeLine
    times: int
    # all waits of this line together; None where that is unknown
    waited_s: float | None = None
    caller: CodeLine | None = None  # as in `SyncCall`

    @property
    def where(self) -> str:
        """Its place, and the line of the cell that led there."""
        places = filter(None, (self.line, self.caller))
        return ", from ".join(each.where for each in places)


class Mode(enum.Enum):
    """What one sample is."""

    LATENCY = "latency"  # each call is waited for
    THROUGHPUT = "throughput"  # many calls, one wait


@dataclass(frozen=True)
class Samples(Record):
    """Measured again and again; every sample is kept."""

    mode: Mode
    # time for one call, in the order in which they were taken
    seconds: tuple[float, ...]
    calls: int  # calls in each sample
    first_s: float  # the very first call, waited for, before any warming up
    warmup_calls: int = 0  # calls before the first sample, the very first among them
    warmup_s: float = 0.0

    @property
    def runs(self) -> int:
        """How often the code ran altogether."""
        return self.warmup_calls + self.calls * len(self.seconds)

    @cached_property
    def median_s(self) -> float:
        """The middle of the samples."""
        return robust.median(self.seconds)

    @cached_property
    def interval(self) -> Interval | None:
        """Where the true median lies with 95 % confidence, by order statistics."""
        return robust.honest_interval(self.seconds)

    @cached_property
    def quartiles(self) -> tuple[float, float]:
        """A quarter of the samples is below the first, a quarter above the second."""
        return robust.quartiles(self.seconds)


@dataclass(frozen=True)
class StreamShare(Record):
    """How busy one stream was."""

    device: int
    stream: int | None
    spans: int
    busy_s: float


@dataclass(frozen=True)
class TopKernel(Record):
    """All runs of one kernel or copy."""

    name: str
    kind: str
    times: int
    total_s: float
    longest_s: float
    bound: str | None = None  # what most of that time was spent on, where a model knows


@dataclass(frozen=True)
class Activity(Record):
    """Who was busy when, as far as that was seen."""

    # launches and waits, and what the devices did where that is known; in order of
    # beginning
    spans: tuple[TraceSpan, ...] = ()
    length_s: float = 0.0  # from all idle to all idle, on the clock of who looked on
    # how long at least one device was busy; None where nobody saw that, and `spans`
    # has nothing of the devices
    busy_s: float | None = None


NOTHING_SEEN = Activity()


@dataclass(frozen=True, kw_only=True)
class Profile(Activity):
    """What ran when, summed from the trace itself."""

    overlapped_s: float  # how long at least two streams were busy at once
    copying_s: float  # how long a copy was under way
    hidden_copy_s: float  # how much of that was hidden behind kernels
    launches: int  # kernels, copies and fills together
    streams: tuple[StreamShare, ...]
    kernels: tuple[TopKernel, ...]
    problem: str = ""  # why the devices' part is missing, if it is
    hint: str = ""
    saved_as: str = ""  # the file with the whole trace, where it was asked for
    # what torch's operators took on the host; the simulated host's time is not
    # Python's, and has none
    operators: tuple[OperatorTime, ...] = ()
    is_cut: bool = False  # whether the run went on after it, as it was to be no longer


@dataclass(frozen=True)
class LineTime(Record):
    """What a line of the user's code took, with all that it has called."""

    line: CodeLine
    number: int | None  # the line's number in the cell; None in any other file
    runs: int  # how often it began
    host_s: float  # how long the host was at it
    # what kernels and copies took that were launched meanwhile, added up; None where
    # no device was traced
    device_s: float | None = None
    launches: int | None = None  # how many they were


BUDGET_S = 1.0
_WAYS = tuple(mode.value for mode in Mode)
_NO_WAY = "say --repeat=100, --repeat=5s, --repeat=latency or --repeat=throughput"
_TIME = r"\d+(?:\.\d+)?(?:ms|s|min|m|h)"


@dataclass(frozen=True, kw_only=True)
class Options:
    """How code is to be measured, and what is wanted beside its time."""

    repeats: bool = False  # whether the code is run again and again
    samples: int | None = None  # None: until the interval is narrow, within the budget
    budget_s: float = BUDGET_S  # after the first run
    # "latency" or "throughput"; None: throughput for short calls, latency for others
    mode: str | None = None
    syncs: bool = False
    profile: bool = False
    trace_file: str | None = None  # implies `profile`
    trace_s: float = math.inf  # how long the trace is at most
    lines: bool = False
    races: bool = False
    name: str | None = None  # what the code is called, and in a notebook is kept as
    versus: str | None = None  # the name of the code that it is compared with
    magic: str = ""  # what was typed: `%cuda_sync_time` or `%%cuda_sync_time`

    def __post_init__(self) -> None:
        if self.samples is not None and self.samples < 1:
            raise self._problem("no sample is asked for", "say --repeat 1")
        if self.budget_s <= 0:
            raise self._problem("a budget of no time runs nothing", "say --repeat 1s")
        if self.mode not in (None, *_WAYS):
            raise self._problem(f"--repeat={self.mode} is no way to repeat", _NO_WAY)

    @classmethod
    def of(cls, line: argparse.Namespace, *, magic: str) -> Options:
        """Read and check what stands in a line."""
        options = cls(
            repeats=line.repeat is not None or bool(line.vs),
            syncs=line.syncs,
            profile=line.profile,
            trace_file=line.trace,
            lines=line.lines,
            races=line.races,
            name=line.name,
            versus=line.vs,
            magic=magic,
        )
        options._check_together()
        for how in filter(None, (line.repeat or "").split(",")):
            options = options._repeated(how)
        return options

    @property
    def traces(self) -> bool:
        """Whether what runs when is traced."""
        return self.profile or bool(self.trace_file)

    def _repeated(self, how: str) -> Options:
        """The same with one word on how to repeat."""
        if how.isdecimal():
            return dataclasses.replace(self, samples=int(how))
        if re.fullmatch(_TIME, how):
            return dataclasses.replace(self, budget_s=parse_seconds(how))
        return dataclasses.replace(self, mode=how)

    def _check_together(self) -> None:
        observing = {
            "--syncs": self.syncs,
            "--profile": self.traces,
            "--lines": self.lines,
            "--races": self.races,
        }
        observers = [option for option, is_typed in observing.items() if is_typed]
        if observers and self.repeats:
            raise self._problem(
                f"{observers[0]} looks at one run; --repeat and --vs ask for many",
                "leave one of them away",
            )
        if self.races and (len(observers) > 1 or self.name):
            raise self._problem(
                "--races slows the code down and claims no time, so it stands alone",
                "leave the other options away, or --races",
            )

    def _problem(self, problem: str, hint: str) -> UsageProblem:
        return UsageProblem(titled(self.magic, problem), hint)


def titled(name: str | None, text: str) -> str:
    """A sentence with what it is about in front, where that has a name."""
    return ": ".join(filter(None, (name, text)))
