"""The six stages of an investigation: look, load, feed, bound, make, prove.

A stage is a function that is given the case. It notes what it finds, and gives an
ending where the investigation is to go no further. Those before `make` change nothing:
random numbers and samplers are put back at the end, and only clones of the user's
loader are iterated. A loader that cannot be cloned stays as it is.
"""

from __future__ import annotations

import dataclasses
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.opening import open_runtime
from gpumagic.devices.simulated import word_of
from gpumagic.errors import DeviceError, GpuMagicError
from gpumagic.pin_loader import bound as bounds
from gpumagic.pin_loader import feed as feeding
from gpumagic.pin_loader import limits, loops, pickled, same, workers
from gpumagic.pin_loader import load as loading
from gpumagic.pin_loader.answer_loader import LoaderReport
from gpumagic.pin_loader.leaves import anatomy_of
from gpumagic.pin_loader.loader import (
    USUAL_PREFETCH,
    clone,
    facts_of,
    one_shot_reason,
    rebuild,
    start_method_of,
)
from gpumagic.pin_loader.prefetcher import DevicePrefetcher
from gpumagic.pin_loader.random_state import kept
from gpumagic.pin_loader.records import (
    WORTH_IT,
    Part,
    Pinned,
    Remark,
    Remedy,
    Samples,
    State,
    Step,
    Stopped,
    WhyPageable,
    WorkerSearch,
)
from gpumagic.pin_loader.trial import batches_of
from gpumagic.report.introspection import is_truly
from gpumagic.report.robust import Verdict
from gpumagic.report.units import seconds_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpumagic.devices.protocols import Runtime
    from gpumagic.pin_loader.records import Anatomy, Bound, Guard, LoaderFacts, Loading

    Progress = Callable[[float, str], object]

