"""Says how a loader feeds its device: the verdict in a line, then one screen.

Of workers only what was measured is said; a number that was not tried is not judged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
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
from gpumagic.report.robust import Verdict
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

    from gpumagic.drawing import Cell, Part


@dataclass(frozen=True)
class LoaderReport(Report):
    """A loader from diagnosis to proof; what was not reached is empty."""

    state: records.State
    device: str  # where batches go, as torch calls it: "cuda:0", "cpu"
    loader: records.LoaderFacts
    label: str = ""  # of a simulated machine; loading takes this machine's time
    reason: records.Remark = records.NO_REMARK  # why it ended so, and what to do
    anatomy: records.Anatomy = records.NO_BATCH
    rates: records.Rates = records.NOT_MEASURED
    workers: records.WorkerSearch = records.NOT_SEARCHED
    bound: records.Bound = records.NO_BOUND
    changed: tuple[str, ...] = ()  # arguments that are others in the new loader
    sameness: records.Sameness | None = None
    end_to_end: records.EndToEnd | None = None
    remarks: tuple[records.Remark, ...] = ()
    out: str = ""  # the name of the new loader, where there is one

    @property
    def headline(self) -> str:
        """The answer in one sentence."""
        said = _HEADLINES.get(self.state, _looked_at)(self)
        first = said.partition(" ")[0]  # a name stays as it is
        return said if first in (self.loader.name, self.out) else _capital(said)

    def drawing(self) -> Any:
        """The verdict and one screen."""
        return Drawing(self.headline, one_screen(_parts(self)), self.label)

    def __repr__(self) -> str:
        return f"LoaderReport({self.headline!r})"


# ---------------------------------------------------------------- the verdict


def _looked_at(report: LoaderReport) -> str:
    if report.bound.parts:
        return _bottleneck(report, report.bound)
    if report.state is records.State.NOTHING:
        name, why = report.loader.name, report.reason.text
        return f"{name} gives batches, and stays as it is: {why}"
    if report.state is records.State.NO_ACCELERATOR:
        return f"{_loads(report)}; there is no accelerator to pin for"
    return f"{_loads(report)}; copies to {report.device} were not measured"


def _bottleneck(report: LoaderReport, bound: records.Bound) -> str:
    """What a step spends most on, and the best that is known to be done about it."""
    exposed = dict(bound.exposed)
    slowest = max(exposed, key=exposed.__getitem__)
    now_s, took_s = sum(exposed.values()), exposed[slowest]
    if slowest is records.Part.LOAD:
        took_s = min(dict(bound.parts)[slowest], now_s)
    what = slowest.value.replace("the device", report.device)
    said = f"{what} is the bottleneck: {time_of_text(took_s, now_s)} a step"
    return f"{said}. {_capital(_remedy_clause(report, bound))}."


def _remedy_clause(report: LoaderReport, bound: records.Bound) -> str:
    """The best that is known; where nothing is, what was tried."""
    copies = bound.gain(records.Remedy.PIN, records.Remedy.PREFETCH)
    ahead = copies.times >= records.WORTH_IT
    copying = {records.Remedy.PIN: "pinning", records.Remedy.PREFETCH: _ahead(bound)}
    if report.workers.changes:
        gain = bound.times(records.Remedy.WORKERS)
        said = workers_clause(report.workers, gain)
        most = bound.times(records.Remedy.EVERYTHING)
        if ahead and most >= records.WORTH_IT * gain:
            said += f"; {_ahead(bound)} besides, up to {times_text(most)} in all"
        return said
    if ahead:
        return f"{copying[copies.remedy]} could give up to {times_text(copies.times)}"
    at_most = max([1.0, *(each.times for each in bound.gains)])
    return f"no remedy that was tried could give more than {times_text(at_most)}"


def _ahead(bound: records.Bound) -> str:
    return "copying ahead" if bound.pins else "pinning and copying ahead"


def workers_clause(search: records.WorkerSearch, kept: float = 0.0) -> str:
    """What other workers give, as measured; in half a sentence.

    Where to start them takes much of an epoch, also how many times as fast it is once
    they are kept: the table of remedies holds that.
    """
    new, count = search.new, search.chosen
    if not search.gains:
        others = [str(each.workers) for each in search.trials]
        others.remove(str(search.now))
        load = "worker loads" if others == ["1"] else "workers load"
        return f"{listed(others)} {load} no faster" if others else ""
    who = {0: "without workers it loads", 1: "1 worker loads"}
    said, as_fast = who.get(count, f"{count} workers load"), times_text(search.times)
    if not new.starts_long:
        return f"{said} {as_fast} as fast"
    kept = kept or search.old.batch_s / new.between.median_s
    most = f"up to {times_text(kept)}"
    if search.times < records.WORTH_IT:
        return f"{said} {most} as fast once they are kept (persistent_workers=True)"
    return (
        f"{said} {as_fast} as fast, {most} once they are kept (persistent_workers=True)"
    )


def _loads(report: LoaderReport) -> str:
    load = report.rates.load
    count = count_text(load.workers, "worker")
    said = f"loading takes {time_text(load.batch_s)} a batch with {count}"
    return "; ".join(filter(None, [said, workers_clause(report.workers)]))


_COMPARED = {
    Verdict.FASTER: "{new} feeds {device} {times} as fast as {name}",
    Verdict.SLOWER: "{new} takes {times} as long a step as {name}",
    Verdict.SAME: "no difference between {new} and {name}, within 1 %",
    Verdict.CANNOT_TELL: "no measurable difference between {new} and {name}",
}


def _compared(report: LoaderReport) -> str:
    """The new loader against the old, with its interval, and with which step."""
    proof, new = report.end_to_end, report.out or "the loop with a prefetcher"
    if not (proof and proof.result.interval):
        return f"{new} is ready; the runs are too few to tell how much faster it is"
    verdict, times = proof.result.verdict, proof.result.ratio
    low, high, _ = proof.result.interval
    if verdict is Verdict.FASTER:
        times, low, high = 1 / times, 1 / high, 1 / low
    said = _COMPARED[verdict].format(
        new=new,
        name=report.loader.name,
        device=report.device,
        times=times_text(times),
    )
    least, most = times_text(low), times_text(high)
    told = verdict in (Verdict.FASTER, Verdict.SLOWER) and not proof.modelled
    if told and least != most:
        said += f" ({least.removesuffix('x')} to {most})"
    if report.rates.step.synthetic:
        said += ", with a stand-in step"
    return said if report.out else f"nothing won: {said}"


def _refused(report: LoaderReport) -> str:
    said = f"{report.loader.name} is wrong" if report.reason.serious else "Refused"
    return f"{said}: {report.reason.text}"


_HEADLINES: dict[records.State, Callable[[LoaderReport], str]] = {
    records.State.FASTER: _compared,
    records.State.SAME: _compared,
    records.State.REFUSED: _refused,
}


def _capital(said: str) -> str:
    return f"{said[:1].upper()}{said[1:]}"


# ----------------------------------------------------------------- the screen


def _parts(report: LoaderReport) -> Iterator[Part]:
    """What to do, one picture, one table; then all that can be asked for."""
    bound, search, anatomy = report.bound, report.workers, report.anatomy
    yield from _notes(report)
    if bound.parts:
        yield _picture(report, bound)
    if bound.gains:
        yield _remedy_table(report, bound)
    elif len(search.trials) > 1:
        yield _worker_table(search)
    if said := " ".join(_sentences(report)):
        yield Paragraph(said)
    if anatomy.leaves:
        leaves = sorted(anatomy.leaves, key=lambda leaf: -leaf.nbytes)
        caption = f"A batch ({bytes_text(anatomy.tensor_bytes)})"
        table = Table.of(caption, _LEAF, leaves[:_MOST_LEAVES], len(leaves))
        yield Details("A batch, tensor by tensor", (table,), "batch")
    if search.trials:
        inside = _worker_table(search), Paragraph("\n".join(_on_workers(search)))
        yield Details("Loading by number of workers", inside, "workers")
    if times := tuple(_time_parts(report)):
        yield Details("How long each part takes", times, "times")
    yield how_measured(*map(Paragraph, _how(report)))


def _notes(report: LoaderReport) -> Iterator[Note]:
    """What decides first: why not, what is wrong, what to type, what to mend."""
    reason, refused = report.reason, report.state is records.State.REFUSED
    if not (refused or report.bound.parts or reason.text in report.headline):
        yield Note("note", reason.text, reason.hint)
    elif reason.hint:  # the title says the rest
        yield Note("problem" if refused else "note", reason.hint)
    yield from notes_of(each for each in report.remarks if each.serious)
    yield from _next(report)
    if report.state not in _NOTHING_TO_PIN:
        yield from _why_notes(report)
    hinted = (each for each in report.remarks if each.hint and not each.serious)
    yield from notes_of(hinted)


_NOTHING_TO_PIN = (records.State.REFUSED, records.State.NO_ACCELERATOR)


def notes_of(remarks: Iterable[records.Remark]) -> Iterator[Note]:
    """A note for each remark, each said once."""
    for each in dict.fromkeys(remarks):
        yield Note("problem" if each.serious else "note", each.text, each.hint)


def _next(report: LoaderReport) -> Iterator[Note]:
    """The loop with the new loader, or the magic that makes one."""
    name, search = report.loader.name, report.workers
    if report.out:
        where = report.device
        text = f"its batches are on {where} already: leave out `.to()` in the loop"
        yield Note("note", text, f"for batch in {report.out}:")
    if not name.isidentifier() or report.state is records.State.REFUSED:
        return
    if search.gains and "num_workers" not in report.changed:
        hint = f"%pin_loader {name} --workers {search.chosen}"
        if report.state is records.State.NO_ACCELERATOR or search.chosen == search.now:
            hint = f"DataLoader(..., {_workers_text(search.new)})"
        text = "left to you: random transforms draw other numbers then"
        yield Note("note", text, hint)
    elif report.state is records.State.DIAGNOSED and report.bound.is_worth_it:
        text = "nothing was changed; this makes such a loader, and proves it"
        yield Note("note", text, f"%pin_loader {name}")


def _sentences(report: LoaderReport) -> Iterator[str]:
    """What was changed and compared, or how the batch lies in memory; who loads."""
    search, found = report.workers, report.sameness
    if report.out:
        if report.changed:
            names = [shortened(each, 30) for each in report.changed]
            yield f"Changed: {listed(names, most=4)}."
        if found and found.same:
            count = count_text(found.batches, "batch", "batches")
            yield f"The first {count} are the same in value, order and class."
        elif found:
            known = "could not be compared" if found.problem else "differ"
            yield f"Batches {known}: {found.problem or found.difference}."
    elif report.anatomy.leaves and report.state not in _NOTHING_TO_PIN:
        memory = [_capital(pageable_sentence(report.anatomy))]
        if not report.loader.pin_memory and memory[0].endswith("pageable"):
            memory.append("pin_memory is off")
        yield f"{'; '.join(memory)}."
    in_title = search.gains or search.stopped is records.Stopped.ASKED
    if report.bound.parts and not in_title and (clause := workers_clause(search)):
        yield f"{_capital(clause)}."


# ---------------------------------------------------------------- the picture

_PIECES = {
    records.Part.LOAD: "host waits",
    records.Part.LINK: "copy",
    records.Part.STEP: "kernel",
}
_NOTHING = 1e-6  # of a step: a rounding error
_LONGEST_NAME = 20


def _picture(report: LoaderReport, bound: records.Bound) -> Stacks:
    """A step before and after: as measured, else as worked out."""
    proof, stand_in = report.end_to_end, "your step"
    exposed, names = [bound.exposed], ["now"]
    caption = "A step, estimated from its parts"
    if proof:
        names = [report.loader.name, report.out or "then"]
        if max(map(len, names)) > _LONGEST_NAME:
            names = ["now", "then"]
        exposed.append(bound.gain(records.Remedy.PREFETCH).exposed)
        medians = map(robust.median, zip(*proof.result.pairs, strict=True))
        compute_s = report.rates.step.samples.median_s
        exposed = [
            _divided(whole_s, compute_s, dict(parts))
            for whole_s, parts in zip(medians, exposed, strict=True)
        ]
        how = "worked out" if proof.modelled else "measured"
        caption = f"A step, median ({how}; how it divides is estimated)"
        if bound.synthetic_step:
            stand_in = "a stand-in for your step"
    else:
        if bound.is_worth_it:
            best = bound.gain(*records.Remedy)
            exposed.append(best.exposed)
            names.append(_remedy_text(report, best, bound))
        if bound.synthetic_step:
            caption = "A step without your compute, estimated from its parts"
    stacks = tuple(map(_stack, names, exposed))
    there = {kind for each in stacks for kind, seconds in each.pieces if seconds}
    legend = zip(_PIECES.values(), ("for batches", "not hidden", stand_in), strict=True)
    return Stacks(caption, stacks, tuple(each for each in legend if each[0] in there))


_Parts = tuple[tuple[records.Part, float], ...]


def _divided(
    whole_s: float, compute_s: float, parts: dict[records.Part, float]
) -> _Parts:
    """Compute, then copying, as far as there is room; waiting is the rest."""
    step_s = min(compute_s, whole_s)
    copy_s = min(parts.get(records.Part.LINK, 0.0), whole_s - step_s)
    sizes = whole_s - step_s - copy_s, copy_s, step_s
    return tuple(zip(_PIECES, sizes, strict=True))


def _stack(label: str, parts: _Parts) -> Stack:
    whole_s = sum(seconds for _, seconds in parts)
    pieces = tuple(
        (_PIECES[part], seconds if seconds > _NOTHING * whole_s else 0.0)
        for part, seconds in parts
    )
    return Stack(label, pieces, time_text(whole_s))


# --------------------------------------------------------------- the remedies


def _remedy_table(report: LoaderReport, bound: records.Bound) -> Table:
    """What each remedy can give at most, the best first."""
    rows = tuple(
        (_remedy_text(report, gain, bound), times_text(gain.times))
        for gain in sorted(bound.gains, key=lambda each: -each.times)
    )
    heads = Column("Remedy"), Column("At most", number=True)
    return Table("What each remedy could give", heads, rows, name="remedies")


def _remedy_text(report: LoaderReport, gain: records.Gain, bound: records.Bound) -> str:
    """A remedy as one would set it; workers are taken to be kept."""
    workers = _workers_text(report.workers.of(gain.workers))
    ahead = "copied ahead" if bound.pins else "pinned, copied ahead"
    return {
        records.Remedy.PIN: "pin_memory=True",
        records.Remedy.PREFETCH: ahead,
        records.Remedy.WORKERS: workers,
        records.Remedy.EVERYTHING: f"{workers}, {ahead}",
    }[gain.remedy]


def _workers_text(load: records.Loading) -> str:
    words = f"num_workers={load.workers}"
    return f"{words}, persistent_workers=True" if load.starts_long else words


# ------------------------------------------------------------------- the batch

_MOST_LEAVES, _LONGEST_PATH = 10, 120
_FIXES = {
    records.WhyPageable.PASSED_THROUGH: (
        "the loader of %pin_loader pins it, or give {} a pin_memory() method"
    ),
    records.WhyPageable.NOT_A_TENSOR: "torch.from_numpy(...) in the collate_fn",
    records.WhyPageable.NOT_DENSE: "send its indices and values as two tensors",
}
_LEAF = (
    Property(Column("Tensor"), lambda leaf: shortened(leaf.path, _LONGEST_PATH)),
    Property(Column("Shape"), lambda leaf: " x ".join(map(str, leaf.shape)) or "-"),
    Property(Column("Type"), lambda leaf: leaf.dtype or "-"),
    Property(Column("Size", number=True), lambda leaf: bytes_text(leaf.nbytes)),
    Property(
        Column("Memory"),
        lambda leaf: leaf.pinned.value + (f": {leaf.why.value}" if leaf.why else ""),
    ),
)


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
    sizes: dict[tuple[records.WhyPageable, str], int] = {}
    for leaf in report.anatomy.leaves:
        made = report.out and leaf.why is records.WhyPageable.PASSED_THROUGH
        if leaf.pinned is records.Pinned.PAGEABLE and leaf.why in _FIXES and not made:
            key = leaf.why, leaf.holder
            sizes[key] = sizes.get(key, 0) + leaf.nbytes
    for (why, holder), nbytes in sizes.items():
        text = f"pageable: {bytes_text(nbytes)}, as {why.value}"
        yield Note("warning", text, _FIXES[why].format(holder))


# --------------------------------------------------------------------- workers


def _worker_table(search: records.WorkerSearch) -> Table:
    """The curve as a table of bars."""
    fastest = max(1 / max(each.batch_s, 1e-9) for each in search.trials)
    words = {search.chosen: " (best)"} if search.gains else {}
    words[search.now] = " (now)"
    rows = []
    for each in search.trials:
        speed = 1 / max(each.batch_s, 1e-9)
        bar = Meter(speed / fastest, three_digits(speed, group=","))
        times = time_text(each.batch_s), time_text(each.start_s)
        rows.append((f"{each.workers}{words.get(each.workers, '')}", bar, *times))
    heads = (
        Column("Workers"),
        Column("Batches a second"),
        Column("A batch", number=True),
        Column("First batch after", number=True),
    )
    return Table("Loading by number of workers (measured)", heads, tuple(rows))


def _on_workers(search: records.WorkerSearch) -> Iterator[str]:
    yield f"Other numbers were not tried: {search.stopped.value}."
    alone = search.of(0)
    if alone.cpu_s and math.isfinite(search.busy):
        yield (
            f"A batch takes {seconds_text(alone.cpu_s)} of a processor, and waits "
            f"{seconds_text(alone.waited_s)} for something else: "
            f"{count_text(int(search.busy), 'worker')} could keep the processors busy."
        )


# ----------------------------------------------------------------------- times


def _time_parts(report: LoaderReport) -> Iterator[Part]:
    """Each part of a step on its own, with its range."""
    bound, rows = report.bound, tuple(_time_rows(report.rates))
    if rows:
        how = "as the model has it" if report.label else "measured"
        yield Table(f"A batch, part by part ({how})", _TIME_HEADS, rows)
    if bound.parts:
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
    nbytes = rates.nbytes
    if rates.load.between.seconds:
        count = count_text(rates.load.workers, "worker")
        yield _time_row(f"loading, {count}, on this machine", rates.load.between)
    if rates.pin_copy.seconds:
        yield _time_row("copy into pinned memory", rates.pin_copy, nbytes)
    for mode in rates.copies:
        memory = "pinned" if mode.pinned else "pageable"
        word = "blocking" if mode.blocking else "non_blocking"
        yield _time_row(f"copy to the device, {memory}, {word}", mode.device, nbytes)
        if not mode.blocking:
            yield _time_row("the host, held by that copy", mode.host)
    if rates.step.samples.seconds:
        stands = " for yours" if rates.step.synthetic else ""
        yield _time_row(f"compute, {rates.step.name}{stands}", rates.step.samples)


def _time_row(what: str, samples: records.Samples, nbytes: int = 0) -> tuple[Cell, ...]:
    seconds = samples.median_s, min(samples.seconds), max(samples.seconds)
    rate = rate_text(nbytes / samples.median_s, "B/s", "G") if nbytes else "-"
    return (what, *map(time_text, seconds), rate)


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
copies to the device and compute as the {} has them, on its own clock."""


def _how(report: LoaderReport) -> Iterator[str]:
    bound, proof, facts = report.bound, report.end_to_end, report.loader
    ahead = f", prefetch_factor={facts.prefetch_factor}" if facts.workers else ""
    yield (
        f"{facts.name}: num_workers={facts.workers}{ahead}, "
        f"pin_memory={facts.pin_memory}; "
        f"{count_text(facts.length, 'batch', 'batches')} in an epoch"
    )
    if bound.gains:
        yield _AT_MOST
        if bound.synthetic_step:
            yield _STAND_IN
    if report.label and report.rates.load.between.seconds:
        yield _MODELLED.format(report.label)
    elif proof:
        pairs = count_text(len(proof.result.pairs), "pair")
        yield f"Both loops ran in turn: {pairs} of {proof.batches} steps each."
    for each in report.remarks:
        if not each.hint and not each.serious:
            yield f"{_capital(each.text)}."
