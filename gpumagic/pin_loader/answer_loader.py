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
from gpumagic.pin_loader.records import (
    WORTH_IT,
    LimitKind,
    Pinned,
    Rates,
    Remedy,
    Severity,
    State,
    Stopped,
    WhyPageable,
)
from gpumagic.pin_loader.records import Part as StepPart
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
    from gpumagic.pin_loader.records import (
        Anatomy,
        Bound,
        Change,
        CopyMode,
        EndToEnd,
        Gain,
        Guard,
        Leaf,
        LoaderFacts,
        Loading,
        Remark,
        Sameness,
        Samples,
        Setting,
        WorkerSearch,
    )

_MOST_TIMES = 100
_MUCH_STARTING = 0.25  # of the time of a batch


@dataclass(frozen=True)
class LoaderReport(Report):
    """A loader from diagnosis to proof; what was not reached is None."""

    state: State
    setting: Setting
    loader: LoaderFacts
    reason: Remark | None = None  # why it ended so, and what to do
    anatomy: Anatomy | None = None
    guard: Guard | None = None
    rates: Rates = field(default_factory=Rates)
    workers: WorkerSearch | None = None
    bound: Bound | None = None
    changes: tuple[Change, ...] = ()  # of arguments, in the new loader
    sameness: Sameness | None = None
    end_to_end: EndToEnd | None = None
    remarks: tuple[Remark, ...] = ()
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
    if report.state is State.NOTHING:
        reason = "" if report.reason is None else f": {report.reason.text}"
        return f"{report.name} gives batches, and stays as it is{reason}"
    where = device_text(report.setting)
    return f"{_loads(report)}; copies to {where} were not measured"


def _bottleneck(report: LoaderReport, bound: Bound) -> str:
    """What a step spends most on, and the best that is known to be done about it."""
    exposed = dict(bound.exposed)
    slowest = max(exposed, key=exposed.__getitem__)
    now_s, took_s = sum(exposed.values()), exposed[slowest]
    if slowest is StepPart.LOAD:
        took_s = min(dict(bound.parts).get(slowest, took_s), now_s)
    what = slowest.value.replace("the device", device_text(report.setting))
    said = f"{what} is the bottleneck: {time_of_text(took_s, now_s)} a step"
    return f"{said}. {_capital(_remedy_clause(report, bound))}."


def _remedy_clause(report: LoaderReport, bound: Bound) -> str:
    """The best that is known; where nothing is, what was tried."""
    copies = bound.gain(Remedy.PIN, Remedy.PREFETCH)
    ahead = copies is not None and copies.times >= WORTH_IT
    copying = "copying ahead" if _pins(bound) else "pinning and copying ahead"
    gain = bound.gain(Remedy.WORKERS)
    if gain is not None and report.workers is not None:
        said = workers_clause(report.workers)
        most = bound.times(Remedy.EVERYTHING)
        if ahead and most >= WORTH_IT * gain.times:
            return f"{said}; {copying} besides, up to {times_text(most)} in all"
        return said
    if ahead and copies is not None:
        what = "pinning" if copies.remedy is Remedy.PIN else copying
        return f"{what} could give up to {times_text(copies.times)}"
    at_most = max([1.0, *(each.times for each in bound.gains)])
    return f"no remedy that was tried could give more than {times_text(at_most)}"


def _pins(bound: Bound) -> bool:
    """Whether the loader pins already, so that pinning is no remedy."""
    return all(each.remedy is not Remedy.PIN for each in bound.gains)


def workers_clause(search: WorkerSearch) -> str:
    """What other workers give, as measured; in half a sentence."""
    if not workers_gain(search):
        tried = tried_text(search)
        return f"{tried} load no faster" if tried else ""
    times = times_text(search.times)
    if not search.chosen:
        return f"without workers it loads {times} as fast"
    verb = "loads" if search.chosen == 1 else "load"
    return f"{count_text(search.chosen, 'worker')} {verb} {times} as fast"