_HARDLY_ANY = 0.01
_FEWEST_LOADED = 22  # by one pair of runs, each after a few batches to begin with
_PATIENCE = 1.25  # times the budget, after which nothing long is begun
_COMPARED = 8  # batches
_READ_BYTES_PER_S = 5e8  # copied, and summed up, by one thread


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is asked of a loader."""

    name: str | None = None  # what the user calls it
    out: str | None = None  # the name of the new one
    device: Any = None  # where batches go; None is the current one of the best kind
    workers: int | str | None = None  # "auto" to find out, None to leave them
    step: Callable[[Any], object] | None = None  # called with a batch
    budget_s: float = 10.0
    diagnose: bool = False  # nothing is made, and no device is started
    force: bool = False  # go on where it is refused, or not worth it


class Ending(NamedTuple):
    """Why an investigation goes no further."""

    state: State
    reason: Remark | None = None


class Stage(NamedTuple):
    """What is done, the share of the time that it takes, what is said meanwhile."""

    run: Callable[[Case], Ending | None]
    share: float
    note: str


class Improved(NamedTuple):
    """What to iterate from now on, None where nothing was made; and all about it."""

    loader: DevicePrefetcher | None
    report: LoaderReport

    def __repr__(self) -> str:
        return f"Improved({self.loader!r}, {self.report.headline!r})"

    def __str__(self) -> str:
        return str(self.report)


@dataclass
class Case:
    """One loader under investigation: what is asked, at hand, and found so far."""

    loader: Any
    options: Options
    runtime: Runtime
    device: int | None
    found: LoaderReport
    step: feeding.CountedStep | None = None
    tell: Callable[[float], object] = lambda _: None
    batch: Any = None  # a real one on the host; gone as soon as it is not needed
    batch_s: float = 0.0  # how long loading of one takes, by what is known now
    shares_out: bool = False  # workers of an iterable dataset each give a part of it
    new: Any = None  # the rebuilt loader, still on the host
    feeding: DevicePrefetcher | None = None  # what the user is to iterate
    undo: ExitStack = field(default_factory=ExitStack)  # ends with the last stage
    began_s: float = 0.0

    def note(self, **found: Any) -> None:
        """Add to what was found, by the names of the report."""
        self.found = dataclasses.replace(self.found, **found)

    def remark(self, *remarks: Remark) -> None:
        """Add what a reader has to know."""
        self.note(remarks=(*self.found.remarks, *remarks))

    @property
    def facts(self) -> LoaderFacts:
        """What the loader is set to do."""
        return self.found.loader

    @property
    def anatomy(self) -> Anatomy:
        """What a batch consists of; one has been looked at."""
        assert self.found.anatomy is not None  # noqa: S101 -- by an earlier stage
        return self.found.anatomy

    @property
    def now(self) -> int:
        """Workers that the loader has."""
        return self.facts.workers or 0

    @property
    def workers(self) -> int:
        """Workers that the new loader is to have: as before, or as was asked for."""
        search, asked = self.found.workers, self.options.workers
        if isinstance(asked, int):
            return asked
        return search.chosen if asked == "auto" and search is not None else self.now

    @property
    def place(self) -> str:
        """Where batches go, as torch calls it."""
        kind = word_of(self.runtime.kind)
        return kind if self.device is None else f"{kind}:{self.device}"

    @property
    def left_s(self) -> float:
        """What is left of the time that all of it may take."""
        return self.options.budget_s - (time.monotonic() - self.began_s)

    @property
    def pins(self) -> bool:
        """Whether there is something to pin for."""
        return self.runtime.kind not in ("cpu", "mps")

    @property
    def starts_nothing(self) -> bool:
        """Whether copies cannot be measured without starting the device."""
        return self.options.diagnose and not self.runtime.started()

    def trial_copy(self, **changes: Any) -> Any:
        """A loader like the user's that can be iterated without a trace."""
        if self.starts_nothing:  # as pinning would
            changes["pin_memory"] = False
        return clone(self.loader, **changes)

    def guard_with(self, count: int) -> Guard:
        """What so many workers would take of the machine."""
        ahead = self.facts.prefetch_factor or USUAL_PREFETCH
        demand = limits.Demand(self.anatomy, count, ahead, self.pins)
        return limits.guard(demand, force=self.options.force)

    def prefetcher(self, loader: Any) -> DevicePrefetcher:
        """A loader that copies to where batches go."""
        return DevicePrefetcher(loader, self.place)

    def make_current(self) -> None:
        """Make the device current until the last stage has ended; this starts it.

        Pinning takes the current device. Under another one it would start that, and
        leave some hundred MB there for good.
        """
        number = self.device
        if not self.pins or number is None or self.runtime.current_device() == number:
            return
        import torch

        kind = self.runtime.kind
        try:
            self.undo.enter_context(getattr(torch, kind).device(number))
        except RuntimeError as error:
            raise feeding.unusable(torch.device(kind, number), error) from error


# ------------------------------------------------------------------------- look


def look(case: Case) -> Ending | None:
    """What it is set to do, and one batch; refuse what would do harm."""
    if is_truly(case.loader, DevicePrefetcher):
        return Ending(State.NOTHING, _COPIES_AHEAD)
    reason = one_shot_reason(case.loader)
    if reason is not None:
        text = f"{reason}, so that every batch that is looked at is lost"
        return Ending(State.REFUSED, Remark(text, _BEGIN_ANEW))
    why_not = rebuild(case.loader).why_not
    if why_not is not None:
        return Ending(State.NOTHING, why_not)
    if case.now or case.options.workers not in (None, 0):
        remark = pickled.unpicklable(case.loader)
        if remark is not None:
            return Ending(State.REFUSED, remark)
    return _look_for_doubles(case, case.now) or _look_at_a_batch(case)


def _look_for_doubles(case: Case, count: int) -> Ending | None:
    """Refuse an iterable dataset that each worker goes through as a whole."""
    if not case.facts.iterable or count < 2:
        return None
    try:
        twice = same.given_by_all_workers(
            case.trial_copy(workers=count, pin_memory=False),
            enough_s=case.options.budget_s / 10,
        )
    except Exception as error:  # noqa: BLE001 -- the user's own, whatever it is
        raise loading.failure_of(error, 0) from None
    case.shares_out = twice is False
    if not twice:
        return None
    often = "twice" if count == 2 else f"{count} times"
    text = (
        f"its {count} workers each go through the whole dataset, and so does an epoch"
    )
    remark = Remark(f"each record comes {often}: {text}", _SHARE_OUT, serious=True)
    if case.options.force:
        case.remark(remark)
        return None
    return Ending(State.REFUSED, remark)


