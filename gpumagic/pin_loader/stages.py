"""The six stages of an investigation: look, load, feed, bound, make, prove.

A stage is a function that is given the case. It notes what it finds, and raises how
the investigation has ended where it is to go no further. Those before `make` change
nothing: random numbers and samplers are put back at the end, and only clones of the
user's loader are iterated. A loader that cannot be cloned stays as it is.
"""

from __future__ import annotations

import itertools
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.opening import best_device, open_runtime
from gpumagic.devices.simulated import word_of
from gpumagic.pin_loader import anatomy as anatomies
from gpumagic.pin_loader import bound as bounds
from gpumagic.pin_loader import feed as feeding
from gpumagic.pin_loader import load as loading
from gpumagic.pin_loader import prove as proving
from gpumagic.pin_loader import records
from gpumagic.pin_loader.answer_loader import LoaderReport
from gpumagic.pin_loader.loader import (
    USUAL_PREFETCH,
    NotCopied,
    clone,
    facts_of,
    one_shot_reason,
    rebuild,
    start_method_of,
    unpicklable,
)
from gpumagic.pin_loader.prefetcher import DevicePrefetcher, known_device
from gpumagic.pin_loader.records import Part, Pinned, Remark, Remedy, State
from gpumagic.pin_loader.trial import batches_of, kept
from gpumagic.report.introspection import is_truly
from gpumagic.report.robust import Verdict
from gpumagic.report.units import seconds_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.devices.protocols import Runtime

    Progress = Callable[[float, str], object]

_HARDLY_ANY = 0.01
_FEWEST_LOADED = 22  # by one pair of runs, each after a few batches to begin with
_PATIENCE = 1.25  # times the budget, after which nothing long is begun
_COMPARED = 8  # batches
_READ_BYTES_PER_S = 5e8  # copied, and summed up, by one thread


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is asked of a loader."""

    name: str = "the loader"  # or what the user calls it
    out: str = ""  # the name of the new one
    device: Any = None  # where batches go; None is the current one of the best kind
    workers: int | str | None = None  # "auto" to find out, None to leave them
    step: Callable[[Any], object] | None = None  # called with a batch
    budget_s: float = 10.0
    diagnose: bool = False  # nothing is made, and no device is started
    force: bool = False  # go on where it is refused, or not worth it


class Ended(Exception):
    """An investigation goes no further."""

    def __init__(self, state: State, reason: Remark = records.NO_REMARK) -> None:
        self.state, self.reason = state, reason


class Improved(NamedTuple):
    """What to iterate from now on, None where nothing was made; and all about it."""

    loader: DevicePrefetcher | None
    report: LoaderReport


@dataclass
class Case:
    """One loader under investigation: what is asked, at hand, and found so far."""

    loader: Any
    options: Options
    runtime: Runtime
    device: int
    report: LoaderReport
    step: feeding.CountedStep | None = None
    began_s: float = field(default_factory=time.monotonic)
    tell: Callable[[float], object] = lambda _: None  # how far a stage has come
    undo: ExitStack = field(default_factory=ExitStack)  # ends with the last stage
    batch: Any = None  # a real one on the host; gone as soon as it is not needed
    batch_s: float = 0.0  # how long loading of one takes, by what is known now
    limits: Sequence[Remark] = ()  # what it takes of the machine
    shares_out: bool = False  # workers of an iterable dataset each give a part of it
    load: records.Loading = field(init=False)  # as it is
    new: Any = None  # the rebuilt loader, still on the host
    feeding: DevicePrefetcher | None = None  # what the user is to iterate

    @property
    def facts(self) -> records.LoaderFacts:
        """What the loader is set to do."""
        return self.report.loader

    @property
    def workers(self) -> int:
        """Workers that the new loader is to have: as before, or as was asked for."""
        asked, search = self.options.workers, self.report.workers
        if isinstance(asked, int):
            return asked
        return search.chosen if asked and search.trials else self.facts.workers

    @property
    def most_workers(self) -> int:
        """So many can have a batch to load, and are worth a trial."""
        return min(loading.MOST, self.facts.length or loading.MOST)

    @property
    def left_s(self) -> float:
        """What is left of the time that all of it may take."""
        return self.options.budget_s - (time.monotonic() - self.began_s)

    @property
    def pins(self) -> bool:
        """Whether there is something to pin for."""
        return self.runtime.kind not in ("cpu", "mps")

    @property
    def is_pinned(self) -> bool:
        """Whether the tensors of its batches are pinned now, but for what never is."""
        never = records.WhyPageable.NOT_A_TENSOR, records.WhyPageable.NOT_DENSE
        pageable = sum(
            leaf.nbytes
            for leaf in self.report.anatomy.leaves
            if leaf.pinned is Pinned.PAGEABLE and leaf.why not in never
        )
        pinned = self.report.anatomy.bytes_that_are(Pinned.PINNED)
        return pinned > 0 and pageable <= _HARDLY_ANY * pinned

    @property
    def starts_nothing(self) -> bool:
        """Whether copies cannot be measured without starting the device."""
        return self.options.diagnose and not self.runtime.started()

    def note(self, *remarks: Remark, **found: Any) -> None:
        """Write down what was found."""
        remarks = (*self.report.remarks, *remarks)
        self.report = replace(self.report, remarks=remarks, **found)

    def trial_copy(self, **changes: Any) -> Any:
        """A loader like the user's that can be iterated without a trace."""
        if self.starts_nothing:  # as pinning would
            changes["pin_memory"] = False
        return clone(self.loader, **changes)

    def refusals(self, count: int) -> list[Remark]:
        """Note what so many workers would take; which limits forbid them."""
        ahead = self.facts.prefetch_factor or USUAL_PREFETCH
        needed = anatomies.needed_bytes(
            self.report.anatomy, count, ahead, pinned=self.pins
        )
        limits = anatomies.limits_of(needed, anatomies.look_at_room())
        self.limits = [remark for remark, _ in limits]
        force = self.options.force
        return [remark for remark, too_much in limits if too_much and not force]

    def make_current(self) -> None:
        """Make the device current until the last stage has ended; this starts it.

        Pinning takes the current device. Under another one it would start that, and
        leave some hundred MB there for good.
        """
        number = self.device
        if not self.pins or self.runtime.current_device() == number:
            return
        import torch

        kind = self.runtime.kind
        try:
            self.undo.enter_context(getattr(torch, kind).device(number))
        except RuntimeError as error:
            raise feeding.unusable(torch.device(kind, number), error) from error


