"""The stage that predicts: what can be gained at most, and whether that is worth it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.pin_loader.case import Ending
from gpumagic.pin_loader.pace import bounds, four_steps
from gpumagic.pin_loader.records.batch import Pinned, WhyPageable
from gpumagic.pin_loader.records.bound import Part, Remedy
from gpumagic.pin_loader.records.loader import LoaderKind
from gpumagic.pin_loader.records.remark import Remark
from gpumagic.pin_loader.report import State
from gpumagic.report.units import seconds_text

if TYPE_CHECKING:
    from gpumagic.pin_loader.case import Case

WORTH = 1.05  # a gain below this is none: noise alone comes to as much
_HARDLY_ANY = 0.01
_FEWEST_IN_AN_EPOCH = 3
_NEVER_PINNED = (
    WhyPageable.NOT_A_TENSOR,
    WhyPageable.NOT_DENSE,
    WhyPageable.OWN_METHOD,
)


def predict_the_bound(case: Case) -> Ending | None:
    """Say what can be gained at most, and end where that is nothing."""
    if not case.pins:
        return None
    pinned, workers = _is_pinned(case), case.facts.workers or 0
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


def _is_pinned(case: Case) -> bool:
    """Whether the tensors of its batches are pinned now, but for what never is."""
    pageable = sum(
        leaf.nbytes
        for leaf in case.anatomy.leaves
        if leaf.pinned is Pinned.PAGEABLE and leaf.why not in _NEVER_PINNED
    )
    pinned = case.anatomy.bytes_that_are(Pinned.PINNED)
    return pinned > 0 and pageable <= _HARDLY_ANY * pinned


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


_CANNOT_BE_PINNED = Remark(
    "it cannot be rebuilt, so that its batches stay pageable, and copies of those are "
    "not hidden",
    "let it pin what it gives, then ask again",
)
_SHORT_EPOCH = Remark(
    "an epoch is too short for one batch to be copied beside another",
    "smaller batches, or several epochs in one",
)