def _look_at_a_batch(case: Case) -> Ending | None:
    """Take one batch, and say what it consists of; how long that takes is noted.

    A loader with workers is asked with one: what a dataset opens when it is first
    asked would else be open in this process, and shared by all workers to come.
    """
    if case.facts.pin_memory and not case.starts_nothing:
        case.make_current()
    asked_s = time.monotonic()
    one = case.trial_copy(workers=min(case.now, 1), prefetch_factor=1)
    with batches_of(one) as batches:
        try:
            case.batch = next(batches)
        except StopIteration:
            raise loops.no_batches(case.options.name) from None
        except GpuMagicError:
            raise
        except Exception as error:  # noqa: BLE001 -- the user's own, whatever it is
            raise loading.failure_of(error, 0) from None
    case.batch_s = time.monotonic() - asked_s
    unpinned = case.starts_nothing and bool(case.facts.pin_memory)
    anatomy = anatomy_of(case.batch, case.runtime, case.facts, unpinned=unpinned)
    case.note(anatomy=anatomy)
    on_device = anatomy.bytes_that_are(Pinned.ON_DEVICE)
    if on_device and on_device == anatomy.tensor_bytes:
        return Ending(State.REFUSED, _ON_THE_DEVICE)
    return _refuse_too_much(case)


def _refuse_too_much(case: Case) -> Ending | None:
    """Say what pinning and workers take of the machine, and refuse too much."""
    found = case.guard_with(case.workers)
    case.note(guard=found)
    limit = found.refusing
    if limit is None or case.options.diagnose:
        return None
    text = f"it would take too much of the {limit.kind.value}"
    return Ending(State.REFUSED, Remark(text, limit.hint))


# ------------------------------------------------------------------------- load


def load(case: Case) -> Ending | None:
    """How fast it gives batches, and how fast with other numbers of workers."""
    budget_s = case.options.budget_s
    known = loading.measure_loading(case.trial_copy(), budget_s=budget_s * 0.08)
    case.batch_s = known.batch_s
    case.note(rates=dataclasses.replace(case.found.rates, load=known))
    asked = case.options.workers
    if isinstance(asked, int):
        if asked == case.now:
            return None
        ending = _look_for_doubles(case, asked)
        if ending is not None:
            return ending
        trial = _measured(case, asked, budget_s * 0.1, known)
        trials = tuple(sorted((known, trial), key=lambda each: each.workers))
        case.note(workers=WorkerSearch(trials, asked, Stopped.ASKED, case.now))
        return None
    found = workers.search(
        lambda count, seconds: _measured(case, count, seconds, known),
        known,
        processors=case.found.setting.processors or 1,
        budget_s=min(budget_s * 0.4, max(case.left_s - budget_s * 0.2, 0.0)),
        refuse=_why_no_workers(case),
        refusing=lambda count: case.guard_with(count).refusing,
        progress=case.tell,
    )
    case.note(workers=found)
    return _refuse_too_much(case) if asked == "auto" else None


def _measured(case: Case, count: int, budget_s: float, known: Loading) -> Loading:
    """Loading with so many workers; without any it is asked where nobody minds."""
    patience_s = max(case.options.budget_s, loading.PATIENCE_S / 6)
    if count or not case.now:
        found = loading.measure_loading(
            case.trial_copy(workers=count),
            budget_s=budget_s,
            patience_s=patience_s,
        )
        return workers.within_reason(found, known)
    return loading.measure_apart(
        case.trial_copy(workers=0, pin_memory=False),
        start_method_of(case.loader),
        budget_s=budget_s,
        patience_s=patience_s,
    )


