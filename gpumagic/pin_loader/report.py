"""What `%pin_loader` finds, as frozen records: figures, and how well they are known.

Small records come first; `LoaderReport` and `WatchReport`, at the end, put them
together.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from gpumagic.report import robust
from gpumagic.report.record import Record, Report

if TYPE_CHECKING:
    from gpumagic.report.events import SeenRace
    from gpumagic.report.places import Code, CodeLine
    from gpumagic.report.robust import Comparison


WORTH_IT = 1.05  # a gain below this is none: noise alone comes to as much


@dataclass(frozen=True)
class Remark(Record):
    """Something a reader has to know.

    Attributes:
        text: What was found, in one sentence without a full stop.

        hint: What to do or to type, likewise; empty where there is nothing to do.

        serious: Whether results could be wrong, not only slow.
    """

    text: str
    hint: str = ""
    serious: bool = False


@dataclass(frozen=True)
class Samples(Record):
    """The same thing measured again and again."""

    seconds: tuple[float, ...]

    @cached_property
    def median_s(self) -> float:
        """The middle of the samples."""
        return robust.median(self.seconds)

    @property
    def range_s(self) -> tuple[float, float]:
        """The shortest and the longest."""
        return min(self.seconds), max(self.seconds)


@dataclass(frozen=True)
class Setting(Record):
    """Where it was measured.

    Attributes:
        kind: The word in front of the colon of the torch device: "cuda", "cpu".

        label: What all figures of a simulated machine are labelled with. Times of
            loading and of copies within the host are this machine's even then.

        device: The number of the device that batches go to; None without one.

        processors: How many this process may use.
    """

    kind: str
    label: str = ""
    device: int | None = None
    device_name: str | None = None
    torch_version: str | None = None
    driver_version: str | None = None
    processors: int | None = None


class LoaderKind(enum.Enum):
    """How a loader comes to its batches."""

    BATCHED = "batches of a dataset with an index"
    BATCH_SAMPLER = "batches that a batch sampler chooses"
    UNBATCHED = "single items, not batched by the loader"
    ITERABLE = "an iterable dataset"
    FOREIGN = "not a DataLoader of torch, but it gives batches"


@dataclass(frozen=True)
class LoaderFacts(Record):
    """What a loader is set to do; None is unknown, or does not apply.

    Attributes:
        name: What the user calls it.

        class_name: Its true class, with the module where that is not torch's.

        dataset: The class of its dataset.

        sampler: The class of its sampler, or of its batch sampler.

        length: Batches in an epoch.

        start_method: How its workers start: "fork", "spawn", "forkserver".

        live_iterator: Whether workers of an earlier epoch are still alive
            (`persistent_workers`).
    """

    kind: LoaderKind
    class_name: str
    name: str | None = None
    dataset: str | None = None
    sampler: str | None = None
    length: int | None = None
    batch_size: int | None = None
    workers: int | None = None
    prefetch_factor: int | None = None
    pin_memory: bool | None = None
    persistent_workers: bool | None = None
    start_method: str | None = None
    live_iterator: bool = False


class Pinned(enum.Enum):
    """Where the bytes of a leaf lie."""

    PINNED = "pinned"
    PAGEABLE = "pageable"
    ON_DEVICE = "on the device"
    UNKNOWN = "unknown"


class WhyPageable(enum.Enum):
    """Why a tensor of a batch is not pinned."""

    FLAG_OFF = "pin_memory is off"
    NO_ACCELERATOR = "there is no accelerator to pin for"
    PASSED_THROUGH = "the pinner passes objects of this class through"
    OWN_METHOD = "the class pins itself, and leaves this out"
    NOT_A_TENSOR = "an array of numpy is never pinned"
    NOT_DENSE = "only dense tensors can be pinned"
    FLAG_TOO_LATE = "the flag was set after the workers had been started"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Leaf(Record):
    """A tensor or an array in a batch; other values are counted only.

    Attributes:
        path: How it is reached: `batch["image"]`, `batch[0].mask`.

        what: Its class.

        nbytes: Of its elements.

        contiguous: Whether they lie together in order. If not, a copy to the device
            goes through pageable memory, pinned or not.

        why: Why it is not pinned, if it is not.

        holder: The class that `why` speaks of.

        same_as: The path of an earlier leaf with the same memory.
    """

    path: str
    what: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    nbytes: int = 0
    contiguous: bool | None = None
    pinned: Pinned = Pinned.UNKNOWN
    why: WhyPageable | None = None
    holder: str | None = None
    same_as: str | None = None


@dataclass(frozen=True)
class Anatomy(Record):
    """What a batch consists of.

    Attributes:
        class_name: The class of the batch itself.

        leaves: In the order of walking; at most a few hundred.

        left_out: How many more leaves there are.

        left_out_bytes: What these hold, each memory once.

        others: How many values are neither tensors nor arrays, and stay on the host.

        locked_bytes: What pinning all of it locks: each tensor rounded up to a power
            of two.

        type_changes: What the pinner of this torch would make of containers: path,
            class, class afterwards.

        adaptable: Whether tensors are passed through by the pinner that an adapter
            would pin.
    """

    class_name: str
    leaves: tuple[Leaf, ...]
    left_out: int = 0
    left_out_bytes: int = 0
    others: int = 0
    locked_bytes: int = 0
    type_changes: tuple[tuple[str, str, str], ...] = ()
    adaptable: bool = False
    remarks: tuple[Remark, ...] = ()

    @cached_property
    def tensor_bytes(self) -> int:
        """All tensors and arrays, each memory once."""
        listed = sum(leaf.nbytes for leaf in self.leaves if leaf.same_as is None)
        return listed + self.left_out_bytes

    def bytes_that_are(self, where: Pinned) -> int:
        """The bytes that lie in one kind of memory, each memory once."""
        return sum(
            leaf.nbytes
            for leaf in self.leaves
            if leaf.pinned is where and leaf.same_as is None
        )


class Severity(enum.Enum):
    """What a limit says."""

    FINE = "fine"
    WARN = "warn"
    REFUSE = "refuse"
    INFORM = "for information"
    UNKNOWN = "unknown"


class LimitKind(enum.Enum):
    """What can run out."""

    AVAILABLE = "memory of the machine"
    CGROUP = "memory of the container"
    WSL = "pinned memory under WSL"
    SHM = "shared memory"
    FILES = "open files"
    MEMLOCK = "locked memory by ulimit"


@dataclass(frozen=True)
class Limit(Record):
    """One thing that can run out.

    Attributes:
        needed: Bytes, or files for `FILES`.

        available: Likewise; None is unknown, or no limit.

        source: Where it was read.
    """

    kind: LimitKind
    needed: int | None
    available: int | None
    severity: Severity
    source: str = ""
    hint: str = ""

    @property
    def share(self) -> float | None:
        """What is needed as a share of what there is."""
        if self.needed is None or not self.available:
            return None
        return self.needed / self.available


@dataclass(frozen=True)
class Guard(Record):
    """What pinning and workers take of the machine.

    Attributes:
        locked_bytes: By the formula: batches under way, in blocks of powers of two.

        batches: How many batches can be under way.

        device_bytes: What prefetched batches take of the device.

        measured_bytes: What torch really holds pinned after the trial.
    """

    locked_bytes: int
    batches: int
    limits: tuple[Limit, ...]
    device_bytes: int | None = None
    measured_bytes: int | None = None

    @property
    def refusing(self) -> Limit | None:
        """The first limit that forbids it."""
        return next(
            (each for each in self.limits if each.severity is Severity.REFUSE), None
        )


@dataclass(frozen=True)
class Loading(Record):
    """How fast a loader gives batches if nobody does anything with them.

    Attributes:
        between: Time from batch to batch, after those that were prepared ahead.

        workers: With how many workers.

        start_s: From asking for an iterator to the first batch.

        ended_early: Its epochs are shorter than what was to be measured.
    """

    between: Samples
    workers: int
    start_s: float | None = None
    nbytes: int | None = None
    ended_early: bool = False

    @property
    def batch_s(self) -> float:
        """One batch."""
        return self.between.median_s


@dataclass(frozen=True)
class Link(Record):
    """The way from host to device.

    Attributes:
        name: Such as "PCIe Gen5 x16"; None is unknown.

        theory_bytes_per_s: What the standard allows, one way.

        ceiling_bytes_per_s: What one large pinned copy reached here.

        generation: Read while a copy was running: an idle link is slower.

        numa_node: The memory node that the device is attached to.
    """

    name: str | None = None
    theory_bytes_per_s: float | None = None
    ceiling_bytes_per_s: float | None = None
    generation: int | None = None
    width: int | None = None
    most_generation: int | None = None
    most_width: int | None = None
    numa_node: int | None = None
    remarks: tuple[Remark, ...] = ()


@dataclass(frozen=True)
class CopyMode(Record):
    """The batch's own leaves copied to the device in one way.

    Attributes:
        pinned: From pinned memory; else pageable.

        blocking: As `.to(device)` does; else `non_blocking=True`.

        host: How long the host was held, for the whole batch.

        device: How long the copies took on the device, from first to last.
    """

    pinned: bool
    blocking: bool
    host: Samples
    device: Samples | None = None


@dataclass(frozen=True)
class Step(Record):
    """What is done with each batch.

    Attributes:
        name: The user's function, or what stands in for it.

        synthetic: Whether it stands in: a loop of matrix products as long as the
            slowest other part, for which feeding gains the most.
    """

    name: str
    samples: Samples
    synthetic: bool = False


@dataclass(frozen=True)
class Rates(Record):
    """How fast each part is on its own; None was not measured."""

    load: Loading | None = None
    pin_copy: Samples | None = None  # the batch, into pinned memory that is reused
    fresh_pin: Samples | None = None  # the batch, into memory pinned for it
    copies: tuple[CopyMode, ...] = ()
    link: Link | None = None
    step: Step | None = None
    nbytes: int | None = None  # of the batch
    remarks: tuple[Remark, ...] = ()

    def copy(self, *, pinned: bool, blocking: bool) -> CopyMode | None:
        """One of the four ways."""
        for each in self.copies:
            if (each.pinned, each.blocking) == (pinned, blocking):
                return each
        return None


class Part(enum.Enum):
    """What a training step is made of; the slowest one binds."""

    LOAD = "loading"
    PIN = "the copy into pinned memory"
    LINK = "the copy to the device"
    STEP = "compute"


class Remedy(enum.Enum):
    """What can be done."""

    PIN = "pin_memory"
    PREFETCH = "pin_memory and prefetching"
    WORKERS = "workers"
    EVERYTHING = "workers, pin_memory and prefetching"


@dataclass(frozen=True)
class Gain(Record):
    """The most that a remedy can give.

    Attributes:
        step_s: A step cannot be shorter than this.

        now_s: A step as it is with the same compute, where that is not the bound's: in
            place of a stand-in stands the step for which the remedy gains the most.

        workers: How many it takes, where it changes that.

        exposed: What a step then takes for each part, as far as nothing hides it;
            without a stand-in for compute.
    """

    remedy: Remedy
    step_s: float
    now_s: float | None = None
    workers: int | None = None
    exposed: tuple[tuple[Part, float], ...] = ()


@dataclass(frozen=True)
class Bound(Record):
    """The shortest step that is possible, before anything is changed.

    Attributes:
        parts: How long each part takes on its own.

        now_s: A step as it is.

        now_measured: Whether that was measured, or added up from the parts.

        best_s: No step can be shorter: the slowest part.

        gains: What each remedy can give at most.

        synthetic_step: The step stands in for the user's: the gain is then the most
            for any step.

        most_workers: How many are the most that pay; None is unknown.

        exposed: What a step as it is takes for each part, as far as nothing hides it;
            without a stand-in for compute.
    """

    parts: tuple[tuple[Part, float], ...]
    now_s: float
    now_measured: bool
    best_s: float
    binding: Part
    gains: tuple[Gain, ...] = ()
    synthetic_step: bool = False
    most_workers: int | None = None
    exposed: tuple[tuple[Part, float], ...] = ()

    @property
    def most(self) -> float | None:
        """How many times faster a step can become at most, as loading is now."""
        return self.now_s / self.best_s if self.best_s > 0 else None

    def times(self, gain: Gain) -> float | None:
        """How many times as fast a remedy makes a step at most."""
        now_s = self.now_s if gain.now_s is None else gain.now_s
        return now_s / gain.step_s if gain.step_s > 0 else None

    @property
    def best(self) -> Gain | None:
        """The remedy that can give the most; the simplest of those that are near."""
        times = [self.times(each) or 0.0 for each in self.gains]
        enough = max(times, default=0.0) / WORTH_IT
        found = zip(self.gains, times, strict=True)
        return next((gain for gain, its in found if its >= enough), None)


@dataclass(frozen=True)
class StepSpan(Record):
    """A part of a step in the picture."""

    lane: str  # "load", "copy", "compute"
    step: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class FourSteps(Record):
    """Four steps before and after, once under way, worked out from the rates.

    Attributes:
        before: Of the loop as it is.

        after: Of the loop with a remedy.

        remedy: Which one.
    """

    before: tuple[StepSpan, ...]
    after: tuple[StepSpan, ...]
    remedy: Remedy = Remedy.PREFETCH


class Stopped(enum.Enum):
    """Why no more workers were tried."""

    SLOWER = "the last ones gained less than 5 %"
    FAST_ENOUGH = "loading takes less than 80 % of the step"
    MOST = "this process may use no more processors"
    BUDGET = "the time was spent"
    GUARD = "more would not fit"
    REFUSED = "workers cannot be used with this loader"
    NOT_ASKED = "not asked for"


@dataclass(frozen=True)
class WorkerTrial(Record):
    """Loading with one number of workers.

    Attributes:
        loading: What was measured; None if it failed.

        private_bytes: Memory that the workers do not share, all together.

        problem: Why it failed.
    """

    workers: int
    loading: Loading | None
    private_bytes: int | None = None
    problem: str | None = None


@dataclass(frozen=True)
class WorkerSearch(Record):
    """Loading with more and more workers.

    Attributes:
        trials: In the order of trying.

        chosen: The fewest within 5 % of the best; None if nothing was found out.

        most: The processors that this process may use.

        problem: Why there was nothing to search, if so.
    """

    trials: tuple[WorkerTrial, ...]
    chosen: int | None
    stopped: Stopped
    most: int | None = None
    problem: str | None = None
    hint: str | None = None


class Way(enum.Enum):
    """How the new loader came about."""

    REBUILT = "rebuilt"
    FLAG_SET = "the flag was set on a copy"
    WRAPPED = "wrapped as it is"
    UNCHANGED = "unchanged"


@dataclass(frozen=True)
class Change(Record):
    """An argument that is not as it was."""

    argument: str
    before: str
    after: str


@dataclass(frozen=True)
class Rebuilding(Record):
    """What the new loader is.

    Attributes:
        reason: Why it could not be rebuilt, where it was not.

        adapter: Whether an adapter pins what the pinner passes through.

        depth: How many batches are copied ahead; 0 is none.
    """

    way: Way
    class_name: str
    changes: tuple[Change, ...] = ()
    reason: str | None = None
    adapter: bool = False
    depth: int = 1
    remarks: tuple[Remark, ...] = ()


@dataclass(frozen=True)
class Sameness(Record):
    """Whether old and new loader give the same batches.

    Attributes:
        batches: How many were compared.

        whole: Whether that was all of them.

        same: In value, order and class; None where it could not be told.

        difference: The first one, in words.

        random_values: Whether values may differ between runs of the old loader as
            well, because its dataset draws random numbers in workers.

        restored: What was put back: "torch", "numpy", "the sampler's generator".
    """

    batches: int
    same: bool | None
    whole: bool = False
    difference: str | None = None
    random_values: bool = False
    restored: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class EndToEnd(Record):
    """Old loop and new loop, run in turn.

    Attributes:
        result: Seconds for a step; the base is the old one.

        batches: Steps in each run.

        base: What the old loop is: `for batch in train_dl: batch.to(device)`.

        newer: What the new loop is.

        overlap: The share of copying to the device that ran beside kernels, old and
            new, from a trace; None was not traced.

        estimated_overlap: The same without a trace, from the times alone.

        pageable_share: The share of copied bytes that came from pageable memory.

        modelled: Whether the waits for data are worked out from how fast the loader
            is on its own, since simulated devices have a clock of their own.
    """

    result: Comparison
    batches: int
    base: str
    newer: str
    overlap: tuple[float | None, float | None] = (None, None)
    estimated_overlap: tuple[float | None, float | None] = (None, None)
    pageable_share: tuple[float | None, float | None] = (None, None)
    modelled: bool = False
    remarks: tuple[Remark, ...] = ()


@dataclass(frozen=True)
class Damaged(Record):
    """A batch that was overwritten while it was still being copied."""

    batch: int
    path: str


@dataclass(frozen=True)
class ReuseCheck(Record):
    """Whether the loader fills memory again that is still being copied.

    Attributes:
        batches: How many were watched.

        reused: Leaves with the same address in consecutive batches.

        damaged: What arrived otherwise than it was sent, under a delayed copy; None
            where that could not be looked at.
    """

    batches: int
    reused: tuple[str, ...] = ()
    damaged: tuple[Damaged, ...] | None = None
    problem: str | None = None


@dataclass(frozen=True)
class CopyLine(Record):
    """A line of the cell that copied to a device.

    Attributes:
        times: Copies that it made.

        nbytes: All together.

        pageable_bytes: From pageable memory among them; None is unknown.

        blocking: Copies without `non_blocking=True`; None is unknown.

        held_s: How long these held the host; None is unknown.
    """

    line: CodeLine | None
    times: int
    nbytes: int
    pageable_bytes: int | None = None
    blocking: int | None = None
    held_s: float | None = None


@dataclass(frozen=True)
class DataWait(Record):
    """How long a loop waited for its loader.

    Attributes:
        loader: Its name in the notebook, or its class.

        waits: One for each batch, in order; the first has the start of the workers.
    """

    loader: str
    line: CodeLine | None
    waits: Samples
    workers: int | None = None
    pin_memory: bool | None = None

    @property
    def total_s(self) -> float:
        """All waits together."""
        return sum(self.waits.seconds)


class State(enum.Enum):
    """How it ended."""

    DIAGNOSED = "diagnosed"  # looking was all that was asked for
    ALREADY_GOOD = "already-good"
    FIXED = "fixed"
    NO_GAIN = "no-gain"
    REFUSED_RAM = "refused-ram"
    REFUSED_SHM = "refused-shm"
    REFUSED_ONE_SHOT = "refused-one-shot"
    REFUSED_UNPICKLABLE = "refused-unpicklable"
    REFUSED_ON_DEVICE = "refused-on-device"  # its batches are on the device already
    REFUSED_DIFFERENT = "refused-different"  # the rebuilt loader gave other data
    UNPROVEN = "unproven"  # made, but too few runs tell whether it is faster
    WRAPPED_ONLY = "wrapped-only"  # could not be rebuilt, so it feeds as it is
    NO_ACCELERATOR = "no-accelerator"


@dataclass(frozen=True)
class LoaderReport(Report):
    """A loader from diagnosis to proof; what was not reached is None.

    Attributes:
        state: How it ended.

        out: The name that the new loader has; None where there is none.

        reason: Why it ended so, where it is a refusal: problem and hint.
    """

    state: State
    setting: Setting
    loader: LoaderFacts
    anatomy: Anatomy | None = None
    rates: Rates = field(default_factory=Rates)
    bound: Bound | None = None
    guard: Guard | None = None
    workers: WorkerSearch | None = None
    rebuilding: Rebuilding | None = None
    sameness: Sameness | None = None
    end_to_end: EndToEnd | None = None
    reuse: ReuseCheck | None = None
    steps: FourSteps | None = None
    remarks: tuple[Remark, ...] = ()
    reason: Remark | None = None
    out: str | None = None


@dataclass(frozen=True)
class WatchReport(Report):
    """A training cell that was watched while it ran; its times are a little longer.

    Attributes:
        elapsed_s: From all idle to all idle, on the device's clock.

        host_s: The same on the clock of this machine, which differs on a simulated
            device; waits for data are on this one.

        copying_s: How long copies to a device were under way; None is unknown.

        hidden_s: How much of that ran beside kernels.

        kernel_s: How long at least one kernel ran.

        failed: The error that the code raised, in one line.
    """

    code: Code
    setting: Setting
    elapsed_s: float
    host_s: float
    copies: tuple[CopyLine, ...] = ()
    waits: tuple[DataWait, ...] = ()
    copying_s: float | None = None
    hidden_s: float | None = None
    kernel_s: float | None = None
    races: tuple[SeenRace, ...] = ()
    failed: str | None = None
    remarks: tuple[Remark, ...] = ()
    problem: str | None = None
    hint: str | None = None
