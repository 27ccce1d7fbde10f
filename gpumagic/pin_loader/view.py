"""Draws how a loader feeds its device: the answer on one screen, the rest by words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Details, Drawing, Note, Paragraph, how_measured, one_screen
from gpumagic.pin_loader.report import (
    WORTH_IT,
    LimitKind,
    Pinned,
    Remedy,
    State,
    WatchReport,
    Way,
)
from gpumagic.pin_loader.report import Part as StepPart
from gpumagic.pin_loader.view_loader import (
    amount_text,
    batch_parts,
    damage_parts,
    device_text,
    is_loud,
    limit_notes,
    limits_table,
    loader_lines,
    loader_text,
    machine_parts,
    median_of,
    new_text,
    notes_of,
    pageable_sentence,
    place_lines,
    proof_parts,
    proof_sentence,
    type_notes,
    why_notes,
    worker_notes,
    worker_parts,
    worker_table,
)
from gpumagic.pin_loader.view_times import (
    copy_parts,
    loop_parts,
    rate_parts,
    remedy_parts,
    step_parts,
    timeline_parts,
    workers_sentence,
)
from gpumagic.report.robust import Verdict, inverse
from gpumagic.report.units import (
    count_text,
    listed,
    share_text,
    time_of_text,
    time_text,
    times_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.drawing import NoteKind, Part
    from gpumagic.pin_loader.report import (
        Anatomy,
        Bound,
        Gain,
        Guard,
        Limit,
        LoaderReport,
        Remark,
        WorkerTrial,
    )
    from gpumagic.report.robust import Comparison

_REFUSALS = frozenset(state for state in State if state.value.startswith("refused"))
_NOT_OF_MEMORY = (State.NO_ACCELERATOR, State.REFUSED_ON_DEVICE)
_WITH_WORKERS = (Remedy.WORKERS, Remedy.EVERYTHING)
_UNTRIED = (State.DIAGNOSED, State.NO_ACCELERATOR)
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
_BOTTLENECKS = {
    StepPart.LOAD: "loading",
    StepPart.PIN: "the copy into pinned memory",
    StepPart.LINK: "the copy to {where}",
    StepPart.STEP: "compute",
}
_AT_MOST = """\
At most: a step cannot be shorter than its slowest part.
More workers are taken to load as many times as fast as they are more.
That holds where loading computes; one that waits for a disk may gain more."""
_STAND_IN = """\
Your step is not known, so none of its time is shown here.
A remedy helps most with one step, as long as what it hides; yours gains less.
`--step FN` measures it."""
_STOOD_IN = "Both loops ran a stand-in for your step; `--step FN` measures your own."
_MODELLED = """\
Waits for data are worked out from how fast the loader is on this machine.
Copies to the device and compute are those of the model, which has its own clock."""
_TWO_CLOCKS = """\
Times of loading and of copies within the host are this machine's.
Copies to the device and compute are those of the {label}."""


def draw(report: LoaderReport | WatchReport) -> Drawing:
    """A loader from diagnosis to proof, or a cell that was watched."""
    if isinstance(report, WatchReport):
        from gpumagic.pin_loader.view_watch import watch_headline, watch_parts

        title, parts = watch_headline(report), watch_parts(report)
    else:
        title, parts = headline(report), _loader_parts(report)
    return Drawing(title, one_screen(parts), report.setting.label)


def _loader_parts(report: LoaderReport) -> Iterator[Part]:
    """What to do, one picture, one table; then all that can be asked for."""
    yield from _notes(report)
    yield from step_parts(report)
    yield from _table(report)
    if said := _in_a_sentence(report):
        yield Paragraph(said)
    yield from batch_parts(report)
    yield from copy_parts(report.rates, report.setting)
    yield from worker_parts(report.workers, shown=_shows_workers(report))
    if proof := (*proof_parts(report), *loop_parts(report.end_to_end, report)):
        yield Details("Whether it is the same, and faster", proof, "proof")
    yield from machine_parts(report.guard, report.setting, shown=_shows_limits(report))
    if times := (*rate_parts(report), *timeline_parts(report.steps, report.bound)):
        yield Details("How long each part takes", times, "times")
    loader = Paragraph("\n".join(loader_lines(report.loader)))
    yield how_measured(loader, *map(Paragraph, _how(report)))


def _notes(report: LoaderReport) -> Iterator[Part]:
    """What decides first: why not, what is wrong, what to type, what to mend."""
    remarks = _remarks(report)
    yield from _reason(report)
    yield from damage_parts(report.reuse)
    yield from notes_of(each for each in remarks if each.serious)
    yield from _next(report)
    if report.reason is None or report.guard is None or not report.guard.refusing:
        yield from limit_notes(report.guard)
    yield from why_notes(report)
    yield from type_notes(report.anatomy)
    yield from worker_notes(report.workers)
    hinted = (each for each in remarks if each.hint and not each.serious)
    yield from notes_of(hinted, report.rates.link)


def _remarks(report: LoaderReport) -> tuple[Remark, ...]:
    """What any part of the report remarks, in the order of its parts."""
    link = report.rates.link
    holders = (
        report,
        report.anatomy,
        report.rates,
        link,
        report.rebuilding,
        report.end_to_end,
    )
    return tuple(
        remark for each in holders if each is not None for remark in each.remarks
    )


def _reason(report: LoaderReport) -> Iterator[Part]:
    """Why it ended so; only what to do about it where the title says the reason."""
    reason = report.reason
    if reason is None:
        return
    kind: NoteKind = "note"
    if report.state in _REFUSALS or reason.serious:
        kind = "problem"
    said = report.bound is not None and report.end_to_end is None
    if report.guard is not None and report.guard.refusing is not None:
        yield Note(kind, "no loader was made", reason.hint)
    elif reason.text.lower() != headline(report).lower() and not said:
        yield Note(kind, reason.text, reason.hint)
    elif reason.hint.startswith("%"):
        yield Note(kind, "this finds out, and makes a loader if it pays", reason.hint)
    elif reason.hint:
        yield Note(kind, reason.hint)


def _next(report: LoaderReport) -> Iterator[Part]:
    """The loop with the new loader, or the magic that makes one."""
    name, best = report.loader.name, _best(report.bound)
    if report.out is not None:
        yield Note(
            "note", _ready(report), f"for {_names(report.anatomy)} in {report.out}:"
        )
        tried = report.workers is not None
        if name and best is not None and report.bound is not None and not tried:
            yield from _workers_besides(report.bound, best, name)
    elif report.state is State.DIAGNOSED and name and best is not None:
        workers = " --workers auto" if best.workers is not None else ""
        yield Note(
            "note",
            "nothing was changed; this makes such a loader, and proves it",
            f"%pin_loader {name}{workers}",
        )
    elif report.state in _UNTRIED and name and report.bound is None:
        yield from _more_workers(report, name)


def _workers_besides(bound: Bound, best: Gain, name: str) -> Iterator[Note]:
    """What a new loader with as many workers as before leaves to be won."""
    if best.remedy in _WITH_WORKERS and bound.most_workers is not None:
        most = times_text(bound.times(best))
        said = f"more workers besides could give up to {most}"
        yield Note("note", said, f"%pin_loader {name} --workers auto")


def _more_workers(report: LoaderReport, name: str) -> Iterator[Note]:
    """How to find out whether more workers help, where there could be more."""
    most, now = report.setting.processors, report.loader.workers
    if report.workers is None and most is not None and now is not None and now < most:
        what = f"whether more workers help, here up to {most}"
        yield Note("note", what, f"%pin_loader {name} --workers auto")


def _ready(report: LoaderReport) -> str:
    built, new = report.rebuilding, new_text(report)
    if report.state is State.NO_ACCELERATOR or (built is not None and not built.depth):
        return f"{new} takes the place of the old loader"
    where = device_text(report.setting)
    return f"its batches are on {where} already: leave out `.to()` in the loop"


def _names(anatomy: Anatomy | None) -> str:
    """Two names for a pair of tensors, which is what most loops write."""
    if anatomy is None or anatomy.class_name not in ("tuple", "list") or anatomy.others:
        return "batch"
    paths = {leaf.path for leaf in anatomy.leaves}
    return "x, y" if paths == _PAIR and not anatomy.left_out else "batch"


def _table(report: LoaderReport) -> Iterator[Part]:
    """What forbids it, else what could help, else how workers did."""
    search = report.workers
    if _shows_limits(report) and report.guard is not None:
        yield limits_table(report.guard)
    elif report.bound is not None and report.bound.gains:
        yield from remedy_parts(report)
    elif _shows_workers(report) and search is not None:
        yield worker_table(search)


def _shows_limits(report: LoaderReport) -> bool:
    """Whether they are why there is nothing else to show."""
    return report.state in _REFUSALS and is_loud(report.guard)


def _shows_workers(report: LoaderReport) -> bool:
    """Whether nothing else is to be shown in a table."""
    bound = report.bound
    known = report.end_to_end is not None and report.state is not State.NO_ACCELERATOR
    known = known or (bound is not None and bool(bound.gains))
    return bool(report.workers and report.workers.trials and not known)


def _in_a_sentence(report: LoaderReport) -> str:
    """What was changed; or else how the batch lies in memory, and who loads."""
    workers = workers_sentence(report)
    if report.out is not None:
        return f"{proof_sentence(report)} {workers}".rstrip()
    anatomy = report.anatomy
    if anatomy is None or not anatomy.leaves or report.state in _NOT_OF_MEMORY:
        return workers
    memory = pageable_sentence(anatomy)
    is_off = report.loader.pin_memory is False and memory.endswith("pageable")
    flag = "; pin_memory is off" if is_off else ""
    return f"{memory[0].upper()}{memory[1:]}{flag}. {workers}".rstrip()


def _how(report: LoaderReport) -> Iterator[str]:
    bound, found, label = report.bound, report.end_to_end, report.setting.label
    if bound is not None and bound.gains:
        yield _AT_MOST
        if bound.synthetic_step:
            yield _STAND_IN
    step = report.rates.step
    if found is not None and step is not None and step.synthetic:
        yield _STOOD_IN
    if found is not None and found.modelled:
        yield _MODELLED
    elif label and (bound is not None or report.rates.load is not None):
        yield _TWO_CLOCKS.format(label=label)
    for each in dict.fromkeys(_remarks(report)):
        if not each.hint and not each.serious:
            yield f"{each.text[0].upper()}{each.text[1:]}."
    if said := "\n".join(place_lines(report.setting)):
        yield said


# ------------------------------------------------------------------- the title


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
    if report.bound is not None:
        return _bottleneck(report, report.bound)
    name, found = loader_text(report.loader), report.anatomy
    if report.rates.load is not None:
        where = device_text(report.setting)
        return f"{_loads(report)}; copies to {where} were not measured"
    if found is None:
        return f"{name}: how much could be won was not measured"
    if _is_untried(report):
        return f"{name} is set to pin its batches; whether it does was not measured"
    return f"{name}: {pageable_sentence(found)}; what could be won was not measured"


def _loads(report: LoaderReport) -> str:
    load = report.rates.load
    if load is None:
        return "how fast it loads was not measured"
    workers = count_text(load.workers, "worker") if load.workers else "no workers"
    return f"loading takes {time_text(median_of(load.between))} a batch with {workers}"


def _is_untried(report: LoaderReport) -> bool:
    """Whether a loader that is set to pin was asked for batches that are not pinned."""
    leaves = () if report.anatomy is None else report.anatomy.leaves
    unknown = all(leaf.pinned is Pinned.UNKNOWN for leaf in leaves)
    return bool(leaves) and unknown and bool(report.loader.pin_memory)


def _bottleneck(report: LoaderReport, bound: Bound) -> str:
    """What a step spends most on, and the most that the best remedy could give."""
    exposed = dict(bound.exposed) or {bound.binding: bound.best_s}
    slowest = max(exposed, key=exposed.__getitem__)
    now_s = sum(exposed.values()) if bound.exposed else bound.now_s
    took_s = exposed[slowest]
    if slowest is StepPart.LOAD:
        took_s = min(dict(bound.parts).get(slowest, took_s), now_s)
    what = _BOTTLENECKS[slowest].format(where=device_text(report.setting))
    said = f"{what} is the bottleneck: {time_of_text(took_s, now_s)} a step"
    return f"{said}. {_most(bound)}"


def _most(bound: Bound) -> str:
    """What the best remedy could give; where that is nothing, that it is."""
    best = _best(bound)
    if best is not None:
        most = times_text(bound.times(best))
        here = "" if best.workers is None else " on this machine"
        return f"{_remedy(best, bound)} could give up to {most}{here}."
    known = [times for each in bound.gains if (times := bound.times(each)) is not None]
    if not known:
        return "Nothing else is known to help."
    return f"No remedy here could give more than {times_text(max(*known, 1.0))}."


def _best(bound: Bound | None) -> Gain | None:
    """The best remedy, if it is worth it."""
    best = None if bound is None else bound.best
    if bound is None or best is None:
        return None
    times = bound.times(best)
    return None if times is None or times < WORTH_IT else best


def _remedy(gain: Gain, bound: Bound) -> str:
    pinned = all(each.remedy is not Remedy.PIN for each in bound.gains)
    ahead = "copying ahead" if pinned else "pinning and copying ahead"
    match gain.remedy:
        case Remedy.PIN:
            return "Pinning"
        case Remedy.PREFETCH:
            return ahead[0].upper() + ahead[1:]
        case Remedy.WORKERS:
            return "More workers"
        case Remedy.EVERYTHING:
            return f"More workers, {ahead}"


def _already_good(report: LoaderReport) -> str:
    if _best(report.bound) is not None and report.bound is not None:
        return _bottleneck(report, report.bound)
    said = [f"{loader_text(report.loader)} is good as it is"]
    if report.bound is not None:
        said.append(_binds(report.bound))
    elif report.anatomy is not None:
        said.append(pageable_sentence(report.anatomy))
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
    if measured is not None:
        return f"nothing won: {faster_text('the loop with a prefetcher', report)}"
    if bound is not None:
        return _bottleneck(report, bound)
    if report.reason is not None:
        return report.reason.text
    return f"nothing to win with {loader_text(report.loader)}"


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
    why = "there is no accelerator to pin for"
    if report.out is None:
        return f"{_loads(report)}; {why}"
    if better := workers_text(report):
        return f"{report.out} {better}; {why}"
    changes = report.rebuilding.changes if report.rebuilding is not None else ()
    if not changes:
        return f"{report.out} loads as {loader_text(report.loader)} does; {why}"
    names = listed([change.argument for change in changes], most=3)
    return f"{report.out} differs in {names}; {why}"


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


def _binds(bound: Bound) -> str:
    """The slowest part, out of the whole step."""
    took = time_of_text(bound.best_s, bound.now_s)
    return f"{bound.binding.value} takes {took} a step"


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
    return f"{said}, with a stand-in step" if step and step.synthetic else said


def _verdict(newer: str, report: LoaderReport, result: Comparison) -> str:
    older, where = loader_text(report.loader), device_text(report.setting)
    if report.out is not None and report.out == report.loader.name:  # --inplace
        older = f"the old {older}"
    modelled = report.end_to_end is not None and report.end_to_end.modelled
    between = "" if modelled else _between(result)
    match result.verdict:
        case Verdict.FASTER:
            times = times_text(inverse(result.ratio))
            return f"{newer} feeds {where} {times} as fast as {older}{between}"
        case Verdict.SLOWER:
            times = times_text(result.ratio)
            return f"{newer} takes {times} as long a step as {older}{between}"
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
    against = f" as with {base or 'none'}"
    return f"loads {times_text(older / newer)} as fast with {workers}{against}"


def _batch_s(trial: WorkerTrial) -> float | None:
    return None if trial.loading is None else median_of(trial.loading.between)
