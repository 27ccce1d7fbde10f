"""Draws how a loader feeds its device: the answer in one sentence, then all parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Details, Drawing, Note, Paragraph
from gpumagic.pin_loader.report import (
    WORTH_IT,
    LimitKind,
    Pinned,
    State,
    WatchReport,
    Way,
)
from gpumagic.pin_loader.report import Part as StepPart
from gpumagic.pin_loader.view_loader import (
    damage_parts,
    guard_parts,
    is_loud,
    leaf_parts,
    pageable_sentence,
    proof_parts,
    setting_parts,
)
from gpumagic.pin_loader.view_times import (
    bound_parts,
    copies_parts,
    each_part_parts,
    end_to_end_parts,
    ranges_parts,
    steps_parts,
    worker_parts,
)
from gpumagic.pin_loader.view_watch import watch_headline, watch_parts
from gpumagic.pin_loader.view_words import (
    all_remarks,
    amount_text,
    device_text,
    inverse,
    loader_text,
    median_of,
    new_text,
    notes_of,
    other,
    serious,
    time_of_text,
    times_text,
)
from gpumagic.report.robust import Verdict
from gpumagic.report.units import count_text, listed, share_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.drawing import NoteKind, Part
    from gpumagic.pin_loader.report import (
        Anatomy,
        Bound,
        Guard,
        Limit,
        LoaderReport,
        WorkerTrial,
    )
    from gpumagic.report.robust import Comparison

# In the other states there is little to see in a picture of before and after.
_CHANGING = (State.DIAGNOSED, State.FIXED, State.WRAPPED_ONLY)
_REFUSALS = frozenset(state for state in State if state.value.startswith("refused"))
_LEFT = {
    LimitKind.AVAILABLE: "of the memory that is left",
    LimitKind.CGROUP: "of the memory that the container has left",
    LimitKind.WSL: "of what WSL lets anybody pin",
    LimitKind.SHM: "of the shared memory that is left",
    LimitKind.FILES: "of the files that may still be opened",
    LimitKind.MEMLOCK: "of what ulimit lets it lock",
}
_OF_RAM = (LimitKind.AVAILABLE, LimitKind.CGROUP)
_PAIR = {"batch[0]", "batch[1]"}


def draw(report: LoaderReport | WatchReport) -> Drawing:
    """A loader from diagnosis to proof, or a cell that was watched."""
    if isinstance(report, WatchReport):
        title, parts = watch_headline(report), watch_parts(report)
    else:
        title, parts = headline(report), _loader_parts(report)
    return Drawing(title, tuple(parts), report.setting.label)


def _loader_parts(report: LoaderReport) -> Iterator[Part]:
    """What decides first: why not, what is wrong, what is won, what is possible."""
    remarks = all_remarks(report)
    yield from _reason(report)
    yield from damage_parts(report.reuse)
    yield from notes_of(serious(remarks))
    yield from next_parts(report)
    if report.guard is not None and is_loud(report.guard):
        told = "" if report.reason is None else report.reason.hint
        yield from guard_parts(report.guard, report.setting, told)
    yield from end_to_end_parts(report)
    if report.steps is not None and report.state in _CHANGING:
        yield from steps_parts(report.steps)
    yield from _findings(report)
    yield from proof_parts(report)
    yield from notes_of(other(remarks))
    yield from _rest(report)


def _findings(report: LoaderReport) -> Iterator[Part]:
    """What was found of the loader as it is."""
    if report.bound is not None:
        yield from bound_parts(report.bound)
    yield from leaf_parts(report)
    yield from copies_parts(report.rates, report.setting)
    if report.bound is None:
        yield from each_part_parts(report.rates, report.setting)
    if report.setting.label and _mixes_clocks(report):
        yield Paragraph(
            "Times of loading and of copies within the host are this machine's; copies "
            f"to the device and compute are those of the {report.setting.label}."
        )
    if report.workers is not None:
        yield from worker_parts(report.workers)


def _mixes_clocks(report: LoaderReport) -> bool:
    """Whether figures of both clocks are shown, and nothing has said so yet."""
    said = report.end_to_end is not None and report.end_to_end.modelled
    return not said and (report.bound is not None or report.rates.load is not None)


def _rest(report: LoaderReport) -> Iterator[Part]:
    """What only some readers want to see."""
    if report.guard is not None and not is_loud(report.guard):
        yield from guard_parts(report.guard, report.setting)
    if report.bound is not None:
        yield from each_part_parts(report.rates, report.setting)
    yield from ranges_parts(report.rates)
    if report.steps is not None and report.state not in _CHANGING:
        steps = tuple(steps_parts(report.steps))
        yield Details("What a prefetcher would do", steps)
    yield from setting_parts(report.loader, report.setting)


def _reason(report: LoaderReport) -> Iterator[Part]:
    """Why it ended so; only what to do about it where the title says the reason."""
    reason = report.reason
    if reason is None:
        return
    kind: NoteKind = "note"
    if report.state in _REFUSALS or reason.serious:
        kind = "problem"
    if reason.text.lower() != headline(report).lower():
        yield Note(kind, reason.text, reason.hint)
    elif reason.hint:
        yield Note(kind, reason.hint)


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
    names = listed([change.argument for change in changes], most=3)
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
        if bound.binding is StepPart.LOAD:
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


def faster_text(newer: str, report: LoaderReport) -> str:
    """The verdict on the new loader, with its interval, and with which step."""
    if report.end_to_end is None:
        return f"{newer} is ready; how much faster it is was not measured"
    step = report.rates.step
    said = _verdict(newer, report, report.end_to_end.result)
    return f"{said}, with a synthetic step" if step and step.synthetic else said


def _verdict(newer: str, report: LoaderReport, result: Comparison) -> str:
    older, where = loader_text(report.loader), device_text(report.setting)
    if report.out is not None and report.out == report.loader.name:  # --inplace
        older = f"the old {older}"
    match result.verdict:
        case Verdict.FASTER:
            times = times_text(inverse(result.ratio))
            return f"{newer} feeds {where} {times} as fast as {older}{_between(result)}"
        case Verdict.SLOWER:
            times = times_text(result.ratio)
            return f"{newer} takes {times} as long a step as {older}{_between(result)}"
        case Verdict.SAME:
            return f"no measurable difference between {newer} and {older}, within 1 %"
        case Verdict.CANNOT_TELL if result.interval is None:
            return f"too few runs to tell how {newer} compares with {older}"
        case Verdict.CANNOT_TELL:
            return f"no measurable difference between {newer} and {older}"


def _between(result: Comparison) -> str:
    if result.interval is None:
        return ""
    ends = result.interval.low, result.interval.high
    if result.verdict is Verdict.FASTER:
        low, high = (times_text(inverse(end)) for end in reversed(ends))
    else:
        low, high = map(times_text, ends)
    return "" if low == high else f" ({low.removesuffix('x')} to {high})"


def workers_text(report: LoaderReport) -> str:
    """What workers alone bring the new loader, where they bring something."""
    search = report.workers
    if search is None or search.chosen is None:
        return ""
    times = {
        each.workers: batch_s
        for each in search.trials
        if (batch_s := _batch_s(each)) is not None
    }
    now = report.loader.workers
    base = now if now in times else next(iter(times), None)
    newer = times.get(search.chosen)
    older = None if base is None else times.get(base)
    if not older or not newer or older / newer < WORTH_IT:
        return ""
    workers = count_text(search.chosen, "worker")
    against = "" if base == now else f" as with {base or 'none'}"
    return f"loads {times_text(older / newer)} as fast with {workers}{against}"


def _batch_s(trial: WorkerTrial) -> float | None:
    return None if trial.loading is None else median_of(trial.loading.between)


def next_parts(report: LoaderReport) -> Iterator[Part]:
    """The loop with the new loader, or the magic that makes one."""
    if report.out is not None:
        yield Note(
            "note", _ready(report), f"for {_names(report.anatomy)} in {report.out}:"
        )
    elif report.state is State.DIAGNOSED and report.loader.name and _worth(report):
        yield Note(
            "note",
            "nothing was changed; this makes a loader that feeds faster, and proves it",
            f"%pin_loader {report.loader.name}",
        )


def _ready(report: LoaderReport) -> str:
    built, new = report.rebuilding, new_text(report)
    if report.state is State.NO_ACCELERATOR or (built is not None and not built.depth):
        return f"{new} takes the place of the old loader"
    where = device_text(report.setting)
    return f"batches of {new} are on {where} already: leave out `.to()` in the loop"


def _worth(report: LoaderReport) -> bool:
    most = None if report.bound is None else report.bound.most
    return most is None or most >= WORTH_IT


def _names(anatomy: Anatomy | None) -> str:
    """Two names for a pair of tensors, which is what most loops write."""
    if anatomy is None or anatomy.class_name not in ("tuple", "list") or anatomy.others:
        return "batch"
    paths = {leaf.path for leaf in anatomy.leaves}
    return "x, y" if paths == _PAIR and not anatomy.left_out else "batch"