def _why_no_workers(case: Case) -> Remark | None:
    if case.facts.iterable and not case.shares_out:
        text = "each worker would give all of an iterable dataset again"
        return Remark(text, _SHARE_OUT)
    return pickled.unpicklable(case.loader)


# ------------------------------------------------------------------ feed, bound


def feed(case: Case) -> Ending | None:
    """How fast a batch comes to the device, and how long a step takes there."""
    if not case.pins:
        return Ending(State.NO_ACCELERATOR, _NO_ACCELERATOR)
    if case.starts_nothing:
        case.remark(_NOT_COPIED)
        return Ending(State.DIAGNOSED)
    case.make_current()
    case.undo.enter_context(feeding.given_back(case.runtime, case.device or 0))
    rates = feeding.measure_feed(
        case.batch,
        case.runtime,
        case.device or 0,
        load=case.found.rates.load,
        step=case.step,
        budget_s=case.options.budget_s * 0.2,
    )
    case.note(rates=rates)
    if not rates.copies:
        case.remark(_NO_LEAVES)
    return None


def bound(case: Case) -> Ending | None:
    """Say what can be gained at most, and end where that is nothing."""
    case.batch = None
    found = bounds.bound_of(
        case.found.rates,
        pinned=_is_pinned(case.anatomy),
        workers=case.now,
        search=case.found.workers,
    )
    case.note(bound=found)
    if case.options.diagnose:
        return Ending(State.DIAGNOSED)
    asked = case.options.workers
    if case.options.force or isinstance(asked, int) or case.workers != case.now:
        return None
    ahead, other = found.times(Remedy.PREFETCH), found.times(Remedy.WORKERS)
    if other >= WORTH_IT and other > ahead:
        return Ending(State.DIAGNOSED)  # that comes first, and is the user's to say
    return None if ahead >= WORTH_IT else Ending(State.NOTHING, _other(found))


def _is_pinned(anatomy: Anatomy) -> bool:
    """Whether the tensors of its batches are pinned now, but for what never is."""
    never = (WhyPageable.NOT_A_TENSOR, WhyPageable.NOT_DENSE)
    pageable = sum(
        leaf.nbytes
        for leaf in anatomy.leaves
        if leaf.pinned is Pinned.PAGEABLE and leaf.why not in never
    )
    pinned = anatomy.bytes_that_are(Pinned.PINNED)
    return pinned > 0 and pageable <= _HARDLY_ANY * pinned


def _other(found: Bound) -> Remark:
    """What to do instead, by what binds."""
    slowest, now = seconds_text(found.best_s), seconds_text(found.now_s)
    text = f"{found.binding.value} takes {slowest} of {now} a step"
    return Remark(text, _INSTEAD[found.binding])


# ------------------------------------------------------------------ make, prove


def make(case: Case) -> Ending | None:
    """Rebuild it, and put the prefetcher round it."""
    case.make_current()
    made = rebuild(
        case.loader,
        pin_memory=True if case.pins else None,
        workers=None if case.workers == case.now else case.workers,
    )
    case.new, case.feeding = made.loader, case.prefetcher(made.loader)
    case.note(changes=made.changes)
    if case.pins:
        case.remark(*made.remarks)
    return None


def prove_the_same(case: Case) -> Ending | None:
    """Compare what old and new loader give, batch by batch, under one random state."""
    each_s = case.batch_s + case.anatomy.tensor_bytes / _READ_BYTES_PER_S
    affordable = int(case.options.budget_s / 10 / max(each_s, 1e-9))
    sameness = same.compare(
        case.loader,
        case.feeding,
        batches=min(max(affordable, 2), _COMPARED),
        enough_s=case.options.budget_s / 20,
    )
    case.note(sameness=sameness)
    if sameness.same is not False or case.options.force:
        return None
    case.feeding = None
    text = f"the new loader gives other data: {sameness.difference}"
    hint = "keep the old one; --force makes the new one all the same"
    return Ending(State.REFUSED, Remark(text, hint, serious=True))


