"""The answer in one sentence, for each way that it can end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.pin_loader.records.batch import Pinned
from gpumagic.pin_loader.records.bound import Part
from gpumagic.pin_loader.records.guard import LimitKind
from gpumagic.pin_loader.records.rebuilding import Way
from gpumagic.pin_loader.report import State
from gpumagic.pin_loader.sections.leaf_words import pageable_sentence
from gpumagic.pin_loader.sections.phrases import (
    amount_text,
    device_text,
    listed,
    loader_text,
    new_text,
    time_of_text,
    times_text,
)
from gpumagic.pin_loader.sections.verdict_words import (
    WORTH_IT,
    faster_text,
    workers_text,
)
from gpumagic.report.units import count_text, share_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.pin_loader.records.bound import Bound
    from gpumagic.pin_loader.records.guard import Guard, Limit
    from gpumagic.pin_loader.report import LoaderReport

_LEFT = {
    LimitKind.AVAILABLE: "of the memory that is left",
    LimitKind.CGROUP: "of the memory that the container has left",
    LimitKind.WSL: "of what WSL lets anybody pin",
    LimitKind.SHM: "of the shared memory that is left",
    LimitKind.FILES: "of the files that may still be opened",
    LimitKind.MEMLOCK: "of what ulimit lets it lock",
}


_OF_RAM = (LimitKind.AVAILABLE, LimitKind.CGROUP)


def headline(report: LoaderReport) -> str:
    """How it ended, with the figure that decided."""
    said = HEADLINES[report.state](report)
    if report.reuse is not None and report.reuse.damaged:
        said = f"{said}; but batches were overwritten while they were being copied"
    names = (report.loader.name, report.out)
    if any(name and said.startswith(name) for name in names):
        return said
    return said[0].upper() + said[1:]


def _diagnosed(report: LoaderReport) -> str:
    name, found = loader_text(report.loader), report.anatomy
    if found is None:
        return f"{name}: {_at_most(report.bound)}"
    if report.bound is None and _is_untried(report):
        return (
            f"{name} is set to pin its batches; whether it pins all of them, and how "
            "much could be won, was not measured"
        )
    return f"{name}: {pageable_sentence(found)}; {_at_most(report.bound)}"


def _is_untried(report: LoaderReport) -> bool:
    """Whether a loader that is set to pin was asked for batches that are not pinned."""
    leaves = () if report.anatomy is None else report.anatomy.leaves
    unknown = all(leaf.pinned is Pinned.UNKNOWN for leaf in leaves)
    return bool(leaves) and unknown and bool(report.loader.pin_memory)


def _already_good(report: LoaderReport) -> str:
    said = [f"{loader_text(report.loader)} is good as it is"]
    if report.anatomy is not None:
        said.append(pageable_sentence(report.anatomy))
    if report.bound is not None:
        said.append(_binds(report.bound))
    return "; ".join(said)


def _fixed(report: LoaderReport) -> str:
    return faster_text(new_text(report), report)


def _unproven(report: LoaderReport) -> str:
    pairs = 0 if report.end_to_end is None else len(report.end_to_end.result.pairs)
    if not pairs:
        return f"{new_text(report)} is ready; no time was left to compare it"
    return (
        f"{new_text(report)} is ready; {count_text(pairs, 'pair')} of runs are too few "
        "to tell how much faster it is"
    )


def _no_gain(report: LoaderReport) -> str:
    bound, measured = report.bound, report.end_to_end
    if measured is not None and not _is_near(bound):
        return f"nothing won: {faster_text('the loop with a prefetcher', report)}"
    if bound is None:
        return f"nothing to win with {loader_text(report.loader)}"
    if bound.synthetic_step:
        most = times_text(bound.most)
        said = f"Nothing to win by prefetching: at most {most} with any step"
        return f"{said}; {_binds(bound)}"
    return f"Nothing to win: {_binds(bound)}"


def _refused_by_limit(report: LoaderReport) -> str:
    limit = report.guard.refusing if report.guard is not None else None
    if report.guard is None or limit is None:
        return "Refused: it would not fit"
    return f"Refused: {_too_much(limit, report.guard)}"


def _refused_one_shot(report: LoaderReport) -> str:
    name = loader_text(report.loader)
    return f"Refused: {name} can be gone through only once, and measuring would do that"


def _refused_unpicklable(report: LoaderReport) -> str:
    name = loader_text(report.loader)
    return f"Refused: workers cannot be given what {name} is made of"


def _refused_on_device(report: LoaderReport) -> str:
    name, where = loader_text(report.loader), device_text(report.setting)
    return f"Refused: batches of {name} are on {where} already, so pinning is pointless"


def _refused_different(report: LoaderReport) -> str:
    name, found = loader_text(report.loader), report.sameness
    difference = f": {found.difference}" if found and found.difference else ""
    return f"Refused: rebuilt, {name} gave other batches{difference}"


def _wrapped_only(report: LoaderReport) -> str:
    name = loader_text(report.loader)
    if report.out is None:
        return f"{name} could not be rebuilt, and stays as it is"
    if report.end_to_end is None:
        return f"{name} could not be rebuilt; {report.out} feeds it as it is"
    if report.rebuilding is not None and report.rebuilding.way is Way.FLAG_SET:
        how = "a copy of it was set to pin"
    else:
        how = "as it is"
    return f"{name} could not be rebuilt; {how}, {faster_text(report.out, report)}"


def _no_accelerator(report: LoaderReport) -> str:
    said = "Pinning is impossible here: there is no accelerator"
    if report.out is None:
        return f"{said}; nothing was changed"
    if better := workers_text(report):
        return f"{said}; {report.out} {better}"
    changes = report.rebuilding.changes if report.rebuilding is not None else ()
    if not changes:
        return f"{said}; {report.out} loads as {loader_text(report.loader)} does"
    names = listed([change.argument for change in changes])
    return f"{said}; {report.out} differs in {names}"


HEADLINES: dict[State, Callable[[LoaderReport], str]] = {
    State.DIAGNOSED: _diagnosed,
    State.ALREADY_GOOD: _already_good,
    State.FIXED: _fixed,
    State.UNPROVEN: _unproven,
    State.NO_GAIN: _no_gain,
    State.REFUSED_RAM: _refused_by_limit,
    State.REFUSED_SHM: _refused_by_limit,
    State.REFUSED_ONE_SHOT: _refused_one_shot,
    State.REFUSED_UNPICKLABLE: _refused_unpicklable,
    State.REFUSED_ON_DEVICE: _refused_on_device,
    State.REFUSED_DIFFERENT: _refused_different,
    State.WRAPPED_ONLY: _wrapped_only,
    State.NO_ACCELERATOR: _no_accelerator,
}


def _at_most(bound: Bound | None) -> str:
    if bound is None or bound.most is None:
        return "how much could be won was not measured"
    if _is_near(bound):
        nothing = "nothing to win"
        if bound.binding is Part.LOAD:
            nothing = "nothing to win but by faster loading"
        return f"{nothing}: {_binds(bound)}"
    return f"a step can become at most {times_text(bound.most)} as fast"


def _is_near(bound: Bound | None) -> bool:
    return bound is not None and bound.most is not None and bound.most < WORTH_IT


def _binds(bound: Bound) -> str:
    """The slowest part, out of the whole step."""
    return (
        f"{bound.binding.value} takes {time_of_text(bound.best_s, bound.now_s)} a step"
    )


def _too_much(limit: Limit, guard: Guard) -> str:
    """What would run out."""
    what = _needed(limit, guard.locked_bytes)
    if limit.share is None:
        return f"{what}, and {limit.kind.value} does not allow that"
    if limit.share > 1:
        left = amount_text(limit.kind, limit.available)
        return f"{what}, and {left} are left"
    return f"{what}, {share_text(limit.share)} {_LEFT[limit.kind]}"


def _needed(limit: Limit, locked_bytes: int) -> str:
    """What would take so much: RAM holds what is pinned and what workers share."""
    needed = amount_text(limit.kind, limit.needed)
    if limit.kind is LimitKind.FILES:
        return f"workers would need {needed} open files"
    if limit.kind is LimitKind.SHM or not locked_bytes:
        return f"workers would need {needed} of shared memory"
    if limit.kind in _OF_RAM and (limit.needed or 0) > locked_bytes:
        return f"pinned and shared memory would take {needed}"
    return f"pinning would lock {needed}"
