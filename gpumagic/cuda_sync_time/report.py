"""What `%%cuda_sync_time` measured: raw seconds, and what they do not tell alone."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from gpumagic.errors import GpuMagicError
from gpumagic.report import robust
from gpumagic.report.record import Record, Report
from gpumagic.report.units import parse_seconds, seconds_text

if TYPE_CHECKING:
    from gpumagic.report.events import OperatorTime, SeenRace, TraceSpan
    from gpumagic.report.places import Code, CodeLine
    from gpumagic.report.robust import Comparison, Interval

# A wait of less than this part of the time says that the device kept up.
_HARDLY_WAITED = 0.05
_MOSTLY_WAITED = 0.5
_ABOVE_THE_FLOOR = 1.1  # no figure is finer than a tenth of it


class FlagKind(enum.Enum):
    """What a reader has to know besides the time."""

    # Of one run.
    BACKLOG = "queued work of earlier cells was waited for first"  # seconds
    TAIL = "work ran on after the first stream was done"  # seconds
    FIRST_USE = "the device was used for the first time"
    LIBRARY_STARTED = "a library was used for the first time"  # names
    ERROR_AT_END = "an error was reported only by the wait at the end"
    NOT_DRAINED = "what was still running is unknown"
    UNSEEN = "CUDA was started by something that is not torch"
    INTERRUPTED = "the wait at the end was interrupted"
    CAPTURING = "a graph was being captured, so that nothing could be waited for"
    DEVICE_LEFT = "the cell has left another device current"  # number of the device
    STREAM_LEFT = "the cell has left another stream current"  # number of the device
    THREADS = "threads that it started are still running"  # names
    COLLECTED = "Python's garbage collector ran"  # times
    # Of the machine, while it ran.
    DRIVER_CALLS = "memory was taken from the driver"  # calls
    GIVEN_BACK = (
        "torch's cache was given back to the driver"  # calls, with those to take
    )
    RETRIES = "the allocator ran out and had to empty its cache"  # times
    COMPILED = "code was compiled"  # times
    CLOCK = "the clock of the GPU changed"  # relative change
    LIMITED = "something held the clock of the GPU down"  # reasons
    SHARED = "other processes were using the GPU"  # how many
    LAUNCH_BLOCKING = "CUDA_LAUNCH_BLOCKING makes every launch wait"
    # Of the way of measuring.
    PROFILED = "the profiler was running, which takes time of its own"
    WATCHED = "waits were being noted, which takes time of its own"
    UNWATCHED = "waits could not be noted"  # reason
    LINES = "lines were being noted, which takes time of its own"
    LINES_CUT = "the last part of the run has no lines"
    LINES_OF_THE_HOST = "what lines launched could not be traced"  # reason
    QUEUE_FULL = "a launch queue was full"  # most entries in flight on one stream
    # Of several runs.
    SPREAD = "the samples differ much"  # IQR as a share of the median
    DRIFT = "the samples drift"  # last third over first third, less one
    TWO_HUMPS = "the samples form two groups"  # the medians of the groups
    CORRELATED = "each sample resembles the one before"  # autocorrelation
    UNSTEADY = "warming up did not become steady"
    OUT_OF_TIME = "the budget was spent before the interval was narrow"
    VALUES_TOOK = "computing the simulated values has spent the budget"  # seconds
    FEW = "too few samples for an interval"  # how many


@dataclass(frozen=True)
class Flag(Record):
    """Something a reader has to know, with its figure."""

    kind: FlagKind  # what it is
    amount: float | None = None  # the figure that `FlagKind` speaks of
    names: tuple[str, ...] = ()  # names or reasons that belong to it
    device: int | None = None  # the device that it is about, where it is about one


@dataclass(frozen=True)
class Setting(Record):
    """Where it was measured."""

    # the word in front of the colon of the torch device, as the user's code has it:
    # "cuda", "cpu". So it is where a simulated GPU stands in for CUDA.
    kind: str
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
    """What events say of one device: from the start to the end of its stream.

    It misses what ran on other streams; None is unknown.
    """

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
    cold: bool = False

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

    @property
    def spread(self) -> float | None:
        """The interquartile range as a share of the median."""
        low, high = self.quartiles
        return (high - low) / self.median_s if self.median_s > 0 else None

    @cached_property
    def outliers(self) -> tuple[int, int]:
        """How many lie beyond Tukey's inner fences, and beyond the outer ones."""
        return robust.outliers(self.seconds)


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
    # the most of them that were launched and not yet done, on the stream that had the
    # most
    in_flight: int | None
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

    @property
    def idle_s(self) -> float:
        """How long no device did anything."""
        return max(self.length_s - self.busy_s, 0.0)


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
class Peaks(Record):
    """What this device reaches, measured here and now."""

    dtype: str
    flops_per_s: float | None  # of a large matrix product in this type
    bytes_per_s: float | None  # read plus written, by a long copy within the device
    simulated: bool = False


