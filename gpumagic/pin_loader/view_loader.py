"""Draws what was found of a loader: its batches, its workers, its proof, its needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpumagic.drawing import (
    Badge,
    Column,
    Details,
    Grid,
    Meter,
    Note,
    Paragraph,
    Property,
    Table,
    Tone,
)
from gpumagic.pin_loader.report import (
    LimitKind,
    Pinned,
    Severity,
    State,
    Stopped,
    Way,
    WhyPageable,
)
from gpumagic.report.units import (
    bytes_text,
    count_text,
    listed,
    share_text,
    shortened,
    three_digits,
    time_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpumagic.drawing import Cell, NoteKind, Part
    from gpumagic.pin_loader.report import (
        Anatomy,
        Damaged,
        Guard,
        Leaf,
        Limit,
        Link,
        LoaderFacts,
        LoaderReport,
        Rebuilding,
        Remark,
        ReuseCheck,
        Sameness,
        Samples,
        Setting,
        WorkerSearch,
        WorkerTrial,
    )

MOST_LEAVES = 10
_NOT_CONTIGUOUS = (
    "A tensor that is not contiguous is copied through pageable memory, pinned or not: "
    "call `.contiguous()` in the collate_fn."
)
_LONGEST_PATH = 120
_MOST_REASONS = 4
_ANEW = (Way.REBUILT, Way.FLAG_SET)
_ADVISED = (
    State.DIAGNOSED,
    State.FIXED,
    State.WRAPPED_ONLY,
    State.REFUSED_DIFFERENT,
)
FIXES = {
    WhyPageable.FLAG_OFF: "DataLoader(..., pin_memory=True)",
    WhyPageable.NO_ACCELERATOR: "",
    WhyPageable.PASSED_THROUGH: (
        "the adapter of %pin_loader pins it, or give {holder} a pin_memory() method"
    ),
    WhyPageable.OWN_METHOD: "let pin_memory() of {holder} pin it too",
    WhyPageable.NOT_A_TENSOR: "torch.from_numpy(...) in the collate_fn",
    WhyPageable.NOT_DENSE: "send its indices and values as tensors of their own",
    WhyPageable.FLAG_TOO_LATE: "a new loader: workers read the flag when they start",
    WhyPageable.UNKNOWN: "",
}
_MOST_NAMES = 6
_LONGEST_NAME = 30
_MOST_DAMAGED = 3
_RANDOM = (
    "its values are random, and differ in two runs of the old loader as well: only "
    "what does not depend on chance was compared"
)
TONES: dict[Severity, Tone] = {
    Severity.FINE: "ok",
    Severity.WARN: "warning",
    Severity.REFUSE: "problem",
    Severity.INFORM: "note",
    Severity.UNKNOWN: "unknown",
}
_LOUD = (Severity.WARN, Severity.REFUSE)


def loader_text(facts: LoaderFacts) -> str:
    """What the loader is called."""
    return facts.name or "the loader"


def new_text(report: LoaderReport) -> str:
    """What the new loader is called."""
    return report.out or "the new loader"


def device_text(setting: Setting) -> str:
    """The device that batches go to."""
    if setting.device is None:
        return "the device"
    return f"{setting.kind}:{setting.device}"


def notes_of(remarks: Iterable[Remark], link: Link | None = None) -> Iterator[Note]:
    """A note for each remark, each said once.

    Args:
        remarks: What is to be said.

        link: What is said of this one is the same for every loader.
    """
    of_the_link = () if link is None else link.remarks
    for each in dict.fromkeys(remarks):
        kind: NoteKind = "problem" if each.serious else "note"
        word = "the link" if each in of_the_link else ""
        yield Note(kind, each.text, each.hint, word)


def median_of(samples: Samples | None) -> float | None:
    """The middle of what was measured; None where nothing was."""
    return samples.median_s if samples is not None and samples.seconds else None


def batch_parts(report: LoaderReport) -> Iterator[Part]:
    """Why tensors are pageable, then all of them."""
    anatomy = report.anatomy
    if anatomy is None:
        return
    if not anatomy.leaves:
        inside: tuple[Part, ...] = (
            Paragraph(f"A batch ({anatomy.class_name}) holds no tensors."),
        )
    else:
        below = tuple(map(Paragraph, filter(None, ["\n".join(_below(anatomy))])))
        inside = (*_whys(report, anatomy), _leaf_table(anatomy), *below)
    yield Details("A batch, tensor by tensor", inside, "batch")


def _leaf_table(anatomy: Anatomy) -> Table:
    many = len(anatomy.leaves) > MOST_LEAVES
    leaves: Sequence[Leaf] = anatomy.leaves
    if many:
        leaves = sorted(leaves, key=lambda leaf: leaf.nbytes, reverse=True)
    size = bytes_text(anatomy.tensor_bytes)
    largest = f", the {MOST_LEAVES} largest of its tensors" if many else ""
    return Table.of(
        f"A batch ({anatomy.class_name}, {least_text(anatomy)}{size}){largest}",
        _LEAF,
        leaves[:MOST_LEAVES],
        len(anatomy.leaves) + anatomy.left_out,
    )


def _memory(leaf: Leaf) -> str:
    said = leaf.pinned.value
    if leaf.contiguous is False:
        said = f"{said}, not contiguous"
    if leaf.same_as is not None:
        said = f"{said}, the same memory as {short_path(leaf.same_as)}"
    return said


def _below(anatomy: Anatomy) -> Iterator[str]:
    """What the table does not tell."""
    if any(leaf.contiguous is False for leaf in anatomy.leaves):
        yield _NOT_CONTIGUOUS
    if anatomy.left_out:
        yield f"{anatomy.left_out:,} more tensors are not listed; totals have them."
        yield "Whether those are pinned was not looked at."
    if anatomy.others:
        values = count_text(anatomy.others, "other value")
        verb = "stays" if anatomy.others == 1 else "stay"
        yield f"{values} of a batch, no tensor or array, {verb} on the host."
    if anatomy.locked_bytes:
        locked = bytes_text(anatomy.locked_bytes)
        yield f"Pinning it locks {locked} (estimated: rounded up to powers of two)."


def type_notes(anatomy: Anatomy | None) -> Iterator[Note]:
    """Containers that come out of the pinner as something else."""
    if anatomy is not None and anatomy.type_changes:
        told = [f"{at} from {old} to {new}" for at, old, new in anatomy.type_changes]
        yield Note("warning", f"the pinner changes classes: {listed(told, most=3)}")


def pageable_sentence(anatomy: Anatomy) -> str:
    """How many tensors and bytes are pageable, in one sentence without a full stop."""
    count, least = len(anatomy.leaves), least_text(anatomy)
    pageable = [leaf for leaf in anatomy.leaves if leaf.pinned is Pinned.PAGEABLE]
    unknown = sum(leaf.pinned is Pinned.UNKNOWN for leaf in anatomy.leaves)
    told = f", and of {unknown} it is not known" if unknown else ""
    if unknown and unknown == count:
        return _of_unknown(count)
    if not pageable:
        return f"{_none_pageable(anatomy)}{told}"
    if len(pageable) == count and not anatomy.left_out:
        return _all_are(anatomy, "pageable")
    whole = anatomy.tensor_bytes
    share = share_text(anatomy.bytes_that_are(Pinned.PAGEABLE) / whole if whole else 0)
    verb = "is" if len(pageable) == 1 else "are"
    counted = f"{least}{len(pageable)} of {count_text(count, 'tensor')}"
    return f"{counted}, {share} of the bytes, {verb} pageable{told}"


def _none_pageable(anatomy: Anatomy) -> str:
    kinds = {leaf.pinned for leaf in anatomy.leaves}
    if not kinds:
        return "a batch holds no tensors"
    if kinds != {Pinned.PINNED} or anatomy.left_out:
        return "no tensor that was looked at is pageable"
    return _all_are(anatomy, "pinned")


def _of_unknown(count: int) -> str:
    which = "the one tensor of a batch is"
    if count > 1:
        which = "the tensors of a batch are"
    return f"whether {which} pinned is not known"


def _all_are(anatomy: Anatomy, what: str) -> str:
    size, count = bytes_text(anatomy.tensor_bytes), len(anatomy.leaves)
    if count == 1:
        return f"the one tensor of a batch ({size}) is {what}"
    number = "both" if count == 2 else f"all {count}"
    return f"{number} tensors of a batch ({size}) are {what}"


def least_text(anatomy: Anatomy) -> str:
    """What stands before a figure where more leaves were not looked at."""
    return "at least " if anatomy.left_out else ""


def short_path(path: str) -> str:
    """The end of a path that is too long: that is what tells it from its neighbours."""
    return path if len(path) <= _LONGEST_PATH else f"...{path[3 - _LONGEST_PATH :]}"


class _Reason(NamedTuple):
    why: WhyPageable
    holder: str | None
    leaves: list[Leaf]

    @property
    def nbytes(self) -> int:
        return sum(leaf.nbytes for leaf in self.leaves if leaf.same_as is None)

    def words(self) -> str:
        if self.why is WhyPageable.UNKNOWN:
            return "for a reason that is unknown"
        if self.holder is None:
            return f"because {self.why.value}"
        said = self.why.value.replace("objects of this class", f"{self.holder} objects")
        return f"because {said.replace('the class', self.holder)}"

    def fix(self) -> str:
        return FIXES[self.why].format(holder=self.holder or "the class")


def _reasons(anatomy: Anatomy) -> list[_Reason]:
    """Pageable tensors by why they are, the most bytes first."""
    by_why: dict[tuple[WhyPageable, str | None], list[Leaf]] = {}
    for leaf in anatomy.leaves:
        if leaf.pinned is Pinned.PAGEABLE:
            why = leaf.why or WhyPageable.UNKNOWN
            by_why.setdefault((why, leaf.holder), []).append(leaf)
    found = [_Reason(why, holder, its) for (why, holder), its in by_why.items()]
    return sorted(found, key=lambda each: each.nbytes, reverse=True)


def why_notes(report: LoaderReport) -> Iterator[Note]:
    """Reasons why tensors are pageable that no remedy of the table mends."""
    anatomy = report.anatomy
    if anatomy is None or report.state not in _ADVISED:
        return
    for each in _reasons(anatomy):
        if each.why not in (*_mended(report), WhyPageable.FLAG_OFF) and each.fix():
            size = bytes_text(each.nbytes)
            yield Note("warning", f"{size} {_are(each)} {each.words()}", each.fix())


def _are(reason: _Reason) -> str:
    return "is pageable" if len(reason.leaves) == 1 else "are pageable"


def _whys(report: LoaderReport, anatomy: Anatomy) -> Iterator[Part]:
    """Each reason with its tensors, and what mends it."""
    reasons = _reasons(anatomy)
    said = pageable_sentence(anatomy)
    lines = [f"{said[0].upper()}{said[1:]}."]
    for each in reasons[:_MOST_REASONS]:
        paths = listed([short_path(leaf.path) for leaf in each.leaves], most=3)
        lines.append(f"{bytes_text(each.nbytes)} {each.words()}: {paths}.")
        if each.why in _mended(report):
            lines.append(f"Those of {report.out} are pinned.")
        elif each.fix() and report.state in _ADVISED:
            lines.append(f"What mends it: {each.fix()}.")
    if more := reasons[_MOST_REASONS:]:
        lines.append(f"... and {count_text(len(more), 'more reason')}")
    yield Paragraph("\n".join(lines))


def _mended(report: LoaderReport) -> set[WhyPageable]:
    """What a new loader has put right."""
    built = report.rebuilding
    if report.out is None or report.state is State.NO_ACCELERATOR:
        return set()
    if built is None or built.way not in _ANEW:
        return set()
    adapted = {WhyPageable.PASSED_THROUGH} if built.adapter else set()
    return {WhyPageable.FLAG_OFF, WhyPageable.FLAG_TOO_LATE, *adapted}


def proof_parts(report: LoaderReport) -> Iterator[Part]:
    """What was changed, what was compared, and what was put back."""
    built = report.rebuilding
    if built is not None and built.changes:
        yield _changes(built)
    if facts := tuple(_facts(report)):
        yield Grid(_caption(report), facts)


def proof_sentence(report: LoaderReport) -> str:
    """What differs, and how far old and new were compared."""
    said, built, found = [], report.rebuilding, report.sameness
    if built is not None and built.changes:
        names = [shortened(change.argument, _LONGEST_NAME) for change in built.changes]
        said.append(f"Changed: {listed(names, most=4)}.")
    if found is not None and found.same:
        what = "order and class" if found.random_values else "value, order and class"
        said.append(f"{_compared(found)} are the same in {what}.")
    elif found is not None and found.same is None:
        said.append("Whether batches are the same could not be told.")
    elif (
        report.out is not None and built is not None and built.way is not Way.UNCHANGED
    ):
        said.append("Batches of both were not compared.")
    return " ".join(said)


def _compared(found: Sameness) -> str:
    which = "All" if found.whole else "The first"
    return f"{which} {count_text(found.batches, 'batch', 'batches')}"


def damage_parts(reuse: ReuseCheck | None) -> Iterator[Part]:
    """Batches that were overwritten: nothing is more serious."""
    if reuse is None or not reuse.damaged:
        return
    told = listed([_damage(each) for each in reuse.damaged], most=_MOST_DAMAGED)
    yield Note(
        "problem",
        f"filled again while it was still being copied: {told}",
        "let the collate_fn make new tensors for every batch",
    )


def _caption(report: LoaderReport) -> str:
    new, old = new_text(report), loader_text(report.loader)
    return f"Whether {new} gives the same as {old}"


def _changes(built: Rebuilding) -> Table:
    return Table(
        "Changed arguments",
        (Column("Argument"), Column("Before"), Column("After")),
        tuple((each.argument, each.before, each.after) for each in built.changes),
    )


def _facts(report: LoaderReport) -> Iterator[tuple[str, Cell]]:
    built = report.rebuilding
    if built is not None:
        yield from _made(built)
    if report.sameness is not None:
        yield from _sameness(report.sameness)
    elif built is not None and built.way is not Way.UNCHANGED:
        yield "same batches", "not compared"
    if report.reuse is not None:
        yield "memory of batches", _reuse(report.reuse)


def _made(built: Rebuilding) -> Iterator[tuple[str, Cell]]:
    reason = f": {built.reason}" if built.reason else ""
    yield "how it was made", f"{built.way.value} ({built.class_name}){reason}"
    if built.adapter:
        yield "adapter", "pins what torch's pinner passes through"
    ahead = count_text(built.depth, "batch", "batches")
    yield "copied ahead", ahead if built.depth else "nothing"


def _sameness(found: Sameness) -> Iterator[tuple[str, Cell]]:
    which = "all " if found.whole else "the first "
    compared = f"{which}{count_text(found.batches, 'batch', 'batches')}"
    if found.same is None:
        why = found.problem or (_RANDOM if found.random_values else "")
        yield "same batches", "could not be told" + (f": {why}" if why else "")
    elif found.same:
        what = "order and class" if found.random_values else "value, order and class"
        yield "same batches", f"yes, in {what}; compared: {compared}"
        if found.random_values:
            yield "but", _RANDOM
    else:
        what = found.difference or "in a way that was not noted"
        yield "same batches", f"no: {what}; compared: {compared}"
    if found.same is not None and found.problem:
        yield "remark", found.problem
    if found.restored:
        yield "put back as it was", listed(found.restored, most=_MOST_NAMES)


def _reuse(reuse: ReuseCheck) -> str:
    watched = count_text(reuse.batches, "batch", "batches")
    if reuse.damaged:
        return f"overwritten while it was being copied; watched: {watched}"
    again = ""
    if reuse.reused:
        paths = listed(reuse.reused, most=3)
        again = f"; the same addresses come again in the next batch: {paths}"
    if reuse.damaged is None:
        why = f": {reuse.problem}" if reuse.problem else ""
        return f"whether it is filled again too early was not measured{why}{again}"
    return f"arrived unchanged under a delayed copy; watched: {watched}{again}"


def _damage(each: Damaged) -> str:
    return f"{each.path} of batch {each.batch:,}"


def limit_notes(guard: Guard | None) -> Iterator[Note]:
    """The limits that warn, with what to do."""
    for limit in () if guard is None else guard.limits:
        if limit.severity in _LOUD and limit.hint:
            refused = limit.severity is Severity.REFUSE
            yield Note("problem" if refused else "warning", _needs(limit), limit.hint)


def limits_table(guard: Guard) -> Table:
    """Each limit, and how near it is."""
    caption = "What it takes of the machine, at most (estimated)"
    return Table.of(caption, _LIMIT, guard.limits)


def machine_parts(
    guard: Guard | None, setting: Setting, *, shown: bool
) -> Iterator[Part]:
    """All limits, if they are not in sight, and what is under way at most."""
    if guard is None:
        return
    said = Paragraph("\n".join(_guard_sentences(guard, setting)))
    inside = (said,) if shown else (limits_table(guard), said)
    yield Details("What it takes of the machine", inside, "machine")


def is_loud(guard: Guard | None) -> bool:
    """Whether a reader has to see it at once."""
    return guard is not None and any(each.severity in _LOUD for each in guard.limits)


def amount_text(kind: LimitKind, amount: int | None) -> str:
    """Bytes, or a number of files, as the kind of limit has it."""
    if amount is not None and kind is LimitKind.FILES:
        return f"{amount:,}"
    return bytes_text(amount)


def _available(limit: Limit) -> str:
    if limit.available is None and limit.severity in (Severity.FINE, Severity.INFORM):
        return "no limit"
    return amount_text(limit.kind, limit.available)


def _needs(limit: Limit) -> str:
    needed = amount_text(limit.kind, limit.needed)
    return f"{limit.kind.value}: {needed} needed, {_available(limit)} available"


def _guard_sentences(guard: Guard, setting: Setting) -> Iterator[str]:
    batches = count_text(guard.batches, "batch", "batches")
    if guard.locked_bytes:
        locked = bytes_text(guard.locked_bytes)
        yield f"At most {batches} can be under way, in {locked} of pinned memory."
        yield "That is estimated: each tensor is rounded up to a power of two."
    if guard.measured_bytes is not None:
        held = bytes_text(guard.measured_bytes)
        yield f"torch holds {held} pinned after the trial (measured)."
    if guard.device_bytes and setting.device is not None:
        more, where = bytes_text(guard.device_bytes), device_text(setting)
        yield f"Batches copied ahead take {more} of {where} (estimated)."


def loader_lines(facts: LoaderFacts) -> Iterator[str]:
    """For whoever wants to check that it is the right loader."""
    yield f"{facts.class_name}({', '.join(_arguments(facts))}): {facts.kind.value}"
    batches = count_text(facts.length, "batch", "batches")
    yield f"{batches} in an epoch"
    if facts.start_method is not None:
        yield f"workers start by {facts.start_method}"
    if facts.live_iterator:
        yield "workers of an earlier epoch are still alive"


def _arguments(facts: LoaderFacts) -> Iterator[str]:
    """What is known of the arguments, as one would type them."""
    if facts.dataset is not None:
        yield facts.dataset
    for name, value in (
        ("batch_size", facts.batch_size),
        ("sampler", facts.sampler),
        ("num_workers", facts.workers),
        ("prefetch_factor", facts.prefetch_factor),
        ("pin_memory", facts.pin_memory),
        ("persistent_workers", facts.persistent_workers),
    ):
        if value is not None:
            yield f"{name}={value}"


def place_lines(setting: Setting) -> Iterator[str]:
    """The device, versions, and processors."""
    if setting.device_name is not None:
        number = "" if setting.device is None else f"{setting.kind}:{setting.device}, "
        yield f"device: {number}{setting.device_name}"
    versions = (("torch", setting.torch_version), ("driver", setting.driver_version))
    known = [f"{name} {version}" for name, version in versions if version is not None]
    if known:
        yield ", ".join(known)
    if setting.processors is not None:
        yield f"processors that this process may use: {setting.processors}"


# --------------------------------------------------------------------- workers


def worker_parts(search: WorkerSearch | None, *, shown: bool) -> Iterator[Part]:
    """How fast so many load, if that is not in sight, and the choice."""
    if search is None or (search.stopped is Stopped.NOT_ASKED and not search.trials):
        return
    inside: list[Part] = []
    if search.trials and not shown:
        inside.append(worker_table(search))
    inside.append(Paragraph("\n".join(_worker_sentences(search))))
    yield Details("Loading by number of workers", tuple(inside), "workers")


def worker_notes(search: WorkerSearch | None) -> Iterator[Note]:
    """What failed."""
    if search is None:
        return
    if search.problem is not None:
        yield Note("warning", search.problem, search.hint or "")
    for trial in search.trials:
        if trial.problem is not None and trial.problem != search.problem:
            workers = count_text(trial.workers, "worker")
            yield Note("warning", f"with {workers}: {trial.problem}")


def worker_table(search: WorkerSearch) -> Table:
    """The curve as a table of bars."""
    speeds = [_speed(trial) for trial in search.trials]
    fastest = max((speed for speed in speeds if speed is not None), default=None)
    rows = (
        _worker_row(trial, speed, fastest, chosen=trial.workers == search.chosen)
        for trial, speed in zip(search.trials, speeds, strict=True)
    )
    return Table(
        "Loading by number of workers (measured)",
        (
            Column("Workers"),
            Column("Batches a second"),
            Column("A batch", number=True),
            Column("First batch after", number=True),
            Column("Memory of their own", number=True),
        ),
        tuple(rows),
    )


def _worker_row(
    trial: WorkerTrial, speed: float | None, fastest: float | None, *, chosen: bool
) -> tuple[Cell, ...]:
    name = f"{trial.workers} (chosen)" if chosen else f"{trial.workers}"
    memory = None if trial.private_bytes is None else bytes_text(trial.private_bytes)
    if trial.workers == 0 and memory is None:
        memory = "-"
    if trial.loading is None:
        return name, "failed", "-", "-", memory
    share = speed / fastest if speed is not None and fastest else None
    return (
        name,
        Meter(share, "" if speed is None else three_digits(speed, group=",")),
        time_text(median_of(trial.loading.between)),
        time_text(trial.loading.start_s),
        memory,
    )


def _speed(trial: WorkerTrial) -> float | None:
    batch_s = None if trial.loading is None else median_of(trial.loading.between)
    return 1 / batch_s if batch_s else None


def _worker_sentences(search: WorkerSearch) -> Iterator[str]:
    if search.chosen is None:
        yield "No number of workers was chosen."
    else:
        workers = count_text(search.chosen, "worker")
        yield f"Chosen: {workers}, the fewest within 5 % of the fastest."
    yield f"No more were tried: {search.stopped.value}."
    if search.most is not None:
        yield f"This process may use {count_text(search.most, 'processor')}."


_LEAF = (
    Property(Column("Tensor"), lambda leaf: short_path(leaf.path)),
    Property(Column("Class"), lambda leaf: leaf.what),
    Property(Column("Shape"), lambda leaf: " x ".join(map(str, leaf.shape)) or "-"),
    Property(Column("Type"), lambda leaf: leaf.dtype or "-"),
    Property(Column("Size", number=True), lambda leaf: bytes_text(leaf.nbytes)),
    Property(Column("Memory"), _memory),
)
_LIMIT = (
    Property(Column("What"), lambda limit: limit.kind.value),
    Property(
        Column("Needed", number=True),
        lambda limit: amount_text(limit.kind, limit.needed),
    ),
    Property(Column("Available", number=True), _available),
    Property(
        Column("Share", number=True),
        lambda limit: "-" if limit.share is None else share_text(limit.share),
    ),
    Property(
        Column("Verdict"),
        lambda limit: Badge(limit.severity.value, TONES[limit.severity]),
    ),
    Property(Column("Read from"), lambda limit: limit.source or "-"),
)
