"""The stages that look: a batch, what the machine has room for, how fast each part is.

Nothing is made here. Random numbers and samplers are put back by whoever runs the
stages, and only clones of the user's loader are iterated, where it can be cloned.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from gpumagic.errors import GpuMagicError
from gpumagic.pin_loader.batch.anatomy import anatomy_of
from gpumagic.pin_loader.case import Ending
from gpumagic.pin_loader.current_device import make_current
from gpumagic.pin_loader.feeding.prefetcher import DevicePrefetcher
from gpumagic.pin_loader.loader.facts import one_shot_reason
from gpumagic.pin_loader.loader.rebuilding import rebuild
from gpumagic.pin_loader.pace import bounds, four_steps, rates
from gpumagic.pin_loader.records.batch import Pinned, WhyPageable
from gpumagic.pin_loader.records.bound import Part, Remedy
from gpumagic.pin_loader.records.guard import LimitKind
from gpumagic.pin_loader.records.loader import LoaderKind
from gpumagic.pin_loader.records.rebuilding import Rebuilding, Way
from gpumagic.pin_loader.records.remark import Remark
from gpumagic.pin_loader.report import State
from gpumagic.pin_loader.trials import loading
from gpumagic.pin_loader.trials.guard import guard
from gpumagic.pin_loader.trials.loader_failure import failure_of
from gpumagic.pin_loader.trials.preflight import unpicklable
from gpumagic.pin_loader.trials.trial import batches_of
from gpumagic.true_class import is_truly
from gpumagic.units import seconds_text, share_text

if TYPE_CHECKING:
    from gpumagic.pin_loader.case import Case
    from gpumagic.pin_loader.loader.rebuilding import Rebuilt
    from gpumagic.pin_loader.records.guard import Limit

WORTH = 1.05  # a gain below this is none: noise alone comes to as much
_BATCHES = 20
_LOADING_SHARE, _RATES_SHARE = 0.15, 0.2
_HARDLY_ANY = 0.01
_FEWEST_IN_AN_EPOCH = 3
_NEVER_PINNED = (
    WhyPageable.NOT_A_TENSOR,
    WhyPageable.NOT_DENSE,
    WhyPageable.OWN_METHOD,
)


class NoBatches(GpuMagicError):
    """The loader ended at once."""


def look_at_the_kind(case: Case) -> Ending | None:
    """Refuse what cannot be looked at without taking something away."""
    if is_truly(case.loader, DevicePrefetcher):
        return Ending(
            State.ALREADY_GOOD,
            Remark(
                "it copies ahead to the device already",
                "time your training cell with %%pin_loader --watch",
            ),
        )
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
    if not case.workers and case.wish.workers != "auto":
        return None
    remark = unpicklable(case.loader)
    return None if remark is None else Ending(State.REFUSED_UNPICKLABLE, remark)


def look_at_a_batch(case: Case) -> Ending | None:
    """Take one batch, and say what it consists of.

    A loader with workers is asked with one: what a dataset opens when it is first
    asked would else be open in this process, and shared by all workers to come.
    """
    if case.facts.pin_memory and not case.starts_nothing:
        make_current(case)
    workers = min(case.facts.workers or 0, 1)
    with batches_of(trial_copy(case, workers=workers)) as batches:
        try:
            case.batch = next(batches)
        except StopIteration:
            raise NoBatches(
                f"{case.wish.name or 'this loader'} gives no batches: its dataset, or "
                "its sampler, is empty",
                "look at len() of it",
            ) from None
        except GpuMagicError:
            raise
        except Exception as error:  # noqa: BLE001 -- the user's own, whatever it is
            raise failure_of(error, 0) from None
    case.anatomy = anatomy_of(
        case.batch, case.runtime, case.facts, unpinned=case.leaves_pinning_out
    )
    whys = {leaf.why for leaf in case.anatomy.leaves}
    if whys == {WhyPageable.NOT_A_TENSOR} and not case.wish.force:
        return Ending(
            State.DIAGNOSED if case.wish.only_looking else State.NO_GAIN,
            Remark(
                "nothing here can be pinned: its batches are arrays of numpy",
                "torch.from_numpy(...) in the dataset or in the collate_fn",
            ),
        )
    on_device = case.anatomy.bytes_that_are(Pinned.ON_DEVICE)
    if on_device and on_device == case.anatomy.tensor_bytes:
        return Ending(
            State.REFUSED_ON_DEVICE,
            Remark(
                "its batches are on the device already, and only host memory is pinned",
                "let the dataset return CPU tensors; copying them is the loop's part",
            ),
        )
    return None


def look_at_the_room(case: Case) -> Ending | None:
    """Say what pinning and workers take of the machine, and refuse too much."""
    case.guard = guard(
        case.anatomy,
        workers=case.workers,
        prefetch_factor=case.prefetch_factor,
        depth=case.wish.depth,
        force=case.wish.force,
        pinned=case.pins,
    )
    limit = case.guard.refusing
    if limit is None or case.wish.only_looking:
        return None
    return Ending(_refusal(limit), _in_words(limit))


def measure_loading(case: Case) -> Ending | None:
    """How fast it gives batches while nobody does anything with them."""
    load = loading.measure(
        trial_copy(case),
        batches=case.wish.batches or _BATCHES,
        budget_s=case.wish.budget_s * _LOADING_SHARE,
        nbytes=case.anatomy.tensor_bytes,
        progress=case.tell,
    )
    case.rates = dataclasses.replace(case.rates, load=load)
    return None


def measure_the_way(case: Case) -> Ending | None:
    """How fast a batch comes to the device, and how long a step takes there."""
    if not case.pins:
        return _without_accelerator(case)
    if case.starts_nothing:
        pins = case.leaves_pinning_out
        case.remarks.append(_NEITHER_PINNED_NOR_COPIED if pins else _NOT_COPIED)
        return Ending(State.DIAGNOSED)
    make_current(case)
    case.undo.enter_context(rates.given_back(case.runtime, case.device or 0))
    case.rates = rates.measure(
        case.batch,
        case.runtime,
        device=case.device or 0,
        load=case.rates.load,
        step=case.wish.step,
        budget_s=case.wish.budget_s * _RATES_SHARE,
        driver=case.driver,
        room_bytes=_room_bytes(case),
        progress=case.tell,
    )
    return None


def predict_the_bound(case: Case) -> Ending | None:
    """Say what can be gained at most, and end where that is nothing."""
    if not case.pins:
        return None
    pinned, workers = is_pinned(case), case.facts.workers or 0
    case.bound = bounds.bound_of(
        case.rates, pinned=pinned, workers=workers, more_workers=case.new_load
    )
    case.steps = four_steps.four_steps(
        case.rates, workers=workers, pinned=pinned, load_after=case.new_load
    )
    if case.wish.only_looking:
        return Ending(State.DIAGNOSED)
    return None if case.wish.force else _without_a_gain(case, pinned=pinned)


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


def trial_copy(case: Case, **changes: Any) -> Any:
    """A loader like the user's that can be iterated without a trace, if there is one.

    A loader that cannot be rebuilt is iterated itself: its random state is put back.
    """
    if case.leaves_pinning_out:
        changes["pin_memory"] = False
    return rebuild(case.loader, persistent_workers=False, **changes).loader


def _unless_it_is_let_alone(case: Case) -> Ending | None:
    """Take up what feeds the device itself, or cannot be looked at unnoticed."""
    clone = rebuild(case.loader)
    case.is_as_it_is = clone.way is Way.WRAPPED
    reason = Remark(clone.reason or "")
    if clone.way is Way.UNCHANGED:
        return Ending(State.ALREADY_GOOD, reason)
    if clone.way is not Way.WRAPPED or case.facts.kind is LoaderKind.FOREIGN:
        return None
    if case.wish.only_looking:
        return Ending(State.DIAGNOSED, reason)
    # Its epochs go on from one to the next, so that none of it is taken for a trial.
    wrap(case, clone)
    return Ending(State.WRAPPED_ONLY, reason)


def wrap(case: Case, made: Rebuilt, *, adapter: bool = False) -> None:
    """Put the prefetcher round a loader."""
    depth = case.wish.depth if case.pins else 0
    case.new = made.loader
    case.feeding = DevicePrefetcher(made.loader, case.place, depth=depth)
    case.rebuilding = Rebuilding(
        way=made.way,
        class_name=case.facts.class_name,
        changes=made.changes,
        reason=made.reason,
        adapter=adapter,
        depth=depth,
        remarks=made.remarks if depth else (),
    )


def is_pinned(case: Case) -> bool:
    """Whether the tensors of its batches are pinned now, but for what never is."""
    pageable = sum(
        leaf.nbytes
        for leaf in case.anatomy.leaves
        if leaf.pinned is Pinned.PAGEABLE and leaf.why not in _NEVER_PINNED
    )
    pinned = case.anatomy.bytes_that_are(Pinned.PINNED)
    return pinned > 0 and pageable <= _HARDLY_ANY * pinned


def _room_bytes(case: Case) -> int | None:
    """The least memory that one of the limits leaves, where they are known."""
    limits = () if case.guard is None else case.guard.limits
    rooms = [
        limit.available
        for limit in limits
        if limit.kind in (LimitKind.AVAILABLE, LimitKind.CGROUP, LimitKind.WSL)
        and limit.available is not None
    ]
    return min(rooms, default=None)


def _is_worth_it(case: Case) -> bool:
    """Whether copying ahead, with the workers that were asked for, can give 5 %."""
    best_s = case.bound.best_s
    if case.new_load is None:
        best_s = min(
            gain.step_s
            for gain in case.bound.gains
            if gain.remedy is not Remedy.WORKERS
        )
    return case.bound.now_s >= WORTH * best_s


def _what_else(case: Case) -> Remark | None:
    """What to do instead, by what binds."""
    slowest, now = seconds_text(case.bound.best_s), seconds_text(case.bound.now_s)
    text = f"{case.bound.binding.value} takes {slowest} of {now} a step"
    if case.bound.binding is Part.LOAD:
        if case.facts.kind is LoaderKind.ITERABLE or case.wish.workers is not None:
            return Remark(
                text, "make loading itself faster, or store what it works out"
            )
        name = case.wish.name or "NAME"
        return Remark(
            text, f"let more processes load: %pin_loader {name} --workers auto"
        )
    if case.bound.binding is Part.STEP:
        return Remark(text, "the device is busy as it is: make the step itself faster")
    return Remark(text, "send fewer bytes: uint8 on the way, converted on the device")


def _without_accelerator(case: Case) -> Ending | None:
    """Without an accelerator only workers can help; they have to be asked for."""
    goes_on = case.wish.workers is not None or case.wish.force
    if goes_on and not case.wish.only_looking:
        return None
    return Ending(State.NO_ACCELERATOR, NO_ACCELERATOR)


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


NO_ACCELERATOR = Remark(
    "pinning is impossible here: there is no accelerator; nothing was changed",
    'gpumagic.simulate("h100") puts a simulated one in its place; --workers auto '
    "works without",
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