@dataclass(frozen=True)
class Roofline(Record):
    """How near the run came to what the device can do."""

    seconds: float  # the time that they are held against
    peaks: Peaks | None
    # floating point operations of one run, counted in a pass of its own; matrix
    # products, convolutions and attention only. None was not counted.
    flops: int | None = None
    nbytes: int | None = None  # bytes moved in one run, as the user declared them
    # the operations that were counted, by their share of `flops`
    counted: tuple[tuple[str, int], ...] = ()
    problem: str | None = None  # why they could not be counted, if they could not
    hint: str | None = None
    devices: int = 1  # how many devices like that of `peaks` worked on it

    @property
    def peak_flops_per_s(self) -> float | None:
        """The most that the devices compute together."""
        most = None if self.peaks is None else self.peaks.flops_per_s
        return None if most is None else most * self.devices

    @property
    def peak_bytes_per_s(self) -> float | None:
        """The most that the devices read and write together."""
        most = None if self.peaks is None else self.peaks.bytes_per_s
        return None if most is None else most * self.devices

    @property
    def flops_per_s(self) -> float | None:
        """What was achieved."""
        return _rate(self.flops, self.seconds)

    @property
    def bytes_per_s(self) -> float | None:
        """What was achieved."""
        return _rate(self.nbytes, self.seconds)

    @property
    def intensity(self) -> float | None:
        """Operations for each byte."""
        if not self.flops or not self.nbytes:
            return None
        return self.flops / self.nbytes

    @property
    def roof_flops_per_s(self) -> float | None:
        """The most that this intensity allows on these devices."""
        flops, nbytes = self.peak_flops_per_s, self.peak_bytes_per_s
        if flops is None or self.intensity is None or nbytes is None:
            return flops
        return min(flops, self.intensity * nbytes)


def _rate(amount: int | None, seconds: float) -> float | None:
    if amount is None or seconds <= 0:
        return None
    return amount / seconds


@dataclass(frozen=True)
class LogEntry(Record):
    """One timed cell of the notebook."""

    code: Code
    kind: str  # the word before the colon of a device, as in `Setting`
    label: str
    seconds: float
    naive_s: float | None = None  # what `%%time` would have said, of one run
    runs: int = 1
    spread: float | None = None  # of several runs, as in `Samples`
    failed: bool = False
    flags: tuple[FlagKind, ...] = ()


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