def workers_gain(search: WorkerSearch | None) -> bool:
    """Whether other workers are faster beyond doubt."""
    if search is None:
        return False
    old, new = search.of(search.now), search.of(search.chosen)
    if old is None or new is None or old is new:
        return False
    return new.quartiles_s[1] * WORTH_IT <= old.quartiles_s[0]


def tried_text(search: WorkerSearch) -> str:
    """Which other numbers were tried: "0, 2 and 4 workers"."""
    others = [f"{each.workers}" for each in search.trials if each.workers != search.now]
    plural = "worker" if others == ["1"] else "workers"
    return f"{listed(others)} {plural}" if others else ""


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
        pairs = count_text(len(result.pairs), "pair")
        return (
            f"{new} is ready; {pairs} of runs are too few to tell how much faster it is"
        )
    ends = "" if proof.modelled else _between(interval, result.verdict)
    match result.verdict:
        case Verdict.FASTER:
            times = times_text(inverse(result.ratio))
            where = device_text(report.setting)
            said = f"{new} feeds {where} {times} as fast as {report.name}{ends}"
        case Verdict.SLOWER:
            times = times_text(result.ratio)
            said = f"{new} takes {times} as long a step as {report.name}{ends}"
        case Verdict.SAME:
            said = f"no difference between {new} and {report.name}, within 1 %"
        case Verdict.CANNOT_TELL:
            said = f"no measurable difference between {new} and {report.name}"
    step = report.rates.step
    said = f"{said}, with a stand-in step" if step and step.synthetic else said
    return said if report.out else f"nothing won: {said}"


def _between(interval: robust.Interval, verdict: Verdict) -> str:
    ends: list[float] = [interval.low, interval.high]
    if verdict is Verdict.FASTER:
        ends = [1 / end for end in reversed(ends)]
    low, high = map(times_text, ends)
    return "" if low == high else f" ({low.removesuffix('x')} to {high})"


def _refused(report: LoaderReport) -> str:
    guard, reason, found = report.guard, report.reason, report.sameness
    if guard is not None and guard.refusing is not None:
        limit = guard.refusing
        what = "workers would need" if limit.kind is LimitKind.SHM else "it would take"
        left = bytes_text(limit.available)
        needed = f"{what} {bytes_text(limit.needed)} of the {limit.kind.value}"
        return f"Refused: {needed}, and {left} are left"
    if found is not None and found.difference:
        return f"Refused: rebuilt, {report.name} gave other batches: {found.difference}"
    text = "" if reason is None else f": {reason.text}"
    if reason is not None and reason.serious:
        return f"{report.name} is wrong{text}"
    return f"Refused: {report.name} stays as it is{text}"


def _without_accelerator(report: LoaderReport) -> str:
    search, out = report.workers, report.out
    said = _loads(report)
    if out is not None and report.end_to_end is not None and search is not None:
        times = times_text(inverse(report.end_to_end.result.ratio))
        workers = count_text(search.chosen, "worker")
        said = f"{out} loads {times} as fast as {report.name}, with {workers}"
    return f"{said}; there is no accelerator to pin for"


_HEADLINES: dict[State, Callable[[LoaderReport], str]] = {
    State.NOTHING: _looked_at,
    State.DIAGNOSED: _looked_at,
    State.FASTER: _compared,
    State.SAME: _compared,
    State.REFUSED: _refused,
    State.NO_ACCELERATOR: _without_accelerator,
}


def device_text(setting: Setting) -> str:
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
    if report.anatomy is not None:
        inside = tuple(_batch_parts(report.anatomy))
        yield Details("A batch, tensor by tensor", inside, "batch")
    if report.workers is not None:
        inside = _worker_table(report.workers), Paragraph(_on_workers(report.workers))
        yield Details("Loading by number of workers", inside, "workers")
    if proof := tuple(_proof_parts(report)):
        yield Details("Whether it is the same, and faster", proof, "proof")
    if times := tuple(_time_parts(report)):
        yield Details("How long each part takes", times, "times")
    yield how_measured(*map(Paragraph, _how(report)))