# ------------------------------------------------------------------------- look


def look(case: Case) -> None:
    """What it is set to do, and one batch; refuse what would do harm."""
    if is_truly(case.loader, DevicePrefetcher):
        raise Ended(State.NOTHING, _COPIES_AHEAD)
    if used_up := one_shot_reason(case.loader):
        raise _stays(case, Remark(f"{used_up}: what is looked at is lost", _BEGIN_ANEW))
    try:
        clone(case.loader)
    except NotCopied as why:
        raise Ended(State.NOTHING, Remark(why.problem, why.hint)) from None
    if case.facts.workers or case.options.workers:
        for remark in unpicklable(case.loader):
            raise _stays(case, remark)
    if case.facts.iterable and case.workers > 1:
        _look_for_doubles(case)
    _look_at_a_batch(case)


def _stays(case: Case, remark: Remark) -> Ended:
    stays = f"{case.facts.name} stays as it is"
    return Ended(State.REFUSED, Remark(f"{stays}: {remark.text}", remark.hint))


def _look_for_doubles(case: Case) -> None:
    """Refuse an iterable dataset that each worker goes through as a whole."""
    count = case.workers
    with loading.told_in_short():
        twice = proving.given_by_all_workers(
            case.trial_copy(workers=count, pin_memory=False),
            enough_s=case.options.budget_s / 10,
        )
    case.shares_out = twice is False
    if not twice:
        return
    text = (
        f"each record comes {count} times: its {count} workers each go through the "
        "whole dataset in every epoch"
    )
    remark = Remark(text, _SHARE_OUT, serious=True)
    if not case.options.force:
        raise Ended(State.REFUSED, remark)
    case.note(remark)


