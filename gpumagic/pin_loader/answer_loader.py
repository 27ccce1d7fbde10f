"""Says how a loader feeds its device: the verdict in a line, then one screen.

Of workers only what was measured is said; a number that was not tried is not judged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpumagic.drawing import (
    Column,
    Details,
    Drawing,
    Meter,
    Note,
    Paragraph,
    Property,
    Stack,
    Stacks,
    Table,
    how_measured,
    one_screen,
)
from gpumagic.pin_loader import records
from gpumagic.report import robust
from gpumagic.report.record import Report
from gpumagic.report.robust import Verdict, inverse
from gpumagic.report.units import (
    bytes_text,
    count_text,
    listed,
    rate_text,
    seconds_text,
    shortened,
    three_digits,
    time_of_text,
    time_text,
    times_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpumagic.drawing import Cell, NoteKind, Part

_MOST_TIMES = 100


@dataclass(frozen=True)
class LoaderReport(Report):
    """A loader from diagnosis to proof; what was not reached is None."""

    state: records.State
    setting: records.Setting
    loader: records.LoaderFacts
    reason: records.Remark | None = None  # why it ended so, and what to do
    anatomy: records.Anatomy | None = None
    guard: records.Guard | None = None
    rates: records.Rates = field(default_factory=records.Rates)
    workers: records.WorkerSearch | None = None
    bound: records.Bound | None = None
    changes: tuple[records.Change, ...] = ()  # of arguments, in the new loader
    sameness: records.Sameness | None = None
    end_to_end: records.EndToEnd | None = None
    remarks: tuple[records.Remark, ...] = ()
    out: str | None = None  # the name of the new loader, where there is one

    @property
    def headline(self) -> str:
        """The answer in one sentence."""
        said = _HEADLINES[self.state](self)
        if any(name and said.startswith(name) for name in (self.name, self.out)):
            return said
        return _capital(said)

    @property
    def name(self) -> str:
        """What the loader is called."""
        return self.loader.name or "the loader"

    def drawing(self) -> Any:
        """The verdict and one screen."""
        return Drawing(self.headline, one_screen(_parts(self)), self.setting.label)

    def __repr__(self) -> str:
        return f"LoaderReport({self.headline!r})"


# ---------------------------------------------------------------- the verdict


def _looked_at(report: LoaderReport) -> str:
    if report.bound is not None:
        return _bottleneck(report, report.bound)
    if report.state is records.State.NOTHING:
        reason = "" if report.reason is None else f": {report.reason.text}"
        return f"{report.name} gives batches, and stays as it is{reason}"
    where = device_text(report.setting)
    return f"{_loads(report)}; copies to {where} were not measured"


def _bottleneck(report: LoaderReport, bound: records.Bound) -> str:
    """What a step spends most on, and the best that is known to be done about it."""
    exposed = dict(bound.exposed)
    slowest = max(exposed, key=exposed.__getitem__)
    now_s, took_s = sum(exposed.values()), exposed[slowest]
    if slowest is records.Part.LOAD:
        took_s = min(dict(bound.parts).get(slowest, took_s), now_s)
    what = slowest.value.replace("the device", device_text(report.setting))
    said = f"{what} is the bottleneck: {time_of_text(took_s, now_s)} a step"
    return f"{said}. {_capital(_remedy_clause(report, bound))}."


def _remedy_clause(report: LoaderReport, bound: records.Bound) -> str:
    """The best that is known; where nothing is, what was tried."""
    copies = bound.gain(records.Remedy.PIN, records.Remedy.PREFETCH)
    ahead = copies is not None and copies.times >= records.WORTH_IT
    copying = "copying ahead" if _pins(bound) else "pinning and copying ahead"
    gain = bound.gain(records.Remedy.WORKERS)
    if gain is not None and report.workers is not None:
        said = workers_clause(report.workers, gain)
        most = bound.times(records.Remedy.EVERYTHING)
        if ahead and most >= records.WORTH_IT * gain.times:
            return f"{said}; {copying} besides, up to {times_text(most)} in all"
        return said
    if ahead and copies is not None:
        what = "pinning" if copies.remedy is records.Remedy.PIN else copying
        return f"{what} could give up to {times_text(copies.times)}"
    at_most = max([1.0, *(each.times for each in bound.gains)])
    return f"no remedy that was tried could give more than {times_text(at_most)}"


def _pins(bound: records.Bound) -> bool:
    """Whether the loader pins already, so that pinning is no remedy."""
    return all(each.remedy is not records.Remedy.PIN for each in bound.gains)


def workers_clause(
    search: records.WorkerSearch, gain: records.Gain | None = None
) -> str:
    """What other workers give, as measured; in half a sentence.

    Where to start them takes much of an epoch, also what they give once they are kept:
    that is what the table of remedies holds.
    """
    new = search.of(search.chosen)
    if not search.gains or new is None:
        others = [
            f"{each.workers}" for each in search.trials if each.workers != search.now
        ]
        plural = "worker" if others == ["1"] else "workers"
        return f"{listed(others)} {plural} load no faster" if others else ""
    verb = "loads" if search.chosen == 1 else "load"
    who = f"{count_text(search.chosen, 'worker')} {verb}"
    said = f"{who if search.chosen else 'without workers it loads'} "
    said += f"{times_text(search.times)} as fast"
    if not new.starts_long:
        return said
    old = search.of(search.now) or new
    kept = gain.times if gain else old.batch_s / new.between.median_s
    said += f", up to {times_text(kept)} once they are kept"
    return f"{said} (persistent_workers=True)"


def _loads(report: LoaderReport) -> str:
    load = report.rates.load
    if load is None:
        return "how fast it loads was not measured"
    count = count_text(load.workers, "worker")
    said = f"loading takes {time_text(load.batch_s)} a batch with {count}"
    clause = "" if report.workers is None else workers_clause(report.workers)
    return f"{said}; {clause}" if clause else said


def _compared(report: LoaderReport) -> str:
    """The new loader against the old, with its interval, and with which step."""
    proof, new = report.end_to_end, report.out or "the loop with a prefetcher"
    if proof is None:
        return f"{new} is ready; no time was left to compare it"
    result, interval = proof.result, proof.result.interval
    if interval is None:
        return f"{new} is ready; the runs are too few to tell how much faster it is"
    match result.verdict:
        case Verdict.FASTER:
            times = times_text(inverse(result.ratio))
            where = device_text(report.setting)
            said = f"{new} feeds {where} {times} as fast as {report.name}"
            ends = 1 / interval.high, 1 / interval.low
        case Verdict.SLOWER:
            times = times_text(result.ratio)
            said = f"{new} takes {times} as long a step as {report.name}"
            ends = interval.low, interval.high
        case Verdict.SAME:
            said = f"no difference between {new} and {report.name}, within 1 %"
            ends = 1.0, 1.0
        case Verdict.CANNOT_TELL:
            said = f"no measurable difference between {new} and {report.name}"
            ends = 1.0, 1.0
    low, high = map(times_text, ends)
    if low != high and not proof.modelled:
        said = f"{said} ({low.removesuffix('x')} to {high})"
    step = report.rates.step
    said = f"{said}, with a stand-in step" if step and step.synthetic else said
    return said if report.out else f"nothing won: {said}"


def _refused(report: LoaderReport) -> str:
    guard, reason, found = report.guard, report.reason, report.sameness
    if guard is not None and guard.refusing is not None:
        limit = guard.refusing
        what = (
            "workers would need"
            if limit.kind is records.LimitKind.SHM
            else "it would take"
        )
        left = bytes_text(limit.available)
        needed = f"{what} {bytes_text(limit.needed)} of the {limit.kind.value}"
        return f"Refused: {needed}, and {left} are left"
    if found is not None and found.difference:
        return f"Refused: rebuilt, {report.name} gave other batches: {found.difference}"
    text = "" if reason is None else f": {reason.text}"
    if reason is not None and reason.serious:
        return f"{report.name} is wrong{text}"
    return f"Refused: {report.name} stays as it is{text}"


_HEADLINES: dict[records.State, Callable[[LoaderReport], str]] = {
    records.State.NOTHING: _looked_at,
    records.State.DIAGNOSED: _looked_at,
    records.State.FASTER: _compared,
    records.State.SAME: _compared,
    records.State.REFUSED: _refused,
    records.State.NO_ACCELERATOR: lambda report: (
        f"{_loads(report)}; there is no accelerator to pin for"
    ),
}


def device_text(setting: records.Setting) -> str:
    """The device that batches go to."""
    if setting.device is None:
        return "the device"
    return f"{setting.kind}:{setting.device}"


def _capital(said: str) -> str:
    return f"{said[0].upper()}{said[1:]}"


# ----------------------------------------------------------------- the screen


def _parts(report: LoaderReport) -> Iterator[Part]:
    """What to do, one picture, one table; then all that can be asked for."""
    yield from _notes(report)
    yield from _picture(report)
    yield from _table(report)
    if said := _in_a_sentence(report):
        yield Paragraph(said)
    if report.anatomy is not None and report.anatomy.leaves:
        whole = (_batch_table(report.anatomy),)
        yield Details("A batch, tensor by tensor", whole, "batch")
    if report.workers is not None:
        inside = _worker_table(report.workers), Paragraph(_on_workers(report.workers))
        yield Details("Loading by number of workers", inside, "workers")
    if proof := "\n".join(_proof_lines(report)):
        lines = (Paragraph(proof),)
        yield Details("Whether it is the same, and faster", lines, "proof")
    if times := tuple(_time_parts(report)):
        yield Details("How long each part takes", times, "times")
    yield how_measured(*map(Paragraph, _how(report)))


def _notes(report: LoaderReport) -> Iterator[Note]:
    """What decides first: why not, what is wrong, what to type, what to mend."""
    search = report.workers
    refused = report.state is records.State.REFUSED
    yield from _reason(report)
    yield from notes_of(each for each in report.remarks if each.serious)
    yield from _next(report)
    if report.guard is not None and not refused:
        for limit in report.guard.limits:
            if limit.severity in (records.Severity.WARN, records.Severity.REFUSE):
                left = bytes_text(limit.available)
                said = f"{bytes_text(limit.needed)} needed, {left} available"
                yield Note("warning", f"{limit.kind.value}: {said}", limit.hint)
    if not refused and report.state is not records.State.NO_ACCELERATOR:
        yield from _why_notes(report)
    if search is not None and search.problem is not None:
        yield from notes_of([search.problem])
    hinted = (each for each in report.remarks if each.hint and not each.serious)
    yield from notes_of(hinted)
    new = search.of(search.chosen) if search and _has_other_workers(report) else None
    if new is not None and new.starts_long:
        said = f"to start {count_text(new.workers, 'worker')} takes "
        said += f"{time_text(new.start_s)} of each epoch, which is left out here"
        yield Note("note", said, "persistent_workers=True keeps them")


def notes_of(remarks: Iterable[records.Remark]) -> Iterator[Note]:
    """A note for each remark, each said once."""
    for each in dict.fromkeys(remarks):
        kind: NoteKind = "problem" if each.serious else "note"
        yield Note(kind, each.text, each.hint)


def _reason(report: LoaderReport) -> Iterator[Note]:
    """Why it ended so; only what to do about it where the title says the reason."""
    reason = report.reason
    if reason is None:
        return
    refused = report.state is records.State.REFUSED
    kind: NoteKind = "problem" if refused else "note"
    if not (refused or report.bound is not None or reason.text in report.headline):
        yield Note(kind, reason.text, reason.hint)
    elif reason.hint:
        yield Note(kind, reason.hint)


def _next(report: LoaderReport) -> Iterator[Note]:
    """The loop with the new loader, or the magic that makes one."""
    name, search = report.loader.name, report.workers
    if report.out is not None:
        where = device_text(report.setting)
        said = f"its batches are on {where} already: leave out `.to()` in the loop"
        yield Note("note", said, f"for batch in {report.out}:")
    if not name or report.state is records.State.REFUSED:
        return
    if search is not None and search.gains and not _has_other_workers(report):
        hint = f"%pin_loader {name} --workers {search.chosen}"
        if report.state is records.State.NO_ACCELERATOR:
            hint = f"DataLoader(..., num_workers={search.chosen})"
        said = "left to you: with other workers random transforms draw other numbers"
        yield Note("note", said, hint)
    elif report.state is records.State.DIAGNOSED and report.bound and report.bound.best:
        said = "nothing was changed; this makes such a loader, and proves it"
        yield Note("note", said, f"%pin_loader {name}")


def _has_other_workers(report: LoaderReport) -> bool:
    return any(change.argument == "num_workers" for change in report.changes)


def _table(report: LoaderReport) -> Iterator[Part]:
    """What could help, else how workers did."""
    search = report.workers
    if report.bound is not None and report.bound.gains:
        yield _remedy_table(report, report.bound)
    elif search is not None and len(search.trials) > 1:
        yield _worker_table(search)


def _in_a_sentence(report: LoaderReport) -> str:
    """What was changed; or else how the batch lies in memory, and who loads."""
    search, anatomy, workers = report.workers, report.anatomy, ""
    if search is not None and report.bound is not None and not search.gains:
        said = (
            workers_clause(search)
            if search.stopped is not records.Stopped.ASKED
            else ""
        )
        workers = f"{_capital(said)}." if said else ""  # else the title has them
    if report.out is not None:
        return f"{_proof_sentence(report)} {workers}".strip()
    quiet = report.state in (records.State.NO_ACCELERATOR, records.State.REFUSED)
    if anatomy is None or not anatomy.leaves or quiet:
        return workers
    memory = pageable_sentence(anatomy)
    is_off = not report.loader.pin_memory and memory.endswith("pageable")
    flag = "; pin_memory is off" if is_off else ""
    return f"{_capital(memory)}{flag}. {workers}".strip()


# ---------------------------------------------------------------- the picture

_WAITS, _COPY, _KERNEL = "host waits", "copy", "kernel"
_KINDS = {records.Part.LINK: _COPY, records.Part.STEP: _KERNEL}
_NOTHING = 1e-6  # of a step: a rounding error


def _picture(report: LoaderReport) -> Iterator[Part]:
    """A step before and after, in one picture: as measured, else as worked out."""
    proof, bound, step = report.end_to_end, report.bound, report.rates.step
    if bound is None:
        return
    after = bound.gain(records.Remedy.PREFETCH) if proof is not None else bound.best
    if proof is not None:
        names = [report.name, report.out or "then"]
        if max(map(len, names)) > 20:
            names = ["now", "then"]
        medians = map(robust.median, zip(*proof.result.pairs, strict=True))
        compute_s = 0.0 if step is None else step.samples.median_s
        exposed = bound.exposed, after.exposed if after else ()
        stacks = []
        for name, whole_s, parts in zip(names, medians, exposed, strict=True):
            # Compute, then copying, as far as there is room; waiting is the rest.
            step_s = min(compute_s, whole_s)
            copy_s = min(dict(parts).get(records.Part.LINK, 0.0), whole_s - step_s)
            sizes = whole_s - step_s - copy_s, copy_s, step_s
            stacks.append(_stack(name, tuple(zip(_STACKED, sizes, strict=True))))
        how = "worked out" if proof.modelled else "measured"
        caption = f"A step, median ({how}; how it divides is estimated)"
    elif any(seconds for _, seconds in bound.exposed):
        stacks = [_stack("now", bound.exposed)]
        if after is not None and after.exposed:
            stacks.append(_stack(_remedy_text(report, after, bound), after.exposed))
        own = " without your compute" if bound.synthetic_step else ""
        caption = f"A step{own}, estimated from its parts"
    else:
        return
    stand_in = "a stand-in for your step" if bound.synthetic_step and proof else ""
    said = {_WAITS: "for batches", _COPY: "not hidden", _KERNEL: stand_in}
    yield Stacks(caption, tuple(stacks), tuple(_legend(stacks, said)))


_STACKED = (records.Part.LOAD, records.Part.LINK, records.Part.STEP)


def _stack(label: str, parts: tuple[tuple[records.Part, float], ...]) -> Stack:
    whole_s = sum(seconds for _, seconds in parts)
    pieces = tuple(
        (_KINDS.get(part, _WAITS), seconds if seconds > _NOTHING * whole_s else 0.0)
        for part, seconds in parts
    )
    return Stack(label, pieces, time_text(whole_s))


def _legend(stacks: list[Stack], said: dict[str, str]) -> Iterator[tuple[str, str]]:
    """What each piece comes to."""
    for kind, what in said.items():
        sizes = [dict(each.pieces).get(kind, 0.0) for each in stacks]
        told = zip(sizes, ("now", "then"), strict=False)
        text = ", ".join(f"{time_text(size)} {when}" for size, when in told)
        if any(sizes):
            yield kind, f"{what}: {text}" if what else text


# --------------------------------------------------------------- the remedies


def _remedy_table(report: LoaderReport, bound: records.Bound) -> Table:
    """What each remedy can give at most, the best first; what was made, measured."""
    proof, heads = report.end_to_end, [Column("Remedy"), Column("At most", number=True)]
    made = (
        records.Remedy.EVERYTHING
        if _has_other_workers(report)
        else records.Remedy.PREFETCH
    )
    measured = ""
    if proof is not None and proof.result.verdict is not Verdict.CANNOT_TELL:
        measured = times_text(inverse(proof.result.ratio))
        heads.append(
            Column("Worked out" if proof.modelled else "Measured", number=True)
        )
    rows = []
    for gain in sorted(bound.gains, key=lambda each: -each.times):
        most = gain.times > _MOST_TIMES
        times = f"over {_MOST_TIMES}x" if most else times_text(gain.times)
        row: list[Cell] = [_remedy_text(report, gain, bound), times]
        if measured:
            row.append(measured if gain.remedy is made else "-")
        rows.append(tuple(row))
    caption = "What each remedy could give"
    return Table(caption, tuple(heads), tuple(rows), name="remedies")


def _remedy_text(report: LoaderReport, gain: records.Gain, bound: records.Bound) -> str:
    """A remedy as one would set it; workers are taken to be kept."""
    search, workers = report.workers, f"num_workers={gain.workers}"
    new = search.of(gain.workers) if search and gain.workers is not None else None
    if new is not None and new.starts_long:
        workers += ", persistent_workers=True"
    ahead = "copied ahead" if _pins(bound) else "pinned, copied ahead"
    return {
        records.Remedy.PIN: "pin_memory=True",
        records.Remedy.PREFETCH: ahead,
        records.Remedy.WORKERS: workers,
        records.Remedy.EVERYTHING: f"{workers}, {ahead}",
    }[gain.remedy]


# ------------------------------------------------------------------- the batch

_MOST_LEAVES, _LONGEST_PATH = 10, 120
_FIXES = {
    records.WhyPageable.PASSED_THROUGH: (
        "the loader of %pin_loader pins it, or give {holder} a pin_memory() method"
    ),
    records.WhyPageable.NOT_A_TENSOR: "torch.from_numpy(...) in the collate_fn",
    records.WhyPageable.NOT_DENSE: "send its indices and values as two tensors",
}


def pageable_sentence(anatomy: records.Anatomy) -> str:
    """How many tensors and bytes are pageable, in one sentence without a full stop."""
    kinds = {leaf.pinned for leaf in anatomy.leaves}
    size = bytes_text(anatomy.tensor_bytes)
    if len(kinds) == 1:
        count = count_text(len(anatomy.leaves), "tensor")
        return f"a batch ({count}, {size}) is {kinds.pop().value}"
    pageable = bytes_text(anatomy.bytes_that_are(records.Pinned.PAGEABLE))
    least = "at least " if records.Pinned.UNKNOWN in kinds else ""
    return f"{least}{pageable} of {size} of a batch are pageable"


def _why_notes(report: LoaderReport) -> Iterator[Note]:
    """Reasons why tensors are pageable that no remedy of the table mends."""
    by_why: dict[tuple[records.WhyPageable, str], int] = {}
    for leaf in report.anatomy.leaves if report.anatomy else ():
        made = report.out is not None and leaf.why is records.WhyPageable.PASSED_THROUGH
        if leaf.pinned is records.Pinned.PAGEABLE and leaf.why in _FIXES and not made:
            key = leaf.why, leaf.holder or "its class"
            by_why[key] = by_why.get(key, 0) + leaf.nbytes
    for (why, holder), nbytes in by_why.items():
        said = f"pageable: {bytes_text(nbytes)}, as {why.value}"
        yield Note("warning", said, _FIXES[why].format(holder=holder))


def _batch_table(anatomy: records.Anatomy) -> Table:
    """All tensors, and why they are pageable."""
    leaves = sorted(anatomy.leaves, key=lambda leaf: -leaf.nbytes)
    caption = f"A batch ({anatomy.class_name}, {bytes_text(anatomy.tensor_bytes)})"
    return Table.of(caption, _LEAF, leaves[:_MOST_LEAVES], len(leaves))


def _memory(leaf: records.Leaf) -> str:
    why = f": {leaf.why.value}" if leaf.why is not None else ""
    return f"{leaf.pinned.value}{why}"


_LEAF = (
    Property(Column("Tensor"), lambda leaf: shortened(leaf.path, _LONGEST_PATH)),
    Property(Column("Class"), lambda leaf: leaf.what),
    Property(Column("Shape"), lambda leaf: " x ".join(map(str, leaf.shape)) or "-"),
    Property(Column("Type"), lambda leaf: leaf.dtype or "-"),
    Property(Column("Size", number=True), lambda leaf: bytes_text(leaf.nbytes)),
    Property(Column("Memory"), _memory),
)

# --------------------------------------------------------------------- workers


def _worker_table(search: records.WorkerSearch) -> Table:
    """The curve as a table of bars."""
    speeds = [1 / max(each.batch_s, 1e-9) for each in search.trials]
    rows = []
    for each, speed in zip(search.trials, speeds, strict=True):
        best = " (best)" if each.workers == search.chosen and search.gains else ""
        word = " (now)" if each.workers == search.now else best
        bar = Meter(speed / max(speeds), three_digits(speed, group=","))
        times = time_text(each.batch_s), time_text(each.start_s)
        rows.append((f"{each.workers}{word}", bar, *times))
    heads = (
        Column("Workers"),
        Column("Batches a second"),
        Column("A batch", number=True),
        Column("First batch after", number=True),
    )
    return Table("Loading by number of workers (measured)", heads, tuple(rows))


def _on_workers(search: records.WorkerSearch) -> str:
    lines = [f"Other numbers were not tried: {search.stopped.value}."]
    alone = search.of(0)
    if alone is not None and alone.cpu_s is not None and search.busy is not None:
        lines.append(
            f"A batch takes {seconds_text(alone.cpu_s)} of a processor, and waits "
            f"{seconds_text(alone.waited_s)} for something else: "
            f"{count_text(search.busy, 'worker')} could keep the processors busy."
        )
    return "\n".join(lines)


# ----------------------------------------------------------------------- proof


def _proof_sentence(report: LoaderReport) -> str:
    """What differs, and how far old and new were compared."""
    said, found = [], report.sameness
    if report.changes:
        names = [shortened(change.argument, 30) for change in report.changes]
        said.append(f"Changed: {listed(names, most=4)}.")
    if found is not None and found.same:
        which = "All" if found.whole else "The first"
        count = count_text(found.batches, "batch", "batches")
        said.append(f"{which} {count} are the same in value, order and class.")
    elif found is not None and found.same is None:
        said.append("Whether batches are the same could not be told.")
    return " ".join(said)


def _proof_lines(report: LoaderReport) -> Iterator[str]:
    """What was changed, what was compared, and both loops."""
    found, proof = report.sameness, report.end_to_end
    for each in report.changes:
        yield f"{each.argument}: {each.before} became {each.after}"
    if found is not None:
        same = "the same" if found.same else f"not the same: {found.difference}"
        told = "could not be told" if found.same is None else same
        problem = f"; {found.problem}" if found.problem else ""
        yield f"Batches ({found.batches} compared): {told}{problem}"
    if proof is None:
        return
    result = proof.result
    sure = " (too few pairs to say how sure that is)"
    if proof.modelled:
        sure = ", worked out from how long each part takes"
    elif result.interval is not None:
        low, high = map(three_digits, result.interval[:2])
        sure = f" ({low} to {high} with 95 % confidence)" if low != high else ""
    ratio = three_digits(result.ratio)
    new = report.out or "the new one"
    yield f"With {new} a step takes {ratio} of what it took{sure}."
    if not proof.modelled:
        steps = count_text(proof.batches, "step")
        yield f"{count_text(len(result.pairs), 'pair')} of {steps} each, in turn."


# ----------------------------------------------------------------------- times


def _time_parts(report: LoaderReport) -> Iterator[Part]:
    """Each part of a step on its own, with its range."""
    bound, rows = report.bound, list(_time_rows(report.rates))
    if rows:
        how = "as the model has it" if report.setting.label else "measured"
        caption = f"A batch of {bytes_text(report.rates.nbytes)}, part by part ({how})"
        if report.rates.nbytes is None:
            caption = "A batch, part by part (measured)"
        yield Table(caption, _TIME_HEADS, tuple(rows))
    if bound is not None:
        binding, least = bound.binding.value, time_text(bound.best_s)
        yield Paragraph(
            f"A step as it is: {time_text(bound.now_s)}, added up from these.\n"
            f"No step is shorter than {binding}, {least}, as loading is now."
        )


_TIME_HEADS = (
    Column("Part"),
    Column("Median", number=True),
    Column("Shortest", number=True),
    Column("Longest", number=True),
    Column("Rate", number=True),
)


def _time_rows(rates: records.Rates) -> Iterator[tuple[Cell, ...]]:
    parts: list[tuple[str, records.Samples, bool]] = []
    if rates.load is not None:
        count = count_text(rates.load.workers, "worker")
        parts.append((f"loading, {count}, on this machine", rates.load.between, False))
    if rates.pin_copy is not None:
        parts.append(("copy into pinned memory", rates.pin_copy, True))
    for mode in rates.copies:
        memory = "pinned" if mode.pinned else "pageable"
        word = "blocking" if mode.blocking else "non_blocking"
        parts.append((f"copy to the device, {memory}, {word}", mode.there, True))
        if not mode.blocking:
            parts.append(("the host, held by that copy", mode.host, False))
    if rates.step is not None:
        stands = " for yours" if rates.step.synthetic else ""
        parts.append((f"compute, {rates.step.name}{stands}", rates.step.samples, False))
    for what, each, copies in parts:
        rate = rates.nbytes / each.median_s if copies and rates.nbytes else None
        ends = min(each.seconds), max(each.seconds)
        text = rate_text(rate, "B/s", "G") if rate else "-"
        yield (what, *map(time_text, (each.median_s, *ends)), text)


# ------------------------------------------------------------------------- how

_AT_MOST = """\
At most: a step cannot be shorter than its slowest part, by what was measured.
Of workers only those are judged that were tried; their start is left out there."""
_STAND_IN = """\
Your step is not known, so none of its time is shown here.
A remedy helps most with one step, as long as what it hides; yours gains less.
`--step FN` measures it."""
_MODELLED = """\
Both loops are worked out: loading as measured on this machine,
copies to the device and compute as the {label} has them, on its own clock."""


def _how(report: LoaderReport) -> Iterator[str]:
    bound, label = report.bound, report.setting.label
    facts = report.loader
    ahead = f", prefetch_factor={facts.prefetch_factor}" if facts.workers else ""
    yield (
        f"{report.name}: num_workers={facts.workers}{ahead}, "
        f"pin_memory={facts.pin_memory}; "
        f"{count_text(facts.length, 'batch', 'batches')} in an epoch"
    )
    if bound is not None and bound.gains:
        yield _AT_MOST
        if bound.synthetic_step:
            yield _STAND_IN
    if label and report.rates.load is not None:
        yield _MODELLED.format(label=label)
    for limit in report.guard.limits if report.guard is not None else ():
        needed, left = bytes_text(limit.needed), bytes_text(limit.available)
        yield f"{limit.kind.value}: {needed} needed at most, {left} available"
    for each in report.remarks:
        if not each.hint and not each.serious:
            yield f"{_capital(each.text)}."
    if said := "\n".join(place_lines(report.setting)):
        yield said


def place_lines(setting: records.Setting) -> Iterator[str]:
    """The device, versions, and processors."""
    if setting.device_name is not None:
        number = "" if setting.device is None else f"{setting.kind}:{setting.device}, "
        yield f"device: {number}{setting.device_name}"
    if setting.torch_version is not None:
        yield f"torch {setting.torch_version}"
    if setting.processors is not None:
        yield f"processors that this process may use: {setting.processors}"