def _notes(report: LoaderReport) -> Iterator[Note]:
    """What decides first: why not, what is wrong, what to type, what to mend."""
    remarks, search = list(_remarks(report)), report.workers
    refused = report.state is State.REFUSED
    yield from _reason(report)
    yield from notes_of(each for each in remarks if each.serious)
    yield from _next(report)
    if report.guard is not None and not refused:
        for limit in report.guard.limits:
            if limit.severity in (Severity.WARN, Severity.REFUSE):
                left = bytes_text(limit.available)
                said = f"{bytes_text(limit.needed)} needed, {left} available"
                yield Note("warning", f"{limit.kind.value}: {said}", limit.hint)
    if not refused and report.state is not State.NO_ACCELERATOR:
        yield from _why_notes(report)
    if search is not None and search.problem is not None:
        yield Note("note", search.problem, search.hint)
    yield from notes_of(each for each in remarks if each.hint and not each.serious)
    now = None if search is None else search.of(search.now)
    best = None if search is None else search.of(search.chosen)
    if now and best and best.share_s > _MUCH_STARTING * best.batch_s:
        starting = f"to start {count_text(best.workers, 'worker')} takes "
        kept = times_text(now.batch_s / best.between.median_s)
        said = f"{starting}{time_text(best.start_s)} of each epoch"
        hint = f"persistent_workers=True keeps them, and they load {kept} as fast"
        yield Note("note", said, hint)


def _remarks(report: LoaderReport) -> Iterator[Remark]:
    """What any part of the report remarks, each once."""
    holders = (report, report.anatomy, report.rates)
    found = (each for holder in holders if holder for each in holder.remarks)
    yield from dict.fromkeys(found)


def notes_of(remarks: Iterable[Remark]) -> Iterator[Note]:
    """A note for each remark, each said once."""
    for each in dict.fromkeys(remarks):
        kind: NoteKind = "problem" if each.serious else "note"
        yield Note(kind, each.text, each.hint)


def _reason(report: LoaderReport) -> Iterator[Note]:
    """Why it ended so; only what to do about it where the title says the reason."""
    reason = report.reason
    if reason is None:
        return
    refused = report.state is State.REFUSED
    kind: NoteKind = "problem" if refused else "note"
    if refused or report.bound is not None or reason.text in report.headline:
        if reason.hint:
            yield Note(kind, reason.hint)
    else:
        yield Note(kind, reason.text, reason.hint)


def _next(report: LoaderReport) -> Iterator[Note]:
    """The loop with the new loader, or the magic that makes one."""
    name, search = report.loader.name, report.workers
    if report.out is not None:
        where = device_text(report.setting)
        said = f"its batches are on {where} already: leave out `.to()` in the loop"
        if report.state is State.NO_ACCELERATOR:
            said = f"{report.out} takes the place of the old loader"
        yield Note("note", said, f"for batch in {report.out}:")
    if not name or report.state is State.REFUSED:
        return
    if search is not None and workers_gain(search) and not _has_other_workers(report):
        said = f"{workers_clause(search)} (measured)"
        yield Note("note", said, f"%pin_loader {name} --workers {search.chosen}")
    elif report.state is State.DIAGNOSED and report.bound and report.bound.best:
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
    if search is not None and report.bound is not None and not workers_gain(search):
        said = workers_clause(search) if search.stopped is not Stopped.ASKED else ""
        workers = f"{_capital(said)}." if said else ""  # else the title has them
    if report.out is not None:
        return f"{_proof_sentence(report)} {workers}".strip()
    quiet = report.state in (State.NO_ACCELERATOR, State.REFUSED)
    if anatomy is None or not anatomy.leaves or quiet:
        return workers
    memory = pageable_sentence(anatomy)
    is_off = report.loader.pin_memory is False and memory.endswith("pageable")
    flag = "; pin_memory is off" if is_off else ""
    return f"{_capital(memory)}{flag}. {workers}".strip()


# ---------------------------------------------------------------- the picture

_WAITS, _COPY, _KERNEL = "host waits", "copy", "kernel"
_KINDS = {StepPart.LINK: _COPY, StepPart.STEP: _KERNEL}
_NOTHING = 1e-6  # of a step: a rounding error