def _look_at_a_batch(case: Case) -> None:
    """Take one batch, and say what it consists of; how long that takes is noted.

    A loader with workers is asked with one: what a dataset opens when it is first
    asked would else be open in this process, and shared by all workers to come.
    """
    asked_s = time.monotonic()
    one = case.trial_copy(workers=min(case.facts.workers, 1), prefetch_factor=1)
    with batches_of(one) as batches, loading.told_in_short():
        first = list(itertools.islice(batches, 1))
    if not first:
        raise loading.no_batches()
    (case.batch,) = first
    case.batch_s = time.monotonic() - asked_s
    unpinned = case.starts_nothing and case.facts.pin_memory
    found = anatomies.anatomy_of(
        case.batch, case.runtime, case.facts, unpinned=unpinned
    )
    case.note(anatomy=found)
    on_device = found.bytes_that_are(Pinned.ON_DEVICE)
    if on_device and on_device == found.tensor_bytes:
        raise _stays(case, _ON_THE_DEVICE)
    _refuse_too_much(case)


def _refuse_too_much(case: Case) -> None:
    """Say what pinning and workers take of the machine, and refuse too much."""
    for remark in case.refusals(case.workers):
        if not case.options.diagnose:
            raise Ended(State.REFUSED, remark)


# ------------------------------------------------------------------------- load


def load(case: Case) -> None:
    """How fast it gives batches, and how fast with other numbers of workers."""
    budget_s, asked = case.options.budget_s, case.options.workers
    known = loading.measure_loading(case.trial_copy(), budget_s=budget_s * 0.08)
    if case.loader.persistent_workers:
        known = known.kept
    case.load, case.batch_s = known, known.batch_s
    case.note(rates=records.Rates(known))
    now = known.workers
    refused = unpicklable(case.loader)
    if case.facts.iterable and not case.shares_out:
        text = "each worker would give all of an iterable dataset again"
        refused = [Remark(text, _SHARE_OUT)]
    if isinstance(asked, int):
        trials = {now: known}
        if asked != now:
            trials[asked] = _measured(case, asked, budget_s * 0.1)
        ordered = tuple(trials[count] for count in sorted(trials))
        found = records.WorkerSearch(ordered, asked, records.Stopped.ASKED, now)
    elif refused:
        found = records.WorkerSearch(
            (known,), now, records.Stopped.REFUSED, now, problems=tuple(refused)
        )
    else:

        def measure(count: int, seconds: float) -> records.Loading:
            for remark in case.refusals(count):
                raise loading.TooMany(remark.text, remark.hint)
            return _measured(case, count, seconds)

        found = loading.search(
            measure,
            known,
            processors=loading.usable(),
            budget_s=min(budget_s * 0.4, max(case.left_s - budget_s * 0.2, 0.0)),
            most=case.most_workers,
        )
    case.note(*found.problems, workers=found)
    _refuse_too_much(case)


def _measured(case: Case, count: int, budget_s: float) -> records.Loading:
    """Loading with so many workers; without any it is asked where nobody minds."""
    patience_s = max(case.options.budget_s, loading.PATIENCE_S / 6)
    case.tell(1 - case.left_s / max(case.options.budget_s, 1e-9))
    how = {"budget_s": budget_s, "patience_s": patience_s}
    if count or not case.facts.workers:
        found = loading.measure_loading(case.trial_copy(workers=count), **how)
        if case.loader.persistent_workers:
            found = found.kept
        return loading.within_reason(found, case.load, case.most_workers)
    alone = case.trial_copy(workers=0, pin_memory=False)
    return loading.measure_apart(alone, start_method_of(case.loader), **how)


# ------------------------------------------------------------------ feed, bound


def feed(case: Case) -> None:
    """How fast a batch comes to the device, and how long a step takes there."""
    if not case.pins:
        raise Ended(State.NO_ACCELERATOR, _NO_ACCELERATOR)
    if case.starts_nothing:
        case.note(_NOT_COPIED)
        raise Ended(State.DIAGNOSED)
    case.undo.enter_context(feeding.given_back(case.runtime, case.device))
    found = feeding.measure_feed(
        case.batch,
        case.runtime,
        case.device,
        load=case.load,
        step=case.step,
        budget_s=case.options.budget_s * 0.2,
    )
    case.note(rates=found)
    if not found.copies:
        case.note(_NO_LEAVES)


