"""Two runs of the same code: how much slower, and which kernels made it so."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from gpumagic.cuda_sync_time.view_profile import kernel_name
from gpumagic.drawing import Bar, BarPair, Column, Details, Note, Property, Table
from gpumagic.drawing.palette import VERMILLION
from gpumagic.gpu_open.view_trace import (
    LONGEST_FULL,
    LONGEST_NAME,
    file_details,
    file_name,
    how,
    kernel_text,
    share,
)
from gpumagic.report.units import (
    range_text,
    seconds_text,
    share_text,
    shortened,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpumagic.drawing import Part
    from gpumagic.gpu_open.report import TraceReport
    from gpumagic.gpu_open.trace_records import Change, Comparison, RankTrace

_Number = TypeVar("_Number", int, float)

_SAME = 1.03  # one recording of each tells no smaller difference from chance
_LONGEST_IN_TITLE = 28
_TELLS = 0.25  # of the difference: a kernel with so much is named
_OTHERS = 0.1  # of the time: kernels that only one run has
_RUNS_ALIKE = 1.05  # that often more than before is as often
_MOST = 50
_KERNELS, _OPERATORS = "Kernel", "Operator"
_ONE_EACH = (
    "One recording of each run does not tell small changes from chance. "
    "Up to 3 % counts as the same."
)
_PER_STEP = "The runs have different numbers of steps: figures are of a median step."


class _Changed(NamedTuple):
    """The runs of one name in both recordings; None where there are none."""

    name: str
    kind: str
    count_before: int | None
    count_after: int | None
    before_s: float | None
    after_s: float | None

    @property
    def more_s(self) -> float:
        """How much longer it took."""
        return (self.after_s or 0.0) - (self.before_s or 0.0)

    @property
    def runs(self) -> str:
        """How often it ran, before and after."""
        counts = self.count_before, self.count_after
        before, after = (f"{each or 0:,}" for each in counts)
        return range_text(before, after)


def headline(comparison: Comparison) -> str:
    """Which run is slower by how much, and what made most of it."""
    before_s, after_s = comparison.length_before_s, comparison.length_after_s
    if not before_s or not after_s:
        return "one of the two has no GPU work: nothing can be compared"
    both_s = seconds_text(before_s), seconds_text(after_s)
    told = f"({range_text(*both_s, ' -> ')})"
    ratio = after_s / before_s
    if 1 / _SAME < ratio < _SAME:
        both = "a step takes the same time in both" if comparison.per_step else ""
        return f"{both or 'both take the same time'} {told}{_moved(comparison)}"
    what = "a step of the second" if comparison.per_step else "the second"
    times, way = (ratio, "slower") if ratio > 1 else (1 / ratio, "faster")
    why = _why(comparison, after_s - before_s)
    return f"{what} is {times:.2f}x {way} {told}: {why}"


def _moved(comparison: Comparison) -> str:
    """What changed most where the whole did not."""
    length_s = comparison.length_before_s or 0.0
    rows = by_short_name(comparison.kernels)
    if rows and abs(rows[0].more_s) > (_SAME - 1) * length_s:
        name = kernel_text(rows[0].name, _LONGEST_IN_TITLE)
        return f", though {name} took {_difference(rows[0].more_s)}"
    return ""


def _why(comparison: Comparison, more_s: float) -> str:
    """The kernel that did it, or the idle time."""
    first, idle_s = _culprit(comparison, more_s), _idle(comparison) or 0.0
    most_s = abs(first.more_s) if first is not None else 0.0
    if idle_s * more_s > 0 and abs(idle_s) > most_s:
        return f"the GPU was idle for {_difference(idle_s)}"
    if first is None or most_s < _TELLS * abs(more_s):
        return _by_kind(comparison, more_s)
    name = kernel_text(first.name, _LONGEST_IN_TITLE)
    if first.before_s is None:
        return f"{name} is new and took {seconds_text(first.after_s)}"
    if first.after_s is None:
        return f"{name} is gone, which took {seconds_text(first.before_s)}"
    return f"{name} took {_difference(first.more_s)} ({first.runs} runs)"


def _by_kind(comparison: Comparison, more_s: float) -> str:
    """The kind of kernels that changed most, where no single one stands out."""
    more: dict[str, float] = {}
    for each in _each(comparison.kernels):
        its = each.more_s if more_s > 0 else -each.more_s
        more[each.kind] = more.get(each.kind, 0.0) + its
    kind, most_s = max(more.items(), key=lambda each: each[1], default=("", 0.0))
    if most_s < _TELLS * abs(more_s):
        return "many kernels changed a little"
    return f"{kind} took {_difference(most_s if more_s > 0 else -most_s)}"


def _culprit(comparison: Comparison, more_s: float) -> _Changed | None:
    """What changed most in the direction of the whole."""
    rows = by_short_name(comparison.kernels)
    alike = (each for each in rows if each.more_s * more_s > 0)
    return next(alike, None)


def _difference(seconds: float) -> str:
    return f"{seconds_text(abs(seconds))} {'more' if seconds > 0 else 'less'}"


def _idle(comparison: Comparison) -> float | None:
    """How much longer the device was idle."""
    before_s, after_s = comparison.length_before_s, comparison.length_after_s
    busy_before_s, busy_after_s = comparison.busy_before_s, comparison.busy_after_s
    if before_s is None or after_s is None:
        return None
    if busy_before_s is None or busy_after_s is None:
        return None
    return (after_s - busy_after_s) - (before_s - busy_before_s)


def parts(report: TraceReport, comparison: Comparison) -> Iterator[Part]:
    """Both lengths, what changed most, what to do; operators are folded."""
    yield _bars(comparison)
    rows = by_short_name(comparison.kernels)
    if rows:
        step = ", in a step of each" if comparison.per_step else ""
        caption = f"What changed on the GPU{step}"
        yield _table(caption, _KERNELS, rows, LONGEST_NAME, name="kernels")
    yield from _notes(report, comparison)
    if comparison.operators:
        table = _table("", _OPERATORS, _each(comparison.operators), LONGEST_NAME * 2)
        yield Details("What changed on the host, by operator", (table,), "operators")
    if comparison.kernels:
        table = _table("", _KERNELS, _each(comparison.kernels), LONGEST_FULL)
        yield Details("Kernels by their full names", (table,), "names")
    yield file_details(report)
    meanings = (_PER_STEP, _ONE_EACH) if comparison.per_step else (_ONE_EACH,)
    files = zip(("the first", "the second"), report.ranks, strict=False)
    facts = [(which, file_name(rank)) for which, rank in files]
    yield how(report, facts, *meanings)


def _bars(comparison: Comparison) -> BarPair:
    before = comparison.length_before_s, comparison.busy_before_s
    after = comparison.length_after_s, comparison.busy_after_s
    return BarPair(
        "A median step"
        if comparison.per_step
        else "From the first GPU work to the last",
        (
            Bar("the first", before[0], _busy(*before)),
            Bar("the second", after[0], _busy(*after), VERMILLION),
        ),
    )


def _busy(length_s: float | None, busy_s: float | None) -> str:
    return f"{seconds_text(length_s)}, busy {share_text(share(busy_s, length_s))}"


# ------------------------------------------------------------------------- rows


def by_short_name(changes: Sequence[Change]) -> list[_Changed]:
    """However many types and shapes a kernel was made for; what changed most first."""
    alike: dict[tuple[str, str], list[Change]] = {}
    for each in changes:
        alike.setdefault((kernel_name(each.name), each.kind), []).append(each)
    rows = (
        _Changed(
            *names,
            _sum(each.count_before for each in its),
            _sum(each.count_after for each in its),
            _sum(each.before_s for each in its),
            _sum(each.after_s for each in its),
        )
        for names, its in alike.items()
    )
    return sorted(rows, key=lambda each: -abs(each.more_s))


def _each(changes: Iterable[Change]) -> list[_Changed]:
    return [
        _Changed(
            each.name,
            each.kind,
            each.count_before,
            each.count_after,
            each.before_s,
            each.after_s,
        )
        for each in changes
    ]


def _sum(amounts: Iterable[_Number | None]) -> _Number | None:
    """All that are there, or None where none is."""
    known = [each for each in amounts if each is not None]
    return sum(known) if known else None


def _table(
    caption: str,
    heading: str,
    rows: Sequence[_Changed],
    longest: int,
    *,
    name: str = "",
) -> Table:
    properties = (
        Property(Column(heading), lambda each: kernel_text(each.name, longest)),
        Property(Column("Change", number=True), lambda each: _signed(each.more_s)),
        Property(Column("Before", number=True), lambda each: _time(each.before_s)),
        Property(Column("After", number=True), lambda each: _time(each.after_s)),
        Property(Column("Runs", number=True), lambda each: each.runs),
    )
    return Table.of(caption, properties, rows[:_MOST], len(rows), name=name)


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else seconds_text(seconds)


def _signed(seconds: float) -> str:
    text = seconds_text(seconds)
    return f"+{text}" if seconds > 0 else text


# ------------------------------------------------------------------------ notes


def _notes(report: TraceReport, comparison: Comparison) -> Iterator[Note]:
    yield from _unlike(report.ranks)
    before_s, after_s = comparison.length_before_s, comparison.length_after_s
    if not before_s or not after_s:
        return
    more_s = after_s - before_s
    ratio = after_s / before_s
    if not 1 / _SAME < ratio < _SAME:
        yield from _what_to_do(report, comparison, more_s)
    rows = by_short_name(comparison.kernels)
    new = [each for each in rows if each.before_s is None]
    gone = [each for each in rows if each.after_s is None]
    if sum(abs(each.more_s) for each in (*new, *gone)) > _OTHERS * before_s:
        text = (
            f"other kernels do the work: {len(new):,} are new, {len(gone):,} are gone"
        )
        hint = "another torch, GPU, type or shape of tensors? --show names has them all"
        yield Note("note", text, hint)


def _what_to_do(
    report: TraceReport, comparison: Comparison, more_s: float
) -> Iterator[Note]:
    idle_s = _idle(comparison) or 0.0
    first = _culprit(comparison, more_s)
    if idle_s * more_s > 0 and abs(idle_s) > _TELLS * abs(more_s):
        text = f"the GPU was idle for {_difference(idle_s)} in the second"
        which = report.ranks[-1 if idle_s > 0 else 0]
        hint = f"`%gpu_open {which.file.typed}` tells what it waited for"
        yield Note("note", text, hint)
    if first is None or not first.count_before or not first.count_after:
        return
    if abs(first.more_s) < _TELLS * abs(more_s):
        return
    runs = first.count_after / first.count_before
    if 1 / _RUNS_ALIKE < runs < _RUNS_ALIKE:
        text = f"ran as often, and {'longer' if more_s > 0 else 'shorter'} each time"
        hint = "other sizes or types of tensors, or a slower clock: compare the shapes"
    else:
        text = f"ran {runs:.2f}x as often"
        hint = "--show operators tells what is called more often"
    name = kernel_text(first.name)
    yield Note("note", f"{name} {text}", hint)


def _unlike(ranks: Sequence[RankTrace]) -> Iterator[Note]:
    """What makes the two hard to compare."""
    for rank in ranks:
        if rank.file.missing:
            text = f"{file_name(rank)} is not whole: {shortened(rank.file.missing, 90)}"
            yield Note("warning", text, "record it again, or compare a step of each")
    devices = {each.device_name for each in ranks if each.device_name}
    if len(devices) > 1:
        told = " and ".join(sorted(devices))
        yield Note("warning", f"the two ran on different devices: {told}")