def _picture(report: LoaderReport) -> Iterator[Part]:
    """A step before and after, in one picture: as measured, else as worked out."""
    proof, bound = report.end_to_end, report.bound
    if bound is None:
        return
    after = bound.gain(Remedy.PREFETCH) if proof is not None else bound.best
    if proof is not None:
        medians = map(robust.median, zip(*proof.result.pairs, strict=True))
        names = [report.name, report.out or "then"]
        if max(map(len, names)) > 20:
            names = ["now", "then"]
        step = report.rates.step
        compute_s = 0.0 if step is None else step.samples.median_s
        exposed = dict(bound.exposed), dict(after.exposed) if after else {}
        stacks = [
            _measured(name, whole_s, compute_s, each.get(StepPart.LINK, 0.0))
            for name, whole_s, each in zip(names, medians, exposed, strict=True)
        ]
        how = "worked out" if proof.modelled else "measured"
        caption = f"A step, median ({how}; how it divides is estimated)"
    elif any(seconds for _, seconds in bound.exposed):
        stacks = [_stack("now", bound.exposed)]
        if after is not None and after.exposed:
            stacks.append(_stack(_remedy_text(after, bound), after.exposed))
        own = " without your compute" if bound.synthetic_step else ""
        caption = f"A step{own}, estimated from its parts"
    else:
        return
    stand_in = "a stand-in for your step" if bound.synthetic_step and proof else ""
    said = {_WAITS: "for batches", _COPY: "not hidden", _KERNEL: stand_in}
    yield Stacks(caption, tuple(stacks), tuple(_legend(stacks, said)))


def _measured(name: str, whole_s: float, compute_s: float, copy_s: float) -> Stack:
    """Compute first, then copying, as far as there is room; waiting is the rest."""
    compute_s = min(compute_s, whole_s)
    copy_s = min(copy_s, whole_s - compute_s)
    waits_s = whole_s - compute_s - copy_s
    parts = (
        (StepPart.LOAD, waits_s),
        (StepPart.LINK, copy_s),
        (StepPart.STEP, compute_s),
    )
    return _stack(name, parts)


def _stack(label: str, parts: tuple[tuple[StepPart, float], ...]) -> Stack:
    whole_s = sum(seconds for _, seconds in parts)
    pieces = tuple(
        (_KINDS.get(part, _WAITS), seconds if seconds > _NOTHING * whole_s else 0.0)
        for part, seconds in parts
    )
    return Stack(label, pieces, time_text(whole_s))


def _legend(stacks: list[Stack], said: dict[str, str]) -> Iterator[tuple[str, str]]:
    """What each piece comes to."""
    for kind, what in said.items():
        sizes = [
            sum(size for its, size in each.pieces if its == kind) for each in stacks
        ]
        told = zip(sizes, ("now", "then"), strict=False)
        text = ", ".join(f"{time_text(size)} {when}" for size, when in told)
        if any(sizes):
            yield kind, f"{what}: {text}" if what else text


# --------------------------------------------------------------- the remedies


def _remedy_table(report: LoaderReport, bound: Bound) -> Table:
    """What each remedy can give at most, the best first; what was made, measured."""
    proof = report.end_to_end
    changed = _has_other_workers(report)
    made = Remedy.EVERYTHING if changed else Remedy.PREFETCH
    told = proof is not None and proof.result.verdict is not Verdict.CANNOT_TELL
    heads = [Column("Remedy"), Column("At most", number=True)]
    heads += [Column("Measured", number=True)] * told
    rows = []
    for gain in sorted(bound.gains, key=lambda each: -each.times):
        most = gain.times > _MOST_TIMES
        times = f"over {_MOST_TIMES}x" if most else times_text(gain.times)
        row: list[Cell] = [_remedy_text(gain, bound), times]
        if told and proof is not None:
            ratio = proof.result.ratio
            row.append(times_text(inverse(ratio)) if gain.remedy is made else "-")
        rows.append(tuple(row))
    caption = "What each remedy could give"
    return Table(caption, tuple(heads), tuple(rows), name="remedies")