def bound(case: Case) -> None:
    """Say what can be gained at most, and end where that is nothing."""
    case.batch = None
    found = bounds.bound_of(
        case.report.rates,
        pinned=case.is_pinned,
        workers=case.facts.workers,
        search=case.report.workers,
    )
    case.note(bound=found)
    asked = case.options.workers
    if case.options.diagnose:
        raise Ended(State.DIAGNOSED)
    other_workers = isinstance(asked, int) or case.workers != case.facts.workers
    if case.options.force or other_workers:
        return
    ahead, other = found.times(Remedy.PREFETCH), found.times(Remedy.WORKERS)
    if other >= records.WORTH_IT and other > ahead:
        raise Ended(State.DIAGNOSED)  # that comes first, and is the user's to say
    if ahead >= records.WORTH_IT:
        return
    slowest, now = seconds_text(found.best_s), seconds_text(found.now_s)
    text = f"{found.binding.value} takes {slowest} of {now} a step"
    raise Ended(State.NOTHING, Remark(text, _INSTEAD[found.binding]))


# ------------------------------------------------------------------ make, prove


def make(case: Case) -> None:
    """Rebuild it, and put the prefetcher round it."""
    before, load = case.facts.workers, case.report.workers.of(case.workers)
    keeps = case.workers != before and load.starts_long
    case.new, changed = rebuild(
        case.loader,
        workers=case.workers,
        pin_memory=case.pins or case.facts.pin_memory,
        persistent_workers=keeps or case.loader.persistent_workers,
    )
    case.feeding = DevicePrefetcher(case.new, case.report.device)
    case.note(changed=changed)


def prove_the_same(case: Case) -> None:
    """Compare what old and new loader give, batch by batch, under one random state."""
    each_s = case.batch_s + case.report.anatomy.tensor_bytes / _READ_BYTES_PER_S
    affordable = int(case.options.budget_s / 10 / max(each_s, 1e-9))
    found = proving.compare(
        case.loader,
        case.feeding,
        batches=min(max(affordable, 2), _COMPARED),
        enough_s=case.options.budget_s / 20,
    )
    case.note(sameness=found)
    if not found.difference or case.options.force:
        return
    case.feeding = None
    text = f"rebuilt, {case.facts.name} gave other batches: {found.difference}"
    hint = "keep the old one; --force makes the new one all the same"
    raise Ended(State.REFUSED, Remark(text, hint))


def prove_faster(case: Case) -> None:
    """Run both loops in turn, or work out what they take."""
    rates, new_load = case.report.rates, case.report.workers.of(case.workers)
    step: Callable[[Any], object] | None = case.step
    if not step:
        # As long as loading took before, it would hide that loading is faster now.
        quicker = min(case.load, new_load, key=lambda each: each.between.median_s)
        used = replace(rates, load=quicker)
        step = feeding.stand_in_for(used, case.runtime, case.device)
        taken = records.Samples((step.seconds,))
        rates = replace(rates, step=records.Step(step.__name__, taken, synthetic=True))
        case.note(rates=rates)
    # Both loops stay open: neither starts its workers while it is timed.
    pinned = case.is_pinned
    old, new = (
        replace(
            bounds.costs_of(rates, workers=each.workers, pinned=pinned),
            load_s=each.between.median_s,
        )
        for each in (case.load, new_load)
    )
    budget_s = case.options.budget_s
    if case.runtime.simulated:
        known = case.load == new_load or loading.is_told_apart(case.load, new_load)
        proof = proving.worked_out(old, new, known=known)
    elif case.left_s + (_PATIENCE - 1) * budget_s < _FEWEST_LOADED * case.batch_s:
        raise Ended(State.SAME, _TOO_FEW)
    else:
        proof = proving.end_to_end(
            case.trial_copy(),
            DevicePrefetcher(clone(case.new), case.report.device),
            case.runtime,
            device=case.device,
            step=step,
            about_s=bounds.step_s(old, bounds.Way.BLOCKING),
            budget_s=max(case.left_s, budget_s / 4),
            tell=case.tell,
        )
    case.note(end_to_end=proof)
    changed = case.workers != case.facts.workers
    remedy = Remedy.EVERYTHING if changed else Remedy.PREFETCH
    case.note(bound=bounds.after_proof(case.report.bound, proof, remedy))
    _judge(case, proof)


