"""The stages that mend: workers, the new loader, and the proof that it is the same."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from gpumagic.pin_loader.case import Ending
from gpumagic.pin_loader.current_device import make_current
from gpumagic.pin_loader.feeding.prefetcher import DevicePrefetcher
from gpumagic.pin_loader.loader import sameness
from gpumagic.pin_loader.loader.rebuilding import rebuild
from gpumagic.pin_loader.making import clone, trial_copy, wrap
from gpumagic.pin_loader.pace import rates, reuse
from gpumagic.pin_loader.pace.end_to_end import end_to_end
from gpumagic.pin_loader.predicting import WORTH
from gpumagic.pin_loader.records.loader import LoaderKind
from gpumagic.pin_loader.records.rebuilding import Way
from gpumagic.pin_loader.records.remark import Remark
from gpumagic.pin_loader.records.workers import Stopped
from gpumagic.pin_loader.report import State
from gpumagic.pin_loader.trials import loading, worker_search
from gpumagic.pin_loader.trials.guard import guard, measured_locked_bytes
from gpumagic.pin_loader.trials.preflight import unpicklable
from gpumagic.report.robust import Verdict
from gpumagic.report.units import count_text

if TYPE_CHECKING:
    from gpumagic.pin_loader.case import Case
    from gpumagic.pin_loader.records.guard import Guard
    from gpumagic.pin_loader.records.rates import Loading
    from gpumagic.pin_loader.records.workers import WorkerSearch

_COMPARED = 8
_READ_BYTES_PER_S = 5e8  # copied, and summed up twice, by one thread
_SEARCH_SHARE, _LEAST_LOOP_SHARE = 0.3, 0.25
_PATIENCE = 2  # times the budget, over which it may be drawn


def look_at_other_workers(case: Case) -> Ending | None:
    """How fast it loads with the workers that are asked for, or how many pay."""
    if case.wish.workers == "auto":
        _search_for_workers(case)
    if case.workers == (case.facts.workers or 0):
        return None
    case.guard = _guard_with(case, case.workers)
    case.new_load = _searched(case) or loading.measure(
        trial_copy(case, workers=case.workers, prefetch_factor=case.wish.prefetch),
        budget_s=case.wish.budget_s * _SEARCH_SHARE,
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
    step = rates.step_of(
        faster, None, case.runtime, case.device or 0, None, case.wish.budget_s / 10
    )
    case.rates = dataclasses.replace(case.rates, step=step)


def _search_for_workers(case: Case) -> None:
    step = case.rates.step
    case.search = worker_search.search(
        lambda workers: trial_copy(
            case,
            workers=workers,
            prefetch_factor=case.wish.prefetch if workers else None,
        ),
        anatomy=case.anatomy,
        least=min(case.facts.workers or 0, 1),
        step_s=None if step is None or step.synthetic else step.samples.median_s,
        budget_s=case.wish.budget_s * _SEARCH_SHARE,
        guard_for=lambda workers: _guard_with(case, workers),
        refuse=_why_no_workers(case),
        progress=case.tell,
    )
    case.remarks += _remarks_on_the_search(case, case.search)


def _remarks_on_the_search(case: Case, found: WorkerSearch) -> list[Remark]:
    name = case.wish.name or "NAME"
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
    trials = () if case.search is None else case.search.trials
    for trial in trials:
        if case.search is not None and trial.workers == case.search.chosen:
            return trial.loading
    return None


def make_the_loader(case: Case) -> Ending | None:
    """Rebuild it, and put the prefetcher round it."""
    make_current(case)
    adapter = case.pins and case.anatomy.adaptable
    made = rebuild(
        case.loader,
        pin_memory=True if case.pins else None,
        workers=None if case.workers == case.facts.workers else case.workers,
        prefetch_factor=case.wish.prefetch,
        adapter=adapter,
    )
    wrap(case, made, adapter=adapter)
    return None


def prove_the_same(case: Case) -> Ending | None:
    """Compare what old and new loader give, batch by batch, under one random state."""
    with reuse.collected_races(case.runtime):  # of buffers, which are watched next
        case.sameness = sameness.compare(
            case.loader,
            case.feeding,
            batches=_affordable(case),
            whole=case.wish.verify,
        )
    if case.sameness.same is not False or case.wish.force:
        return None
    case.feeding = None
    return Ending(
        State.REFUSED_DIFFERENT,
        Remark(
            f"the new loader gives other data: {case.sameness.difference}",
            "keep the old one; --force makes the new one all the same",
            serious=True,
        ),
    )


def watch_its_buffers(case: Case) -> Ending | None:
    """Refuse a loader that fills memory again while it is still being copied."""
    if not case.pins:
        return None
    case.reuse = reuse.check(
        clone(case.new),
        case.runtime,
        device=case.device or 0,
        batches=_affordable(case),
    )
    if not case.reuse.damaged or case.wish.force:
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

    Not where it has taken several times as long already as all of it was to take.
    """
    if case.left_s() < -_PATIENCE * case.wish.budget_s:
        return None
    feeding = DevicePrefetcher(clone(case.new), case.place, depth=case.rebuilding.depth)
    case.end_to_end = end_to_end(
        trial_copy(case),
        feeding,
        case.runtime,
        device=case.device,
        rates=case.rates,
        step=case.wish.step,
        batches=case.wish.batches,
        budget_s=max(case.left_s(), case.wish.budget_s * _LEAST_LOOP_SHARE),
        trace=case.wish.profile,
        name=case.wish.name,
        out=case.wish.out,
        new_load=case.new_load,
        progress=case.tell,
    )
    if case.guard is not None:
        case.guard = dataclasses.replace(
            case.guard, measured_bytes=measured_locked_bytes(case.runtime)
        )
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
    if case.end_to_end is None or case.end_to_end.result.interval is None:
        return Ending(State.UNPROVEN, _TOO_FEW)
    if case.rebuilding.way is not Way.REBUILT:
        reason = case.rebuilding.reason or "it cannot be made anew"
        return Ending(State.WRAPPED_ONLY, Remark(reason))
    return Ending(State.FIXED)


def _is_no_gain(case: Case) -> bool:
    if case.wish.force or case.end_to_end is None:
        return False
    result = case.end_to_end.result
    if result.interval is None:
        return False
    return result.verdict is not Verdict.FASTER or result.ratio * WORTH > 1


_TOO_FEW = Remark(
    "it was compared batch by batch and is the same, but there was time for few runs",
    "give it more: --budget 60s, or measure with fewer steps: --batches 8",
)
_MEASURED_NOTHING = Remark(
    "both loops were run in turn, and the new one is not faster by 5 %",
    "keep the loader; --force makes the new one all the same",
)


def _affordable(case: Case) -> int:
    """So many batches that looking at them takes a tenth of the time; two at least."""
    load = case.rates.load
    load_s = 0.0 if load is None else load.batch_s
    each_s = load_s + case.anatomy.tensor_bytes / _READ_BYTES_PER_S
    affordable = int(case.wish.budget_s / 10 / max(each_s, 1e-9))
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
        prefetch_factor=case.wish.prefetch or case.facts.prefetch_factor,
        depth=case.wish.depth,
        force=case.wish.force,
        pinned=case.pins,
    )
