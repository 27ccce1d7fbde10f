"""What `%pin_loader` finds, as frozen records: figures, and how well they are known.

`answer_loader` and `answer_watch` put them together to reports, judge and draw them.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from gpumagic.report import robust
from gpumagic.report.record import Record

if TYPE_CHECKING:
    from gpumagic.report.places import CodeLine
    from gpumagic.report.robust import Comparison


WORTH_IT = 1.05  # a gain below this is none: noise alone comes to as much
NEAR = 1.1  # loading that takes so many times as long is as good
_MUCH_STARTING = 0.25  # of the time of a batch


@dataclass(frozen=True)
class Remark(Record):
    """Something a reader has to know; one sentence, and what to do about it."""

    text: str
    hint: str = ""
    serious: bool = False  # results could be wrong, not only slow


@dataclass(frozen=True)
class Samples(Record):
    """The same thing measured again and again; what was not measured takes nothing."""

    seconds: tuple[float, ...] = ()

    @cached_property
    def median_s(self) -> float:
        """The middle of the samples."""
        return robust.median(self.seconds or (0.0,))

    @cached_property
    def quartiles_s(self) -> tuple[float, float]:
        """What a quarter of them is below, and what a quarter is above."""
        return robust.quartiles(self.seconds or (0.0,))


# ------------------------------------------------------------------ the loader


@dataclass(frozen=True)
class LoaderFacts(Record):
    """What a loader is set to do; None is unknown, or does not apply."""

    name: str = "the loader"  # or what the notebook calls it
    iterable: bool = False  # the dataset is gone through, and not asked by index
    length: int | None = None  # batches in an epoch
    workers: int = 0
    prefetch_factor: int | None = None
    pin_memory: bool = False


# ------------------------------------------------------------------- its batch


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
    PASSED_THROUGH = "the pinner passes objects of its class through"
    NOT_A_TENSOR = "an array of numpy is never pinned"
    NOT_DENSE = "only dense tensors can be pinned"
    UNKNOWN = "the reason is unknown"


@dataclass(frozen=True)
class Leaf(Record):
    """A tensor or an array in a batch; other values are counted only."""

    path: str  # how it is reached: `batch["image"]`, `batch[0].mask`
    shape: tuple[int, ...] = ()
    dtype: str = ""
    nbytes: int = 0
    pinned: Pinned = Pinned.UNKNOWN
    why: WhyPageable | None = None  # it is not pinned
    holder: str = "its class"  # that `why` speaks of


@dataclass(frozen=True)
class Anatomy(Record):
    """What a batch consists of."""

    leaves: tuple[Leaf, ...] = ()  # in the order of walking
    locked_bytes: int = 0  # pinning it locks so much: powers of two

    @cached_property
    def tensor_bytes(self) -> int:
        """All tensors and arrays."""
        return sum(leaf.nbytes for leaf in self.leaves)

    def bytes_that_are(self, where: Pinned) -> int:
        """The bytes that lie in one kind of memory."""
        return sum(leaf.nbytes for leaf in self.leaves if leaf.pinned is where)


# ------------------------------------------------------------------- how fast


@dataclass(frozen=True)
class Loading(Record):
    """How fast a loader gives batches if nobody does anything with them.

    What a batch costs in processor time is measured without workers, where one thread
    does it all.
    """

    between: Samples = Samples()  # from batch to batch, in the long run
    workers: int = 0
    start_s: float = 0.0  # to the first batch
    share_s: float = 0.0  # of that for each batch, where each epoch starts workers
    cpu_s: float = 0.0  # of processors, for one batch
    waited_s: float = 0.0  # for one batch: for a disk, a network, a sleep

    @property
    def batch_s(self) -> float:
        """One batch."""
        return self.between.median_s + self.share_s

    @property
    def quartiles_s(self) -> tuple[float, float]:
        """A quick batch, and a slow one."""
        quick_s, slow_s = self.between.quartiles_s
        return quick_s + self.share_s, slow_s + self.share_s

    @property
    def starts_long(self) -> bool:
        """Whether the start of the workers is a good part of each epoch."""
        return self.share_s > _MUCH_STARTING * self.batch_s

    @property
    def kept(self) -> Loading:
        """The same with workers that start once, and not in each epoch."""
        return replace(self, share_s=0.0)

    def is_faster_than(self, other: Loading) -> bool:
        """Whether that is beyond what the samples of both are apart from themselves."""
        quick_s, slow_s = other.quartiles_s[0], self.quartiles_s[1]
        near = self.batch_s * NEAR >= other.batch_s
        return not near and slow_s * WORTH_IT <= quick_s


class Stopped(enum.Enum):
    """Why no other number of workers was tried."""

    FOUND = "the next ones gained nothing"
    ASKED = "so many were asked for"
    BUDGET = "the time was spent"
    LIMIT = "more would not fit into memory"
    FAILED = "loading with more of them failed"
    REFUSED = "workers cannot be used with this loader"


@dataclass(frozen=True)
class WorkerSearch(Record):
    """Loading with other numbers of workers; what was not tried is not judged."""

    trials: tuple[Loading, ...] = ()  # by their numbers, this one's own too
    chosen: int = 0  # the fewest that are as good as the best
    stopped: Stopped = Stopped.ASKED
    now: int = 0  # workers that the loader has
    busy: float = math.inf  # so many can keep the processors busy
    problems: tuple[Remark, ...] = ()

    def of(self, workers: int) -> Loading:
        """The trial with so many, empty where they were not tried."""
        found = (each for each in self.trials if each.workers == workers)
        return next(found, Loading(workers=workers))

    @property
    def old(self) -> Loading:
        """With as many as the loader has."""
        return self.of(self.now)

    @property
    def new(self) -> Loading:
        """With the number that was chosen."""
        return self.of(self.chosen)

    @property
    def times(self) -> float:
        """How many times as fast the chosen number loads, as measured."""
        return self.old.batch_s / max(self.new.batch_s, 1e-9)

    @property
    def gains(self) -> bool:
        """Whether the chosen number is faster beyond doubt, once it is kept."""
        return self.new.kept.is_faster_than(self.old)

    @property
    def changes(self) -> bool:
        """Whether others are to load, or to be kept: those asked for, or that pay."""
        asked = self.stopped is Stopped.ASKED and self.chosen != self.now
        return asked or self.gains


@dataclass(frozen=True)
class CopyMode(Record):
    """The batch's own leaves copied to the device in one way."""

    pinned: bool  # from pinned memory; else pageable
    blocking: bool  # as `.to(device)`; else `non_blocking=True`
    host: Samples = Samples()  # how long the host was held
    device: Samples = Samples()  # how long they took there; the host, if that is silent