def _remedy_text(gain: Gain, bound: Bound) -> str:
    """A remedy as one would set it."""
    workers = f"num_workers={gain.workers}"
    ahead = "copied ahead" if _pins(bound) else "pinned, copied ahead"
    return {
        Remedy.PIN: "pin_memory=True",
        Remedy.PREFETCH: ahead,
        Remedy.WORKERS: workers,
        Remedy.EVERYTHING: f"{workers}, {ahead}",
    }[gain.remedy]


# ------------------------------------------------------------------- the batch

_MOST_LEAVES, _LONGEST_PATH = 10, 120
_FIXES = {
    WhyPageable.PASSED_THROUGH: (
        "the loader of %pin_loader pins it, or give {holder} a pin_memory() method"
    ),
    WhyPageable.NOT_A_TENSOR: "torch.from_numpy(...) in the collate_fn",
    WhyPageable.NOT_DENSE: "send its indices and values as tensors of their own",
}


def pageable_sentence(anatomy: Anatomy) -> str:
    """How many tensors and bytes are pageable, in one sentence without a full stop."""
    count, leaves = len(anatomy.leaves), anatomy.leaves
    if not leaves:
        return "a batch holds no tensors"
    kinds = {leaf.pinned for leaf in leaves}
    size = bytes_text(anatomy.tensor_bytes)
    if len(kinds) == 1:
        several = f"all {count} tensors"
        which = {1: "the one tensor", 2: "both tensors"}.get(count, several)
        verb = "is" if count == 1 else "are"
        return f"{which} of a batch ({size}) {verb} {leaves[0].pinned.value}"
    pageable = bytes_text(anatomy.bytes_that_are(Pinned.PAGEABLE))
    least = "at least " if Pinned.UNKNOWN in kinds else ""
    return f"{least}{pageable} of {size} of a batch are pageable"


def _reasons(anatomy: Anatomy) -> list[tuple[WhyPageable, str, list[Leaf]]]:
    """Pageable tensors by why they are, in half a sentence, the most bytes first."""
    by_why: dict[tuple[WhyPageable, str], list[Leaf]] = {}
    for leaf in anatomy.leaves:
        if leaf.pinned is Pinned.PAGEABLE:
            why = leaf.why or WhyPageable.UNKNOWN
            by_why.setdefault((why, leaf.holder or "its class"), []).append(leaf)
    found = [(why, holder, its) for (why, holder), its in by_why.items()]
    return sorted(found, key=lambda each: -sum(leaf.nbytes for leaf in each[2]))


def _why_notes(report: LoaderReport) -> Iterator[Note]:
    """Reasons why tensors are pageable that no remedy of the table mends."""
    for why, holder, leaves in _reasons(report.anatomy) if report.anatomy else ():
        made = report.out is not None and why is WhyPageable.PASSED_THROUGH
        if why in _FIXES and not made:
            size = bytes_text(sum(leaf.nbytes for leaf in leaves))
            said = f"pageable: {size}, as {why.value}"
            yield Note("warning", said, _FIXES[why].format(holder=holder))


def _batch_parts(anatomy: Anatomy) -> Iterator[Part]:
    """Why tensors are pageable, then all of them."""
    lines = [f"{_capital(pageable_sentence(anatomy))}."]
    for why, _, its in _reasons(anatomy):
        paths = listed([shortened(leaf.path, _LONGEST_PATH) for leaf in its], most=3)
        size = bytes_text(sum(leaf.nbytes for leaf in its))
        lines.append(f"{size}: {why.value} ({paths}).")
    if anatomy.others:
        values = count_text(anatomy.others, "other value")
        lines.append(f"{values} of a batch, no tensor or array: on the host.")
    if anatomy.locked_bytes:
        locked = bytes_text(anatomy.locked_bytes)
        lines.append(f"Pinning it locks {locked} (estimated: powers of two).")
    yield Paragraph("\n".join(lines))
    if anatomy.leaves:
        leaves = sorted(anatomy.leaves, key=lambda leaf: -leaf.nbytes)
        caption = f"A batch ({anatomy.class_name}, {bytes_text(anatomy.tensor_bytes)})"
        yield Table.of(caption, _LEAF, leaves[:_MOST_LEAVES], len(leaves))