def prove(case: Case) -> Ending | None:
    """Whether it gives the same, and whether it is faster: both loops in turn."""
    return prove_the_same(case) or _prove_faster(case)


def _prove_faster(case: Case) -> Ending:
    rates, search, asked = case.found.rates, case.found.workers, case.options
    old_load = rates.load
    new_load = (search and search.of(case.workers)) or old_load
    assert old_load is not None  # noqa: S101 -- by an earlier stage
    assert new_load is not None  # noqa: S101
    new_rates = dataclasses.replace(rates, load=new_load)
    step: Callable[[Any], object] | None = case.step
    if step is None:
        # As long as loading took before, it would hide that loading is faster now.
        faster = new_load.between.median_s < old_load.between.median_s
        used = new_rates if faster else rates
        step = feeding.stand_in_for(used, case.runtime, case.device or 0)
        timed = Samples((step.seconds,))
        rates, new_rates = (
            dataclasses.replace(each, step=Step(step.__name__, timed, synthetic=True))
            for each in (rates, new_rates)
        )
        case.note(rates=rates)
    # Both loops stay open: neither starts its workers while it is timed.
    pinned = _is_pinned(case.anatomy)
    old, new = (
        bounds.without_starting(each, workers=count, pinned=pinned)
        for each, count in ((rates, case.now), (new_rates, case.workers))
    )
    called = case.step.__name__ if case.step is not None else "step"
    names = loops.Names(asked.name or "loader", asked.out or "pinned", called)
    left_s = case.left_s + (_PATIENCE - 1) * asked.budget_s
    if case.runtime.simulated:
        known = old_load is new_load or workers.is_told_apart(old_load, new_load)
        proof = loops.worked_out(old, new, case.place, names, known=known)
    elif left_s < _FEWEST_LOADED * case.batch_s:
        return _ended(case)
    else:
        proof = loops.end_to_end(
            case.trial_copy(),
            case.prefetcher(clone(case.new)),
            case.runtime,
            device=case.device or 0,
            step=step,
            about_s=bounds.step_s(old, bounds.Way.BLOCKING),
            budget_s=max(case.left_s, asked.budget_s / 4),
            names=names,
            progress=case.tell,
        )
    case.note(end_to_end=proof)
    if case.found.bound is not None:
        changed = case.workers != case.now
        remedy = Remedy.EVERYTHING if changed else Remedy.PREFETCH
        case.note(bound=bounds.after_proof(case.found.bound, proof, remedy))
    return _ended(case)


def _ended(case: Case) -> Ending:
    """What the proof comes to. A loader that is no faster is not kept."""
    proof = case.found.end_to_end
    if proof is None or proof.result.interval is None:
        return Ending(State.SAME, _TOO_FEW)
    faster = proof.result.verdict is Verdict.FASTER
    if (faster and proof.result.ratio * WORTH_IT <= 1) or case.options.force:
        return Ending(State.FASTER if faster else State.SAME)
    case.feeding = None
    return Ending(State.SAME, _MEASURED_NOTHING)


# ---------------------------------------------------------------- going through

LOOK = Stage(look, 0.05, "looking at a batch")
MAKE = Stage(make, 0.0, "rebuilding")
STAGES = (
    LOOK,
    Stage(load, 0.45, "loading, and trying workers"),
    Stage(feed, 0.2, "copying and computing"),
    Stage(bound, 0.0, "working out the bound"),
    MAKE,
    Stage(prove, 0.3, "comparing batches, and running both loops in turn"),
)
PINNING = (LOOK, MAKE, Stage(prove_the_same, 0.1, "comparing batches"))


def investigate(
    loader: Any,
    options: Options,
    stages: Sequence[Stage] = STAGES,
    progress: Progress | None = None,
) -> Improved:
    """Go from stage to stage until one of them ends it."""
    case = _open(loader, options)
    with kept(case.loader), case.undo:
        ending = _ending(case, stages, progress)
    case.batch = None
    if case.step is not None:
        case.remark(*case.step.remarks(simulated=case.runtime.simulated))
    case.note(
        state=ending.state,
        setting=loading.setting_of(case.runtime, case.device),
        reason=ending.reason,
        out=options.out if case.feeding is not None else None,
    )
    return Improved(case.feeding, case.found)


