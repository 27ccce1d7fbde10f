"""Who waits for whom just now: which ranks are in which collective, and who is not."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.drawing import (
    Column,
    Drawing,
    Grid,
    Note,
    Paragraph,
    Property,
    Table,
    how_measured,
    one_screen,
)
from gpumagic.gpu_ranks.answers import (
    EVERYBODYS,
    RECORDER,
    Alive,
    Call,
    Done,
    Seat,
    Unfinished,
    each_once,
)
from gpumagic.gpu_ranks.unfinished import (
    Names,
    clean,
    line_text,
    numbers_text,
    unfinished_of,
    unfinished_text,
    verb,
    why_text,
)
from gpumagic.report.places import CodeLine
from gpumagic.report.record import Record, Report
from gpumagic.report.units import seconds_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpumagic.drawing import Part
    from gpumagic.gpu_ranks.answers import Answer

_CELL_END = "the end of the cell"  # where a rank is that has come to it
_OF_TWO = frozenset({"recv", "send"})  # functions that return when another has come
_TOLD_BY = {
    RECORDER: "torch's flight recorder",
    "stacks": "their stacks: which function of torch.distributed each is in",
}
_BLIND = (
    "Ranks told it while they ran; nothing was stopped. A rank can be silent while one "
    "long call keeps Python's lock."
)


@dataclass(frozen=True)
class Waiting(Record):
    """A collective that some ranks have called and others have not."""

    collective: str | None  # "all_reduce", ...
    number: int | None  # its place in the order of its group; None by stacks
    waiting: tuple[int, ...]  # which ranks wait in it
    waited_s: float | None  # for how long, the longest
    missing: tuple[int, ...]  # which ranks have not called it
    lines: tuple[tuple[int, CodeLine], ...] = ()  # where these are, as far as known
    # how the calls differ, as in "rank 2 calls broadcast"; None where they agree
    mismatch: str | None = None


@dataclass(frozen=True)
class WhereReport(Report):
    """Who waits for whom just now."""

    waiting: tuple[Waiting, ...]  # open collectives, the longest wait first
    lines: tuple[tuple[int, str], ...] = ()  # where each rank is, as far as known
    seats: tuple[Seat, ...] = ()  # where they sit
    unfinished: tuple[Unfinished, ...] = ()  # ranks that do not answer
    told_by: str = ""  # "flight recorder", "stacks" or "" where nothing runs
    # ranks that wait all the same, as in receiving from another
    waiting_for_one: tuple[int, ...] = ()

    def drawing(self) -> Any:
        """The longest wait, where each rank is, and what to do."""
        return Drawing(headline(self), one_screen(_parts(self)))


# ------------------------------------------------------------------------ verdict


def headline(report: WhereReport) -> str:
    """The longest wait, or that nothing waits."""
    names = Names(report.seats)
    if report.waiting:
        return waiting_text(report.waiting[0], names)
    if report.unfinished:
        return unfinished_text(report.unfinished, names)
    if not report.told_by:
        return "nothing runs on the engines"
    count = len({name for name, _ in report.lines} - {*report.waiting_for_one})
    work = f"{count:,} {'works' if count == 1 else 'work'}"
    if report.waiting_for_one:
        wait = verb(report.waiting_for_one, "waits", "wait")
        said = f"{names.several(report.waiting_for_one)} {wait} for another"
        return f"{said}, in no collective of all{f'; {work}' if count else ''}"
    return f"no rank waits for another: {work}"


def waiting_text(waiting: Waiting, names: Names | None = None) -> str:
    """Who waits in what, who has not come, and where that one is."""
    names = names or Names()
    since = verb(waiting.waiting, "waits", "wait")
    if waiting.waited_s:
        has = verb(waiting.waiting, "has", "have")
        since = f"{has} waited {seconds_text(waiting.waited_s)}"
    said = f"{names.several(waiting.waiting)} {since} in {_called(waiting)}"
    if waiting.mismatch:
        return f"{said}; calls differ: {clean(waiting.mismatch)}"
    if not waiting.missing:
        return said
    has = verb(waiting.missing, "has", "have")
    said = f"{said}; {names.several(waiting.missing)} {has} not called it"
    lines = {line for _, line in waiting.lines}
    return f"{said}: {line_text(lines.pop())}" if len(lines) == 1 else said


def _called(waiting: Waiting) -> str:
    name = clean(waiting.collective or "a collective")
    return name if waiting.number is None else f"{name} no. {waiting.number:,}"


def where_of(read: Sequence[Answer]) -> WhereReport:
    """Which ranks have called which collective, and who has not."""
    read = each_once(read)
    alive = {each.name: each for each in read if isinstance(each, Alive)}
    gone = {each.name: each for each in read if not isinstance(each, Alive)}
    recorded = any(each.flight is not None for each in alive.values())
    lines = {each.name: _line(each) for each in sorted(read, key=lambda e: e.name)}
    told = {name: line for name, line in lines.items() if line is not None}
    waiting = _by_recorder(read, told) if recorded else _by_stacks(read, told)
    open_on = {name for each in waiting for name in each.waiting}
    return WhereReport(
        waiting=waiting,
        lines=tuple((name, line.where) for name, line in told.items()),
        seats=tuple(each.seat for each in gone.values() if isinstance(each, Done)),
        unfinished=unfinished_of(gone.values()),
        told_by=RECORDER if recorded else "stacks" if alive else "",
        waiting_for_one=tuple(
            name
            for name, each in sorted(alive.items())
            if name not in open_on
            and not (each.flight and each.flight.under_way)
            and (each.working is False or each.inside in _OF_TWO)
        ),
    )


def hanging(where: WhereReport, hang_s: float) -> list[Waiting]:
    """Collectives that have long been open, the longest first."""
    found = [each for each in where.waiting if (each.waited_s or 0.0) >= hang_s]
    return sorted(found, key=lambda each: -(each.waited_s or 0.0))


def open_at_the_end(read: Sequence[Answer]) -> tuple[Waiting, ...]:
    """Collectives that are still open where not all ranks have finished."""
    return where_of(read).waiting or _by_recorder(read, {})


def _line(answer: Answer) -> CodeLine | None:
    """Where a rank is; one that failed, where it was."""
    if isinstance(answer, Done):
        return answer.error_line or CodeLine(_CELL_END)
    return answer.line if isinstance(answer, Alive | Unfinished) else None


class _At(NamedTuple):
    """Where a rank is in the order of one group: what it has called, what is open."""

    reached: int
    last: Call | None = None
    under_way: Call | None = None


def _by_recorder(
    read: Iterable[Answer], lines: Mapping[int, CodeLine]
) -> tuple[Waiting, ...]:
    """By group, who is in the collective that is open, and who has not called it."""
    groups: dict[str, dict[int, _At]] = defaultdict(dict)
    stuck_s, every = dict[int, float](), list[int]()
    for each in read:
        every.append(each.name)
        if isinstance(each, Alive) and each.stuck_s is not None:
            stuck_s[each.name] = each.stuck_s
        flight = each.flight if isinstance(each, Alive | Done) else None
        for call in flight.last if flight else ():
            groups[call.group][each.name] = _At(call.number, call)
        for call in flight.under_way if flight else ():
            reached, last, _ = groups[call.group].get(each.name, _At(call.number))
            at = _At(max(reached, call.number), last, call)
            groups[call.group][each.name] = at
    if EVERYBODYS in groups:  # also who has called nothing yet, or has died, is in it
        there = groups[EVERYBODYS]
        groups[EVERYBODYS] = {name: there.get(name, _At(-1)) for name in every}
    found = (_waiting_in(its, lines, stuck_s) for its in groups.values())
    return tuple(each for each in found if each is not None)


def _waiting_in(
    ranks: Mapping[int, _At],
    lines: Mapping[int, CodeLine],
    stuck_s: Mapping[int, float],
) -> Waiting | None:
    """Of one group: the collective that is open on some."""
    number = max(
        (at.under_way.number for at in ranks.values() if at.under_way), default=-1
    )
    calls = {
        name: call
        for name, at in ranks.items()
        for call in (at.last, at.under_way)
        if call is not None and call.number == number
    }
    missing = sorted(name for name, at in ranks.items() if at.reached < number)
    mismatch = _mismatch(calls)
    if not calls or not (missing or mismatch):
        return None
    return Waiting(
        _most_common(call.name for call in calls.values() if call.name) or None,
        number,
        waiting := tuple(sorted(name for name in calls if ranks[name].under_way)),
        max((stuck_s[name] for name in waiting if name in stuck_s), default=None),
        tuple(missing),
        tuple((name, lines[name]) for name in missing if name in lines),
        mismatch,
    )


def _mismatch(calls: Mapping[int, Call]) -> str | None:
    """How the calls of one number differ."""
    for what, does in (("name", "calls"), ("sizes", "sends")):
        every = {name: getattr(call, what) for name, call in sorted(calls.items())}
        said = {name: each for name, each in every.items() if each}
        usual = _most_common(said.values())
        odd = [name for name, each in said.items() if each != usual]
        if odd:
            return f"rank {odd[0]} {does} {said[odd[0]]}, the others {usual}"
    return None


def _most_common(things: Iterable[str]) -> str:
    """The first of those that are said most often; empty where nothing is said."""
    return next((each for each, _ in Counter(things).most_common(1)), "")


def _by_stacks(
    read: Sequence[Answer], lines: Mapping[int, CodeLine]
) -> tuple[Waiting, ...]:
    """Who is in a collective just now, and who is not; it may be on its way."""
    inside = {e.name: e for e in read if isinstance(e, Alive) and e.inside}
    missing = sorted({each.name for each in read} - {*inside})
    if not inside or not missing:
        return ()
    stuck_s = [e.stuck_s for e in inside.values() if e.stuck_s is not None]
    return (
        Waiting(
            _most_common(each.inside or "" for each in inside.values()),
            None,
            tuple(sorted(inside)),
            max(stuck_s, default=None),
            tuple(missing),
            tuple((name, lines[name]) for name in missing if name in lines),
        ),
    )


# ------------------------------------------------------------------------- screen


def _parts(report: WhereReport) -> Iterator[Part]:

    table = _table(report)
    if table.rows:
        yield table
    yield from _notes(report, Names(report.seats))
    told_by = _TOLD_BY.get(report.told_by, "nobody")
    yield how_measured(Grid("", (("told by", told_by),)), Paragraph(_BLIND))


def _notes(report: WhereReport, names: Names) -> Iterator[Note]:

    if report.waiting and report.waiting[0].mismatch:
        text = "all ranks have to call the same, in one order, with one size"
        yield Note("problem", text, "look for an `if rank == ...` round a collective")
    elif report.waiting:
        hint = "Ctrl-C once, then `%gpu_ranks group`"
        yield Note("problem", "nobody goes on until all have called it", hint)
    for each in report.waiting[1:]:
        yield Note("problem", waiting_text(each, names))
    if report.waiting and report.unfinished:
        yield Note("warning", unfinished_text(report.unfinished, names))
    if not report.told_by and not report.unfinished:
        hint = "`%%gpu_ranks` above a cell runs it on all"
        yield Note("note", "only what was begun by `%%gpu_ranks` can be asked", hint)


def _table(report: WhereReport) -> Table:
    """Ranks that are at the same place in one row."""
    places = dict(report.lines)
    states = {
        name: "has ended" if place == _CELL_END else "works"
        for name, place in places.items()
    }
    states |= dict.fromkeys(report.waiting_for_one, "waits for another")
    for each in report.waiting:
        states |= dict.fromkeys(each.waiting, f"waits in {_called(each)}")
        places |= {name: line_text(line) for name, line in each.lines}
    states |= {each.name: why_text(each) for each in report.unfinished}
    alike: dict[tuple[str, str], list[int]] = defaultdict(list)
    for name, state in sorted(states.items()):
        alike[state, places.get(name, "")].append(name)
    properties = (
        Property(Column("Ranks"), lambda row: numbers_text(row[1])),
        Property(Column("Doing"), lambda row: row[0][0]),
        Property(Column("At"), lambda row: clean(row[0][1]) or None),
    )
    rows = sorted(alike.items(), key=lambda row: (len(row[1]), row[1]))
    by = _TOLD_BY.get(report.told_by, "").partition(":")[0]
    caption = f"Where ranks are{f', by {by}' if by else ''}"
    return Table.of(caption, properties, rows, name="ranks")
