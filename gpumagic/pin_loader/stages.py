"""The stages of an investigation, in their order: look, predict, mend, prove.

Those that look change nothing: random numbers and samplers are put back by whoever runs
the stages, and only clones of the user's loader are iterated, where it can be cloned.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

from gpumagic.errors import GpuMagicError
from gpumagic.pin_loader import bound, buffer_overwrite, same_batches, timing
from gpumagic.pin_loader.inspect_batch import anatomy_of
from gpumagic.pin_loader.inspect_loader import one_shot_reason
from gpumagic.pin_loader.investigation import (
    Ending,
    clone,
)
from gpumagic.pin_loader.loops import end_to_end
from gpumagic.pin_loader.prefetcher import DevicePrefetcher
from gpumagic.pin_loader.rebuild import rebuild
from gpumagic.pin_loader.report import (
    WORTH_IT,
    LimitKind,
    LoaderKind,
    Part,
    Pinned,
    Remark,
    Remedy,
    State,
    Stopped,
    Way,
    WhyPageable,
)
from gpumagic.pin_loader.resources import guard, measured_locked_bytes
from gpumagic.pin_loader.trial import batches_of
from gpumagic.pin_loader.workers import search, unpicklable
from gpumagic.report.introspection import is_truly
from gpumagic.report.robust import Verdict
from gpumagic.report.units import count_text, seconds_text, share_text

if TYPE_CHECKING:
    from gpumagic.pin_loader.investigation import Case
    from gpumagic.pin_loader.report import Guard, Limit, Loading, WorkerSearch

_BATCHES = 20
_LOADING_SHARE, _RATES_SHARE = 0.15, 0.2
_NO_ACCELERATOR = Remark(
    "pinning is impossible here: there is no accelerator; nothing was changed",
    'gpumagic.simulate("h100") puts a simulated one in its place; --workers auto '
    "works without",
)
_COPIES_AHEAD = Remark(
    "it copies ahead to the device already",
    "time your training cell with %%pin_loader --watch",
)
_NOTHING_BUT_ARRAYS = Remark(
    "nothing here can be pinned: its batches are arrays of numpy",
    "torch.from_numpy(...) in the dataset or in the collate_fn",
)
_ON_THE_DEVICE = Remark(
    "its batches are on the device already, and only host memory is pinned",
    "let the dataset return CPU tensors; copying them is the loop's part",
)
_USE_IT_FIRST = "leave --diagnose off, or use the device first"
_NOT_COPIED = Remark(
    "the device has not been used yet, so copies to it were not measured",
    _USE_IT_FIRST,
)
_NEITHER_PINNED_NOR_COPIED = Remark(
    "the device has not been used yet, and pinning or copying would start it: the "
    "loader was asked for batches that are not pinned, and copies were not measured",
    _USE_IT_FIRST,
)
_HARDLY_ANY = 0.01
_FEWEST_IN_AN_EPOCH = 3
_NEVER_PINNED = (
    WhyPageable.NOT_A_TENSOR,
    WhyPageable.NOT_DENSE,
    WhyPageable.OWN_METHOD,
)
_CANNOT_BE_PINNED = Remark(
    "it cannot be rebuilt, so that its batches stay pageable, and copies of those are "
    "not hidden",
    "let it pin what it gives, then ask again",
)
_SHORT_EPOCH = Remark(
    "an epoch is too short for one batch to be copied beside another",
    "smaller batches, or several epochs in one",
)
_COMPARED, _COMPARING_SHARE = 8, 0.05  # batches, and of the budget for either loader
_READ_BYTES_PER_S = 5e8  # copied, and summed up twice, by one thread
_SEARCH_SHARE, _LEAST_LOOP_SHARE = 0.3, 0.25
_FEWEST_LOADED = 22  # by one pair of runs, each after a few batches to begin with
_TOO_FEW = Remark(
    "it was compared batch by batch and is the same, but there was time for few runs",
    "give it more: --budget 60s, or measure with fewer steps: --batches 8",
)
_MEASURED_NOTHING = Remark(
    "both loops were run in turn, and the new one is not faster by 5 %",
    "keep the loader; --force makes the new one all the same",
)


class NoBatches(GpuMagicError):
    """The loader ended at once."""


def look_at_the_kind(case: Case) -> Ending | None:
    """Refuse what cannot be looked at without taking something away."""
    if is_truly(case.loader, DevicePrefetcher):
        return Ending(State.ALREADY_GOOD, _COPIES_AHEAD)
    reason = one_shot_reason(case.loader)
    if reason is not None:
        return Ending(
            State.REFUSED_ONE_SHOT,
            Remark(
                f"{reason}, so that every batch that is looked at is lost",
                "make a dataset whose __iter__ begins anew, and a loader of that",
            ),
        )
    return _unless_it_is_let_alone(case)


def look_at_its_workers(case: Case) -> Ending | None:
    """Refuse a loader whose workers could not start."""
    if not case.workers and case.options.workers != "auto":
        return None
    remark = unpicklable(case.loader)
    return None if remark is None else Ending(State.REFUSED_UNPICKLABLE, remark)


def look_at_a_batch(case: Case) -> Ending | None:
    """Take one batch, and say what it consists of; how long that takes is noted.

    A loader with workers is asked with one: what a dataset opens when it is first
    asked would else be open in this process, and shared by all workers to come.
    """
    if case.facts.pin_memory and not case.starts_nothing:
        case.make_current()
    asked_s = time.monotonic()
    case.batch = _first_batch(case)
    case.first_batch_s = time.monotonic() - asked_s
    anatomy = anatomy_of(
        case.batch, case.runtime, case.facts, unpinned=case.leaves_pinning_out
    )
    case.note(anatomy=anatomy)
    return _unless_it_can_be_pinned(case)


def _first_batch(case: Case) -> Any:
    workers = min(case.facts.workers or 0, 1)
    with batches_of(case.trial_copy(workers=workers)) as batches:
        try:
            return next(batches)
        except StopIteration:
            raise NoBatches(
                f"{case.options.name or 'this loader'} gives no batches: its dataset, "
                "or its sampler, is empty",
                "look at len() of it",
            ) from None
        except GpuMagicError:
            raise
        except Exception as error:  # noqa: BLE001 -- the user's own, whatever it is
            raise timing.failure_of(error, 0) from None


def _unless_it_can_be_pinned(case: Case) -> Ending | None:
    """End it where no byte of the batch is in memory of the host that can be pinned."""
    whys = {leaf.why for leaf in case.anatomy.leaves}
    if whys == {WhyPageable.NOT_A_TENSOR} and not case.options.force:
        return Ending(
            State.DIAGNOSED if case.options.diagnose else State.NO_GAIN,
            _NOTHING_BUT_ARRAYS,
        )
    on_device = case.anatomy.bytes_that_are(Pinned.ON_DEVICE)
    if on_device and on_device == case.anatomy.tensor_bytes:
        return Ending(State.REFUSED_ON_DEVICE, _ON_THE_DEVICE)
    return None


def look_at_the_room(case: Case) -> Ending | None:
    """Say what pinning and workers take of the machine, and refuse too much."""
    found = _guard_with(case, case.workers)
    case.note(guard=found)
    limit = found.refusing
    if limit is None or case.options.diagnose:
        return None
    return Ending(_refusal(limit), _in_words(limit))


def measure_loading(case: Case) -> Ending | None:
    """How fast it gives batches while nobody does anything with them."""
    load = timing.measure_loading(
        case.trial_copy(),
        batches=case.options.batches or _BATCHES,
        budget_s=case.options.budget_s * _LOADING_SHARE,
        nbytes=case.anatomy.tensor_bytes,
        progress=case.tell,
    )
    case.note(rates=dataclasses.replace(case.rates, load=load))
    return None


def measure_the_way(case: Case) -> Ending | None:
    """How fast a batch comes to the device, and how long a step takes there."""
    if not case.pins:
        return _without_accelerator(case)
    if case.starts_nothing:
        pins = case.leaves_pinning_out
        case.remark([_NEITHER_PINNED_NOR_COPIED if pins else _NOT_COPIED])
        return Ending(State.DIAGNOSED)
    case.make_current()
    case.undo.enter_context(timing.given_back(case.runtime, case.device or 0))
    measured = timing.measure_rates(
        case.batch,
        case.runtime,
        device=case.device or 0,
        load=case.rates.load,
        step=case.step,
        budget_s=case.options.budget_s * _RATES_SHARE,
        driver=case.driver,
        room_bytes=_room_bytes(case),
        progress=case.tell,
    )
    case.note(rates=measured)
    return None


def _unless_it_is_let_alone(case: Case) -> Ending | None:
    """Take up what feeds the device itself, or cannot be looked at unnoticed."""
    clone = rebuild(case.loader)
    case.is_as_it_is = clone.way is Way.WRAPPED
    reason = Remark(clone.reason or "")
    if clone.way is Way.UNCHANGED:
        return Ending(State.ALREADY_GOOD, reason)
    if clone.way is not Way.WRAPPED or case.facts.kind is LoaderKind.FOREIGN:
        return None
    if case.options.diagnose:
        return Ending(State.DIAGNOSED, reason)
    # Its epochs go on from one to the next, so that none of it is taken for a trial.
    case.wrap(clone)
    return Ending(State.WRAPPED_ONLY, reason)


def _room_bytes(case: Case) -> int | None:
    """The least memory that one of the limits leaves, where they are known."""
    limits = () if case.found.guard is None else case.found.guard.limits
    rooms = [
        limit.available
        for limit in limits
        if limit.kind in (LimitKind.AVAILABLE, LimitKind.CGROUP, LimitKind.WSL)
        and limit.available is not None
    ]
    return min(rooms, default=None)


def _without_accelerator(case: Case) -> Ending | None:
    """Without an accelerator only workers can help; they have to be asked for."""
    goes_on = case.options.workers is not None or case.options.force
    if goes_on and not case.options.diagnose:
        return None
    return Ending(State.NO_ACCELERATOR, _NO_ACCELERATOR)


def _refusal(limit: Limit) -> State:
    if limit.kind in (LimitKind.SHM, LimitKind.FILES):
        return State.REFUSED_SHM
    return State.REFUSED_RAM


def _in_words(limit: Limit) -> Remark:
    share = share_text(limit.share)
    return Remark(
        f"it would take {share} of the {limit.kind.value} that is left",
        limit.hint or "use fewer workers, or --force",
    )


def predict_the_bound(case: Case) -> Ending | None:
    """Say what can be gained at most, and end where that is nothing."""
    if not case.pins:
        return None
    pinned, workers = _is_pinned(case), case.facts.workers or 0
    found = bound.bound_of(
        case.rates,
        pinned=pinned,
        workers=workers,
        more_workers=case.new_load,
        most_workers=_most_workers(case),
    )
    case.note(
        bound=found,
        steps=bound.four_steps(
            case.rates,
            found,
            workers=workers,
            pinned=pinned,
            load_after=case.new_load,
        ),
    )
    if case.options.diagnose:
        return Ending(State.DIAGNOSED)
    return None if case.options.force else _without_a_gain(case, pinned=pinned)


def _without_a_gain(case: Case, *, pinned: bool) -> Ending | None:
    """End it where nothing can be gained, by what forbids it."""
    if case.facts.length is not None and case.facts.length < _FEWEST_IN_AN_EPOCH:
        return Ending(State.NO_GAIN, _SHORT_EPOCH)
    if case.is_as_it_is and not pinned:
        return Ending(State.NO_GAIN, _CANNOT_BE_PINNED)
    if _is_worth_it(case):
        return None
    state = State.ALREADY_GOOD if pinned else State.NO_GAIN
    return Ending(state, _what_else(case))


def _is_pinned(case: Case) -> bool:
    """Whether the tensors of its batches are pinned now, but for what never is."""
    pageable = sum(
        leaf.nbytes
        for leaf in case.anatomy.leaves
        if leaf.pinned is Pinned.PAGEABLE and leaf.why not in _NEVER_PINNED
    )
    pinned = case.anatomy.bytes_that_are(Pinned.PINNED)
    return pinned > 0 and pageable <= _HARDLY_ANY * pinned


def _most_workers(case: Case) -> int | None:
    """As many as there are processors, where nothing is known or measured of more."""
    if case.found.workers is not None:
        return None
    if case.is_as_it_is or _why_no_workers(case) is not None:
        return None
    return case.found.setting.processors


def _is_worth_it(case: Case) -> bool:
    """Whether copying ahead, with the workers that were asked for, can give 5 %."""
    found = case.bound
    if case.new_load is not None:
        return found.now_s >= WORTH_IT * found.best_s
    without = (Remedy.PIN, Remedy.PREFETCH)
    times = [found.times(each) for each in found.gains if each.remedy in without]
    return any(each is None or each >= WORTH_IT for each in times)


def _workers_pay(case: Case) -> bool:
    """Whether more workers, which nobody has asked for, could give 5 %."""
    best = case.bound.best
    if case.options.workers is not None or best is None or best.workers is None:
        return False
    times = case.bound.times(best)
    return times is None or times >= WORTH_IT


def _what_else(case: Case) -> Remark:
    """What to do instead, by what binds."""
    slowest, now = seconds_text(case.bound.best_s), seconds_text(case.bound.now_s)
    text = f"{case.bound.binding.value} takes {slowest} of {now} a step"
    if _workers_pay(case):
        name = case.options.name or "NAME"
        return Remark(text, f"%pin_loader {name} --workers auto")
    if case.bound.binding is Part.LOAD:
        return Remark(text, "make loading itself faster, or store what it works out")
    if case.bound.binding is Part.STEP:
        return Remark(text, "the device is busy as it is: make the step itself faster")
    return Remark(text, "send fewer bytes: uint8 on the way, converted on the device")


def look_at_other_workers(case: Case) -> Ending | None:
    """How fast it loads with the workers that are asked for, or how many pay."""
    if case.options.workers == "auto":
        _search_for_workers(case)
    if case.workers == (case.facts.workers or 0):
        return None
    case.note(guard=_guard_with(case, case.workers))
    case.new_load = _searched(case) or timing.measure_loading(
        case.trial_copy(workers=case.workers, prefetch_factor=case.options.prefetch),
        budget_s=case.options.budget_s * _SEARCH_SHARE,
        progress=case.tell,
    )
    _let_the_stand_in_follow(case)
    return None


def _let_the_stand_in_follow(case: Case) -> None:
    """As long as loading took before, it would hide that loading is faster now."""
    step, before, after = case.rates.step, case.rates.load, case.new_load
    if step is None or not step.synthetic or before is None or after is None:
        return
    if after.batch_s >= before.batch_s:
        return
    faster = dataclasses.replace(case.rates, load=after)
    step = timing.step_of(
        faster, None, case.runtime, case.device or 0, None, case.options.budget_s / 10
    )
    case.note(rates=dataclasses.replace(case.rates, step=step))


def _search_for_workers(case: Case) -> None:
    step = case.rates.step
    found = search(
        lambda workers: case.trial_copy(
            workers=workers,
            prefetch_factor=case.options.prefetch if workers else None,
        ),
        anatomy=case.anatomy,
        least=min(case.facts.workers or 0, 1),
        step_s=None if step is None or step.synthetic else step.samples.median_s,
        budget_s=case.options.budget_s * _SEARCH_SHARE,
        guard_for=lambda workers: _guard_with(case, workers),
        refuse=_why_no_workers(case),
        known=_known_load(case),
        progress=case.tell,
    )
    case.note(workers=found)
    case.remark(_remarks_on_the_search(case, found))


def _known_load(case: Case) -> Loading | None:
    """Without workers as it was measured; else their memory is of interest as well."""
    load = case.rates.load
    return load if load is not None and load.workers == 0 else None


def _remarks_on_the_search(case: Case, found: WorkerSearch) -> list[Remark]:
    name = case.options.name or "NAME"
    if found.stopped is Stopped.BUDGET:
        tried = count_text(len(found.trials), "number")
        return [
            Remark(
                f"there was time for {tried} of workers only",
                f"%pin_loader {name} --workers auto --budget 60s",
            )
        ]
    if found.stopped is Stopped.MOST and found.most and found.chosen == found.most:
        return [
            Remark(
                f"loading was still getting faster with {found.most} workers, as many "
                "as there are processors; more help where it waits for a disk",
                f"%pin_loader {name} --workers {2 * found.most}",
            )
        ]
    return []


def _searched(case: Case) -> Loading | None:
    search = case.found.workers
    if search is not None:
        for trial in search.trials:
            if trial.workers == search.chosen:
                return trial.loading
    return None


def make_the_loader(case: Case) -> Ending | None:
    """Rebuild it, and put the prefetcher round it."""
    case.make_current()
    adapter = case.pins and case.anatomy.adaptable
    made = rebuild(
        case.loader,
        pin_memory=True if case.pins else None,
        workers=None if case.workers == case.facts.workers else case.workers,
        prefetch_factor=case.options.prefetch,
        adapter=adapter,
    )
    case.wrap(made, adapter=adapter)
    return None


def prove_the_same(case: Case) -> Ending | None:
    """Compare what old and new loader give, batch by batch, under one random state."""
    with buffer_overwrite.collected_races(
        case.runtime
    ):  # of buffers, which are watched next
        sameness = same_batches.compare(
            case.loader,
            case.feeding,
            batches=_affordable(case),
            whole=case.options.verify,
            enough_s=case.options.budget_s * _COMPARING_SHARE,
        )
    case.note(sameness=sameness)
    if sameness.same is not False or case.options.force:
        return None
    case.feeding = None
    return Ending(
        State.REFUSED_DIFFERENT,
        Remark(
            f"the new loader gives other data: {sameness.difference}",
            "keep the old one; --force makes the new one all the same",
            serious=True,
        ),
    )


def watch_its_buffers(case: Case) -> Ending | None:
    """Refuse a loader that fills memory again while it is still being copied."""
    if not case.pins:
        return None
    reuse = buffer_overwrite.check(
        clone(case.new),
        case.runtime,
        device=case.device or 0,
        batches=_affordable(case),
    )
    case.note(reuse=reuse)
    if not reuse.damaged or case.options.force:
        return None
    case.feeding = None
    return Ending(
        State.REFUSED_DIFFERENT,
        Remark(
            "a batch was filled with the next one while it was still being copied",
            "let the dataset and the collate_fn make new tensors for every batch",
            serious=True,
        ),
    )


def run_both_loops(case: Case) -> Ending | None:
    """Run the old loop and the new one in turn; clones of both, where there are any.

    Not where even a few runs would take much longer than all of it was to take.
    """
    if case.is_over_after(_FEWEST_LOADED):
        return None
    feeding = DevicePrefetcher(clone(case.new), case.place, depth=case.rebuilding.depth)
    proof = end_to_end(
        case.trial_copy(),
        feeding,
        case.runtime,
        device=case.device,
        rates=case.rates,
        step=case.step,
        batches=case.options.batches,
        budget_s=max(case.left_s, case.options.budget_s * _LEAST_LOOP_SHARE),
        trace=case.options.profile,
        name=case.options.name,
        out=case.options.out,
        new_load=case.new_load,
        progress=case.tell,
    )
    case.note(end_to_end=proof)
    if case.found.guard is not None:
        locked_bytes = measured_locked_bytes(case.runtime)
        found = dataclasses.replace(case.found.guard, measured_bytes=locked_bytes)
        case.note(guard=found)
    return None


def say_how_it_ended(case: Case) -> Ending:
    """What the proof in value and in time comes to."""
    if not case.pins:
        if not case.rebuilding.changes or _is_no_gain(case):
            case.feeding = None
            return Ending(State.NO_ACCELERATOR, _MEASURED_NOTHING)
        return Ending(State.NO_ACCELERATOR)
    if _is_no_gain(case):
        case.feeding = None
        return Ending(State.NO_GAIN, _MEASURED_NOTHING)
    proof = case.found.end_to_end
    if proof is None or proof.result.interval is None:
        return Ending(State.UNPROVEN, _TOO_FEW)
    if case.rebuilding.way is not Way.REBUILT:
        reason = case.rebuilding.reason or "it cannot be made anew"
        return Ending(State.WRAPPED_ONLY, Remark(reason))
    return Ending(State.FIXED)


def _is_no_gain(case: Case) -> bool:
    proof = case.found.end_to_end
    if case.options.force or proof is None:
        return False
    result = proof.result
    if result.interval is None:
        return False
    return result.verdict is not Verdict.FASTER or result.ratio * WORTH_IT > 1


def _affordable(case: Case) -> int:
    """So many batches that looking at them takes a tenth of the time; two at least."""
    load = case.rates.load
    load_s = 0.0 if load is None else load.batch_s
    each_s = load_s + case.anatomy.tensor_bytes / _READ_BYTES_PER_S
    affordable = int(case.options.budget_s / 10 / max(each_s, 1e-9))
    return min(max(affordable, 2), _COMPARED)


def _why_no_workers(case: Case) -> Remark | None:
    if case.facts.kind is LoaderKind.ITERABLE:
        return Remark(
            "each worker would give all of an iterable dataset again",
            "let its __iter__ give a part for each get_worker_info().id, then say "
            "--workers 4",
        )
    return unpicklable(case.loader)


def _guard_with(case: Case, workers: int) -> Guard:
    return guard(
        case.anatomy,
        workers=workers,
        prefetch_factor=case.options.prefetch or case.facts.prefetch_factor,
        depth=case.options.depth,
        force=case.options.force,
        pinned=case.pins,
    )
