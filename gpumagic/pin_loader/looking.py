"""The stages that look: a batch, what the machine has room for, how fast each part is.

They change nothing. Random numbers and samplers are put back by whoever runs the
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
from gpumagic.pin_loader.making import trial_copy, wrap
from gpumagic.pin_loader.pace import rates
from gpumagic.pin_loader.records.batch import Pinned, WhyPageable
from gpumagic.pin_loader.records.guard import LimitKind
from gpumagic.pin_loader.records.loader import LoaderKind
from gpumagic.pin_loader.records.rebuilding import Way
from gpumagic.pin_loader.records.remark import Remark
from gpumagic.pin_loader.report import State
from gpumagic.pin_loader.trials import loading
from gpumagic.pin_loader.trials.guard import guard
from gpumagic.pin_loader.trials.loader_failure import failure_of
from gpumagic.pin_loader.trials.preflight import unpicklable
from gpumagic.pin_loader.trials.trial import batches_of
from gpumagic.report.introspection import is_truly
from gpumagic.report.units import share_text

if TYPE_CHECKING:
    from gpumagic.pin_loader.case import Case
    from gpumagic.pin_loader.records.guard import Limit

_BATCHES = 20
_LOADING_SHARE, _RATES_SHARE = 0.15, 0.2


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
    case.batch = _first_batch(case)
    case.anatomy = anatomy_of(
        case.batch, case.runtime, case.facts, unpinned=case.leaves_pinning_out
    )
    return _unless_it_can_be_pinned(case)


def _first_batch(case: Case) -> Any:
    workers = min(case.facts.workers or 0, 1)
    with batches_of(trial_copy(case, workers=workers)) as batches:
        try:
            return next(batches)
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


def _unless_it_can_be_pinned(case: Case) -> Ending | None:
    """End it where no byte of the batch is in memory of the host that can be pinned."""
    whys = {leaf.why for leaf in case.anatomy.leaves}
    if whys == {WhyPageable.NOT_A_TENSOR} and not case.wish.force:
        return Ending(
            State.DIAGNOSED if case.wish.only_looking else State.NO_GAIN,
            _NOTHING_BUT_ARRAYS,
        )
    on_device = case.anatomy.bytes_that_are(Pinned.ON_DEVICE)
    if on_device and on_device == case.anatomy.tensor_bytes:
        return Ending(State.REFUSED_ON_DEVICE, _ON_THE_DEVICE)
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


def _without_accelerator(case: Case) -> Ending | None:
    """Without an accelerator only workers can help; they have to be asked for."""
    goes_on = case.wish.workers is not None or case.wish.force
    if goes_on and not case.wish.only_looking:
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