def _memory(leaf: Leaf) -> str:
    said = leaf.pinned.value
    if leaf.contiguous is False:
        said = f"{said}, not contiguous"
    if leaf.same_as is not None:
        said = f"{said}, the same memory as {shortened(leaf.same_as, _LONGEST_PATH)}"
    return said


_LEAF = (
    Property(Column("Tensor"), lambda leaf: shortened(leaf.path, _LONGEST_PATH)),
    Property(Column("Class"), lambda leaf: leaf.what),
    Property(Column("Shape"), lambda leaf: " x ".join(map(str, leaf.shape)) or "-"),
    Property(Column("Type"), lambda leaf: leaf.dtype or "-"),
    Property(Column("Size", number=True), lambda leaf: bytes_text(leaf.nbytes)),
    Property(Column("Memory"), _memory),
)

# --------------------------------------------------------------------- workers


def _worker_table(search: WorkerSearch) -> Table:
    """The curve as a table of bars."""
    fastest = max(_speed(each) for each in search.trials)
    return Table(
        "Loading by number of workers (measured)",
        (
            Column("Workers"),
            Column("Batches a second"),
            Column("A batch", number=True),
            Column("First batch after", number=True),
        ),
        tuple(
            (
                _worker_name(each, search),
                Meter(_speed(each) / fastest, three_digits(_speed(each), group=",")),
                time_text(each.batch_s),
                time_text(each.start_s),
            )
            for each in search.trials
        ),
    )


def _worker_name(trial: Loading, search: WorkerSearch) -> str:
    if trial.workers == search.now:
        return f"{trial.workers} (now)"
    best = trial.workers == search.chosen and workers_gain(search)
    return f"{trial.workers} (best)" if best else f"{trial.workers}"


def _speed(trial: Loading) -> float:
    return 1 / max(trial.batch_s, 1e-9)


def _on_workers(search: WorkerSearch) -> str:
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


def _proof_parts(report: LoaderReport) -> Iterator[Part]:
    """What was changed, what was compared, and both loops."""
    found, proof = report.sameness, report.end_to_end
    if report.changes:
        rows = tuple(
            (each.argument, each.before, each.after) for each in report.changes
        )
        heads = Column("Argument"), Column("Before"), Column("After")
        yield Table("Changed arguments", heads, rows)
    lines = []
    if found is not None:
        same = {True: "the same", False: f"not the same: {found.difference}"}
        told = "could not be told" if found.same is None else same[found.same]
        problem = f"; {found.problem}" if found.problem else ""
        lines.append(f"Batches ({found.batches} compared): {told}{problem}")
    if proof is not None:
        lines += _loops_lines(proof)
    if lines:
        yield Paragraph("\n".join(lines))


def _loops_lines(proof: EndToEnd) -> Iterator[str]:
    result = proof.result
    yield f"Before: {proof.base}"
    yield f"After: {proof.newer}"
    sure = " (too few pairs to say how sure that is)"
    if proof.modelled:
        sure = ", in the model"
    elif result.interval is not None:
        low, high = map(three_digits, result.interval[:2])
        sure = f" ({low} to {high} with 95 % confidence)" if low != high else ""
    ratio = three_digits(result.ratio)
    yield f"After, a step takes {ratio} of what it took before{sure}."
    steps = count_text(proof.batches, "step")
    yield f"{count_text(len(result.pairs), 'pair')} of {steps} each, in turn."


# ----------------------------------------------------------------------- times