@dataclass(frozen=True)
class Step(Record):
    """What is done with each batch."""

    name: str = ""
    samples: Samples = Samples()
    synthetic: bool = False  # it stands in, as long as the slowest other part


@dataclass(frozen=True)
class Rates(Record):
    """How fast each part is on its own; what was not measured is empty."""

    load: Loading = Loading()
    pin_copy: Samples = Samples()  # the batch, into pinned memory that is reused
    copies: tuple[CopyMode, ...] = ()
    step: Step = Step()
    nbytes: int = 0  # of the batch

    def copy(self, *, pinned: bool, blocking: bool) -> CopyMode:
        """One of the ways."""
        for each in self.copies:
            if (each.pinned, each.blocking) == (pinned, blocking):
                return each
        return CopyMode(pinned, blocking)


# ------------------------------------------------------------- what can be won


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
    """The most that a remedy can give, by what was measured."""

    remedy: Remedy
    step_s: float  # a step cannot be shorter
    now_s: float  # a step as it is, at most, with the same compute
    workers: int = 0  # that load then
    exposed: tuple[tuple[Part, float], ...] = ()  # what of a step nothing hides

    @property
    def times(self) -> float:
        """How many times as fast it makes a step at most."""
        return self.now_s / self.step_s if self.step_s > 0 else 1.0


@dataclass(frozen=True)
class Bound(Record):
    """The shortest step that is possible, before anything is changed."""

    parts: tuple[tuple[Part, float], ...] = ()  # each on its own
    now_s: float = 0.0  # a step as it is
    best_s: float = 0.0  # no step can be shorter: the slowest part
    binding: Part = Part.LOAD
    gains: tuple[Gain, ...] = ()
    synthetic_step: bool = False  # the gain is then the most for any step
    exposed: tuple[tuple[Part, float], ...] = ()

    def gain(self, *remedies: Remedy) -> Gain:
        """The best of these; the simplest of those that are near, and none is 1.0x."""
        none = Gain(remedies[0], self.now_s, self.now_s, exposed=self.exposed)
        there = [each for each in self.gains if each.remedy in remedies] or [none]
        most = max(each.times for each in there)
        return next(each for each in there if each.times >= most / WORTH_IT)

    def times(self, *remedies: Remedy) -> float:
        """How many times as fast the best of these makes a step at most."""
        return self.gain(*remedies).times

    @property
    def is_worth_it(self) -> bool:
        """Whether a remedy is known that gains something."""
        return self.times(*Remedy) >= WORTH_IT

    @property
    def pins(self) -> bool:
        """Whether the loader pins already, so that pinning is no remedy."""
        return all(each.remedy is not Remedy.PIN for each in self.gains)


# What a report begins with, before anything was found.
NO_REMARK, NO_BATCH, NO_BOUND = Remark(""), Anatomy(), Bound()
NOT_LOADED, NOT_SEARCHED, NOT_MEASURED = Loading(), WorkerSearch(), Rates()


# --------------------------------------------------------------- the new loader


@dataclass(frozen=True)
class Sameness(Record):
    """Whether old and new loader give the same batches."""

    batches: int  # so many were compared
    same: bool  # in value, order and class
    difference: str = ""  # the first one, in words
    problem: str = ""  # why that cannot be told, or what it was told by


@dataclass(frozen=True)
class EndToEnd(Record):
    """Old loop, `step(batch.to(device))`, and new loop, run in turn."""

    result: Comparison  # seconds for a step; the base is the old one
    batches: int = 0  # steps in each run
    modelled: bool = False  # worked out: a simulated device has a clock of its own


class State(enum.Enum):
    """How it ended."""

    NOTHING = "nothing-to-win"
    DIAGNOSED = "diagnosed"
    FASTER = "faster"
    SAME = "no-difference"  # none that was measured
    REFUSED = "refused"
    NO_ACCELERATOR = "no-accelerator"


# ------------------------------------------------------------- a watched cell


@dataclass(frozen=True)
class CopyLine(Record):
    """A line of the cell that copied to a device."""

    line: CodeLine
    times: int
    nbytes: int
    pageable_bytes: int
    blocking: int  # copies without `non_blocking=True`
    held_s: float  # how long these held the host

    @property
    def memory(self) -> str:
        """What it copied from."""
        return "pageable" if self.pageable_bytes else "pinned"


@dataclass(frozen=True)
class DataWait(Record):
    """How long a loop waited for its loader."""

    loader: str  # its name in the notebook, or its class
    line: CodeLine
    waits: Samples  # one a batch; the first has the start of the workers
    workers: int = 0

    @property
    def total_s(self) -> float:
        """All waits together."""
        return sum(self.waits.seconds)