def _judge(case: Case, proof: records.EndToEnd) -> None:
    """What the proof comes to. A loader that is no faster is not kept."""
    if not proof.result.interval:
        raise Ended(State.SAME, _TOO_FEW)
    faster = proof.result.verdict is Verdict.FASTER
    if faster and (proof.result.ratio * records.WORTH_IT <= 1 or case.options.force):
        return
    if case.options.force:
        raise Ended(State.SAME)
    case.feeding = None
    raise Ended(State.SAME, _MEASURED_NOTHING)


# ---------------------------------------------------------------- going through

# What is done, the share of the time that it takes, what is said meanwhile.
LOOK = (look, 0.05, "looking at a batch")
MAKE = (make, 0.0, "rebuilding")
SAME = (prove_the_same, 0.1, "comparing batches")
STAGES = (
    LOOK,
    (load, 0.45, "loading, and trying workers"),
    (feed, 0.2, "copying and computing"),
    (bound, 0.0, "working out the bound"),
    MAKE,
    SAME,
    (prove_faster, 0.2, "running both loops in turn"),
)
PINNING = (LOOK, MAKE, SAME)


def investigate(
    loader: Any,
    options: Options,
    progress: Progress = lambda *_: None,
    stages: Sequence[tuple[Callable[[Case], None], float, str]] = STAGES,
) -> Improved:
    """Go from stage to stage until one of them ends it."""
    case, before = _open(loader, options), 0.0
    state, reason = State.FASTER, records.NO_REMARK
    whole = sum(share for _, share, _ in stages)
    with kept(case.loader), case.undo:
        if not case.starts_nothing:
            case.make_current()
        for run, share, note in stages:

            def tell(
                part: float,
                done: float = before,
                share: float = share,
                note: str = note,
            ) -> object:
                return progress((done + min(part, 1.0) * share) / whole, note)

            case.tell = tell
            tell(0.0)
            try:
                run(case)
            except Ended as ended:
                state, reason = ended.state, ended.reason
                break
            before += share
    case.batch = None
    if state is not State.REFUSED:
        case.note(*case.limits)
    if case.step and case.step.calls:
        case.note(case.step.remark())
    case.note(state=state, reason=reason)
    if case.feeding is not None:  # to ask it for its truth would be to ask its length
        case.note(*_on_workers(case), out=options.out)
    return Improved(case.feeding, case.report)


def _open(loader: Any, options: Options) -> Case:
    inside = loader.loader if is_truly(loader, DevicePrefetcher) else loader
    if options.workers is not None:
        loader = inside  # it is made anew, with other workers
    facts = facts_of(inside, options.name)
    device = best_device() if options.device is None else known_device(options.device)
    runtime, number = open_runtime(device.type), device.index
    if number is None:
        number = runtime.current_device() or 0
    place = word_of(runtime.kind)
    if place != "cpu":
        place += f":{number}"
    report = LoaderReport(State.FASTER, place, facts, loading.label_of(runtime))
    case = Case(loader, options, runtime, number, report)
    if options.step is not None:
        case.step = feeding.CountedStep(options.step)
    return case


def _on_workers(case: Case) -> Iterator[Remark]:
    """What to know of those of the new loader."""
    before, old = case.facts.workers, case.report.rates.load
    if case.workers != before:
        text = (
            "random transforms draw other numbers, as each worker has its own seed: "
            f"there are {case.workers} instead of {before}; the order is the same"
        )
        hint = f"keep num_workers={before} to reproduce an earlier training exactly"
        yield Remark(text, hint)
    elif old.starts_long:
        text = f"starting its workers takes {seconds_text(old.start_s)} of each epoch"
        yield Remark(text, "persistent_workers=True keeps them")


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
    "both loops were compared, and the new one is not faster by 5 %",
    "keep the loader; --force makes the new one all the same",
)
