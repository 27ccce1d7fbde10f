"""What `%%cuda_sync_time` measured: raw seconds, and what they do not tell alone."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from gpumagic.report import robust
from gpumagic.report.record import Record

if TYPE_CHECKING:
    from gpumagic.report.events import OperatorTime, TraceSpan
    from gpumagic.report.places import CodeLine
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
    THREADS = "threads"  # their names
    # Of the machine, while it ran.
    DRIVER_CALLS = "allocation"  # how many
    RETRIES = "cache emptied"  # times
    COMPILED = "compiled"  # times
    CLOCK = "clock"  # relative change
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
    amount: float | None = None
    names: tuple[str, ...] = ()
    device: int | None = None


@dataclass(frozen=True)
class Setting(Record):
    """Where it was measured."""

    kind: str  # the word before the colon of a torch device, as the user's code has it
    label: str = ""  # what all figures of a simulated machine are labelled with
    # those in use at the end, by number, and what the maker calls them
    devices: tuple[tuple[int, str | None], ...] = ()
    # what an empty cell is measured as, here and now. Nothing is subtracted for it.
    floor_s: float | None = None
    torch_version: str | None = None
    driver_version: str | None = None


class Bound(enum.Enum):
    """What one run spent its time on, as far as two stamps can tell."""

    DEVICE = "the host mostly waited for the device"
    HOST = "the device kept up with the host"
    OVERLAPPED = "host and device both took their part"
    HOST_ONLY = "no device was used"


@dataclass(frozen=True)
class DeviceTime(Record):
    """From the start to the end of one device's stream by events; None is unknown."""

    device: int
    elapsed_s: float | None


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
    # device time by events, for the devices in use when it began
    events: tuple[DeviceTime, ...] = ()
    uses_device: bool = True
    simulated_in_s: float | None = None  # what this machine itself took to simulate it

    @property
    def waited_s(self) -> float:
        """How long the host still had to wait when the code had returned."""
        return max(self.elapsed_s - self.naive_s, 0.0)

    @property
    def too_little(self) -> float | None:
        """How many times the true time is the naive one."""
        return self.elapsed_s / self.naive_s if self.naive_s > 0 else None


@dataclass(frozen=True)
class SyncPoint(Record):
    """A line of the user's code that made the host wait."""

    what: str
    line: CodeLine | None
    times: int
    # all waits of this line together; None where that is unknown
    waited_s: float | None = None
    caller: CodeLine | None = None  # as in `SyncCall`


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
    # the very first call, waited for, before any warming up
    first_s: float | None = None
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
class Profile(Record):
    """What ran when, summed from the trace itself."""

    length_s: float  # from all idle to all idle, on the profiler's clock
    spans: tuple[TraceSpan, ...]  # everything that was traced, in order of beginning
    busy_s: float  # how long at least one stream of any device was busy
    overlapped_s: float  # how long at least two streams were busy at once
    copying_s: float  # how long a copy was under way
    hidden_copy_s: float  # how much of that was hidden behind kernels
    launches: int  # kernels, copies and fills together
    streams: tuple[StreamShare, ...]
    kernels: tuple[TopKernel, ...]
    problem: str | None = None  # why the devices' part is missing, if it is
    hint: str | None = None
    saved_as: str | None = None  # the file with the whole trace, where it was asked for
    # what torch's operators took on the host; the simulated host's time is not
    # Python's, and has none
    operators: tuple[OperatorTime, ...] = ()
    is_cut: bool = False  # whether the run went on after it, as it was to be no longer

    @property
    def sees_devices(self) -> bool:
        """Whether it has the devices' part, be it that they did nothing."""
        return bool(self.launches) or (self.problem is None and self.length_s > 0)


@dataclass(frozen=True)
class Activity(Record):
    """Who was busy when, as far as it is known without a trace."""

    # launches and waits, and what the devices did where that is known
    spans: tuple[TraceSpan, ...]
    length_s: float  # from all idle to all idle
    # how long at least one device was busy; None where that is unknown, and `spans`
    # has nothing of the devices
    busy_s: float | None = None


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
    # what the backward of its operations took, wherever it was called
    backward_s: float | None = None