def _ending(case: Case, stages: Sequence[Stage], progress: Progress | None) -> Ending:
    for stage in stages:
        if progress is not None:
            case.tell = _telling(progress, stage, stages)
            case.tell(0.0)
        found = stage.run(case)
        if found is not None:
            return found
    return Ending(State.FASTER)


def _open(loader: Any, options: Options) -> Case:
    step = None if options.step is None else feeding.CountedStep(options.step)
    ours = is_truly(loader, DevicePrefetcher)
    facts = facts_of(loader.loader if ours else loader, options.name)
    kind, number = _kind_and_number(options.device)
    runtime = open_runtime(kind)
    if number is None and runtime.kind != "cpu":
        number = runtime.current_device() or 0
    count = runtime.device_count()
    if number is not None and count is not None and number >= count:
        kind = word_of(runtime.kind)
        there = f"{kind}:0" if count == 1 else f"{kind}:0 to {kind}:{count - 1}"
        raise DeviceError(
            f"there is no {kind}:{number}: there is {there}", f"say --device {kind}:0"
        )
    setting = loading.setting_of(runtime, number)
    found = LoaderReport(State.FASTER, setting, facts)
    began_s = time.monotonic()
    return Case(loader, options, runtime, number, found, step, began_s=began_s)


def _telling(
    progress: Progress, stage: Stage, stages: Sequence[Stage]
) -> Callable[[float], object]:
    """Tells the share of the time that has passed, and what is done meanwhile."""
    at = stages.index(stage)
    before = sum(each.share for each in stages[:at])
    whole = max(sum(each.share for each in stages), 1e-9)
    return lambda part: progress(
        min((before + min(part, 1.0) * stage.share) / whole, 1.0), stage.note
    )


def _kind_and_number(device: Any) -> tuple[str | None, int | None]:
    if device is None:
        return None, None
    if isinstance(device, int):
        return None, device
    kind, _, number = str(device).partition(":")
    return kind, int(number) if number.isdecimal() else None


# ------------------------------------------------------------------ what is said

_BEGIN_ANEW = "make a dataset whose __iter__ begins anew, and a loader of that"
_SHARE_OUT = (
    "let its __iter__ give a part for each worker: itertools.islice(records, info.id, "
    "None, info.num_workers), with info = torch.utils.data.get_worker_info()"
)
_NO_ACCELERATOR = Remark(
    "pinning is impossible here: there is no accelerator; nothing was changed",
    'gpumagic.simulate("h100") puts a simulated one in its place',
)
_COPIES_AHEAD = Remark(
    "it copies ahead to the device already",
    "time your training cell with %%pin_loader --watch",
)
_ON_THE_DEVICE = Remark(
    "its batches are on the device already, and only host memory is pinned",
    "let the dataset return CPU tensors; copying them is the loop's part",
)
_NOT_COPIED = Remark(
    "the device has not been used yet, and pinning or copying would start it: neither "
    "was measured",
    "leave --diagnose off, or use the device first",
)
_NO_LEAVES = Remark(
    "the batch has no dense tensors on the host, so there is nothing to copy",
    "let the dataset, or the collate_fn, return tensors",
)
_FEWER_BYTES = "send fewer bytes: uint8 on the way, converted on the device"
_INSTEAD = {
    Part.LOAD: "make loading itself faster, or store what it works out",
    Part.PIN: _FEWER_BYTES,
    Part.LINK: _FEWER_BYTES,
    Part.STEP: "the device is busy as it is: make the step itself faster",
}
_TOO_FEW = Remark(
    "it was compared batch by batch and is the same, but there was time for few runs",
    "give it more: --budget 60s",
)
_MEASURED_NOTHING = Remark(
    "both loops were run in turn, and the new one is not faster by 5 %",
    "keep the loader; --force makes the new one all the same",
)