def _time_parts(report: LoaderReport) -> Iterator[Part]:
    """Each part on its own with its range, and the ways to copy a batch."""
    rates, bound = report.rates, report.bound
    lines = []
    for what, each in _samples(rates):
        shortest, longest = map(time_text, (min(each.seconds), max(each.seconds)))
        count = count_text(len(each.seconds), "sample")
        said = f"{what}: {time_text(each.median_s)}"
        lines.append(f"{said}, from {shortest} to {longest} ({count})")
    if bound is not None:
        binding, least = bound.binding.value, time_text(bound.best_s)
        lines.append(f"a step as it is: {time_text(bound.now_s)}, added up from these")
        lines.append(f"no step is shorter than {binding}, {least}, as loading is now")
    if lines:
        yield Paragraph("\n".join(lines))
    if rates.copies:
        how = "as the model has it" if report.setting.label else "measured"
        where, size = device_text(report.setting), bytes_text(rates.nbytes)
        rows = [_copy_row(each, rates) for each in rates.copies]
        caption = f"Copying a batch of {size} to {where} ({how})"
        yield Table(caption, _COPY_HEADS, tuple(rows))


_COPY_HEADS = (
    Column("From"),
    Column("Call"),
    Column("Host held", number=True),
    Column("Done after", number=True),
    Column("Rate", number=True),
)


def _samples(rates: Rates) -> Iterator[tuple[str, Samples]]:
    if rates.load is not None:
        with_ = count_text(rates.load.workers, "worker")
        yield f"loading with {with_}, measured on this machine", rates.load.between
    if rates.pin_copy is not None:
        yield "copy into pinned memory, by one thread", rates.pin_copy
    if rates.step is not None:
        stands = ", a stand-in for yours" if rates.step.synthetic else ""
        yield f"compute in {rates.step.name}{stands}", rates.step.samples


def _copy_row(mode: CopyMode, rates: Rates) -> tuple[Cell, ...]:
    device_s = None if mode.device is None else mode.device.median_s
    rate = rates.nbytes / device_s if rates.nbytes and device_s else None
    return (
        "pinned" if mode.pinned else "pageable",
        "blocking" if mode.blocking else "non_blocking",
        time_text(mode.host.median_s),
        time_text(device_s),
        rate_text(rate, "B/s", "G"),
    )


# ------------------------------------------------------------------------- how

_AT_MOST = """\
At most: a step cannot be shorter than its slowest part, by what was measured.
Of workers only those are judged that were tried."""
_STAND_IN = """\
Your step is not known, so none of its time is shown here.
A remedy helps most with one step, as long as what it hides; yours gains less.
`--step FN` measures it."""
_MODELLED = """\
Waits for data are worked out from how fast the loader is on this machine.
Copies to the device and compute are those of the {label}, which has its own clock."""


def _how(report: LoaderReport) -> Iterator[str]:
    bound, label = report.bound, report.setting.label
    yield "\n".join(_loader_lines(report.loader))
    if bound is not None and bound.gains:
        yield _AT_MOST
        if bound.synthetic_step:
            yield _STAND_IN
    if label and report.rates.load is not None:
        yield _MODELLED.format(label=label)
    for limit in report.guard.limits if report.guard is not None else ():
        needed, left = bytes_text(limit.needed), bytes_text(limit.available)
        yield f"{limit.kind.value}: {needed} needed at most, {left} available"
    for each in _remarks(report):
        if not each.hint and not each.serious:
            yield f"{_capital(each.text)}."
    if said := "\n".join(place_lines(report.setting)):
        yield said


def place_lines(setting: Setting) -> Iterator[str]:
    """The device, versions, and processors."""
    if setting.device_name is not None:
        number = "" if setting.device is None else f"{setting.kind}:{setting.device}, "
        yield f"device: {number}{setting.device_name}"
    if setting.torch_version is not None:
        yield f"torch {setting.torch_version}"
    if setting.processors is not None:
        yield f"processors that this process may use: {setting.processors}"


_SETTINGS = (
    "dataset",
    "batch_size",
    "sampler",
    "workers",
    "prefetch_factor",
    "pin_memory",
    "persistent_workers",
)


def _loader_lines(facts: LoaderFacts) -> Iterator[str]:
    """For whoever wants to check that it is the right loader."""
    values = {name: getattr(facts, name) for name in _SETTINGS}
    set_to = [f"{name}={value}" for name, value in values.items() if value is not None]
    yield f"{facts.class_name}({', '.join(set_to)})"
    yield f"{count_text(facts.length, 'batch', 'batches')} in an epoch"