@dataclass(frozen=True)
class TimingReport(Report):
    """One run of a cell."""

    code: Code
    setting: Setting
    run: Run
    flags: tuple[Flag, ...] = ()
    # the error that the code raised, in one line. The time is then the time until it
    # was raised.
    failed: str | None = None
    # lines that made the host wait; None if nobody looked
    syncs: tuple[SyncPoint, ...] | None = None
    profile: Profile | None = None
    roofline: Roofline | None = None
    activity: Activity | None = None  # who was busy when, where there is no `profile`
    # what each line took; None if nobody looked
    lines: tuple[LineTime, ...] | None = None
    # the line that waited longest for batches of a DataLoader, if one did
    loading: SyncPoint | None = None

    @property
    def seconds(self) -> float:
        """The figure that a log shows."""
        run = self.run
        if run.simulated_in_s is not None and not run.uses_device:
            return run.simulated_in_s  # a simulated clock shows nothing of it
        return run.elapsed_s

    @property
    def busy_s(self) -> float | None:
        """How long at least one device was busy; None where nobody saw that."""
        if self.profile is not None:
            return self.profile.busy_s if self.profile.sees_devices else None
        return None if self.activity is None else self.activity.busy_s

    def zoom(self, start: str | float, end: str | float) -> Zoom:
        """A part of the picture of who was busy when; nothing is measured again.

        The last line of a cell shows it, as `print` does.
        """
        start_s, end_s = map(_seconds, (start, end))
        length_s = self.run.elapsed_s
        if not self.run.uses_device and self.profile is None:
            raise GpuMagicError(
                "this run has no timeline: it has used no device",
                "%%cuda_sync_time --profile draws what the host did",
            )
        if not 0 <= start_s < min(end_s, length_s):
            raise GpuMagicError(
                f"nothing lies between {start} and {end}: "
                f"this run took {seconds_text(length_s)}",
                'from an earlier time to a later one: report.zoom("0s", '
                f'"{seconds_text(length_s / 2).replace(" ", "")}")',
            )
        return Zoom(self, start_s, end_s)

    @property
    def bound(self) -> Bound:
        """What it spent its time on; a wait that an empty cell has, too, is none."""
        run = self.run
        if not run.uses_device:
            return Bound.HOST_ONLY
        share = run.waited_s / run.elapsed_s if run.elapsed_s > 0 else 0.0
        if share < _HARDLY_WAITED or not self.tells(run.waited_s):
            return Bound.HOST
        return Bound.DEVICE if share > _MOSTLY_WAITED else Bound.OVERLAPPED

    def tells(self, seconds: float) -> bool:
        """Whether a time is more than an empty cell shows, as far as digits tell."""
        floor_s = self.setting.floor_s or 0.0
        return seconds > floor_s * _ABOVE_THE_FLOOR


def _seconds(time: str | float) -> float:
    return parse_seconds(time) if isinstance(time, str) else float(time)


@dataclass(frozen=True)
class Zoom(Report):
    """A part of the picture of who was busy when."""

    timing: TimingReport
    start_s: float
    end_s: float


@dataclass(frozen=True)
class BriefReport(Report):
    """One run of a cell in a line, for when every cell is timed."""

    timing: TimingReport


@dataclass(frozen=True)
class RepeatedReport(Report):
    """Many runs of a cell."""

    code: Code
    setting: Setting
    samples: Samples
    flags: tuple[Flag, ...] = ()
    roofline: Roofline | None = None

    @property
    def seconds(self) -> float:
        """The figure that a log shows."""
        return self.samples.median_s


@dataclass(frozen=True)
class ComparisonReport(Report):
    """Two codes, measured in turn.

    Attributes:
        noise: The base against itself on this machine just now, where it was asked
            for: an effect inside its interval means nothing.
    """

    base: Code
    code: Code
    setting: Setting
    mode: Mode
    calls: int
    runs: int
    result: Comparison
    noise: Comparison | None = None
    flags: tuple[Flag, ...] = ()

    @property
    def seconds(self) -> float:
        """The figure that a log shows: one call of the newer code."""
        return robust.median([newer for _, newer in self.result.pairs])


@dataclass(frozen=True)
class RaceReport(Report):
    """A cell that was run to find missing waits. No time is claimed for it."""

    code: Code
    setting: Setting
    races: tuple[SeenRace, ...]
    # what looked: "torch's sanitizer", "the simulated GPU"; empty where nothing could
    # be looked at
    watcher: str
    failed: str | None = None
    problem: str | None = None  # why nothing could be found out, if so
    hint: str | None = None


@dataclass(frozen=True)
class LogReport(Report):
    """All timed cells of the notebook, oldest first."""

    entries: tuple[LogEntry, ...]
    dropped: int = 0  # how many older ones are forgotten
    automatic: bool = False  # whether every cell is timed
    saved_as: str | None = None
