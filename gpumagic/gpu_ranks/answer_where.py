"""Who waits for whom just now: which ranks are in which collective, and who is not."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.drawing import (
    Column,
    Drawing,
    Note,
    Paragraph,
    Property,
    Table,
    how_measured,
    one_screen,
)
from gpumagic.gpu_ranks.answers import (
    EVERYBODYS,
    Alive,
    Call,
    Done,
    Seat,
    Unfinished,
    each_once,
)
from gpumagic.gpu_ranks.unfinished import (
    WHY,
    Names,
    clean,
    line_text,
    numbers_text,
    unfinished_of,
    unfinished_text,
    verb,
)
from gpumagic.report.places import CodeLine
from gpumagic.report.record import Record, Report
from gpumagic.report.units import count_text, seconds_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpumagic.drawing import Part
    from gpumagic.drawing.progress import Place
    from gpumagic.gpu_ranks.answers import Answer
    from gpumagic.gpu_ranks.engines import Asked

_CELL_END = "the end of the cell"  # where a rank is that has come to it
_ENDED, _WORKS = "has ended", "at work"
HANG_S = 5.0  # how long a collective may stay open until the panel tells
_BEGINS_AFTER_S, _S_BETWEEN = 1.0, 0.25  # of the panel
_HOW = (
    "Ranks told it while they ran, by torch's flight recorder where there is one; "
    "nothing was stopped. A rank can be silent while one long call keeps Python's lock."
)


@dataclass(frozen=True)
class Waiting(Record):
    """A collective that some ranks have called and others have not."""

    collective: str | None  # "all_reduce", ...
    number: int  # its place in the order of its group
    waiting: tuple[int, ...]  # which ranks wait in it
    waited_s: float | None  # for how long, the longest
    missing: tuple[int, ...]  # which ranks have not called it
    lines: tuple[tuple[int, CodeLine], ...] = ()  # where these are, as far as known
    mismatch: str | None = None  # as in "rank 2 calls broadcast"; None if calls agree


class RankIs(NamedTuple):
    """Where one rank is."""

    name: int
    doing: str  # "works", "in recv", "has ended"
    at: str = ""  # the line


@dataclass(frozen=True)
class WhereReport(Report):
    """Who waits for whom just now."""

    waiting: tuple[Waiting, ...]  # open collectives, the longest wait first
    ranks: tuple[RankIs, ...] = ()  # where each is
    seats: tuple[Seat, ...] = ()  # where they sit
    unfinished: tuple[Unfinished, ...] = ()  # ranks that do not answer
    recorded: bool = True  # whether it is known which collectives are open

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
    doing = Counter(each.doing for each in report.ranks if each.doing != _ENDED)
    if not doing:
        return "nothing runs on the engines"
    known = "no collective is open" if report.recorded else "no flight recorder here"
    told = (f"{count:,} {clean(each)}" for each, count in doing.most_common())
    return f"{known}: {', '.join(told)}"


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
    return f"{clean(waiting.collective or 'a collective')} no. {waiting.number:,}"


def where_of(read: Sequence[Answer]) -> WhereReport:
    """Which ranks have called which collective, and who has not."""
    read = sorted(each_once(read), key=lambda each: each.name)
    alive = [each for each in read if isinstance(each, Alive)]
    return WhereReport(
        waiting=open_calls(read) if alive else (),
        ranks=tuple(map(_is, read)),
        seats=tuple(each.seat for each in read if isinstance(each, Done)),
        unfinished=unfinished_of(e for e in read if not isinstance(e, Alive)),
        recorded=any(each.flight for each in alive),
    )


def _is(answer: Answer) -> RankIs:
    line, doing = _line(answer), _ENDED
    if isinstance(answer, Alive):
        doing = f"in {answer.inside}" if answer.inside else _WORKS
    return RankIs(answer.name, doing, "" if line is None else line.where)


def hanging(where: WhereReport, hang_s: float) -> list[Waiting]:
    """Collectives that have long been open, the longest first."""
    found = [each for each in where.waiting if (each.waited_s or 0.0) >= hang_s]
    return sorted(found, key=lambda each: -(each.waited_s or 0.0))


def _line(answer: Answer) -> CodeLine | None:
    """Where a rank is; one that failed, where it was."""
    if isinstance(answer, Done):
        return answer.error_line or CodeLine(_CELL_END)
    return answer.line if isinstance(answer, Alive | Unfinished) else None


def open_calls(read: Sequence[Answer]) -> tuple[Waiting, ...]:
    """By group, who is in the collective that is open, and who has not called it."""
    reached: dict[str, dict[int, int]] = defaultdict(dict)
    calls: dict[tuple[str, int], dict[int, Call]] = defaultdict(dict)
    under_way: dict[str, dict[int, int]] = defaultdict(dict)
    for each in read:
        flight = each.flight if isinstance(each, Alive | Done) else None
        for call in (*flight.last, *flight.under_way) if flight else ():
            its = reached[call.group]
            its[each.name] = max(its.get(each.name, -1), call.number)
            calls[call.group, call.number][each.name] = call
        for call in flight.under_way if flight else ():
            under_way[call.group][each.name] = call.number
    if EVERYBODYS in reached:  # also who has called nothing yet, or has died, is in it
        reached[EVERYBODYS] = {each.name: -1 for each in read} | reached[EVERYBODYS]
    stuck_s = {e.name: e.stuck_s or 0.0 for e in read if isinstance(e, Alive)}
    lines = {each.name: line for each in read if (line := _line(each)) is not None}
    found = []
    for group, its in under_way.items():
        number = max(its.values())
        called = calls[group, number]
        waiting = sorted({*called} & {*its})
        missing = sorted(e for e, last in reached[group].items() if last < number)
        mismatch = _mismatch(called)
        if missing or mismatch:
            found.append(
                Waiting(
                    _most_common(e.name for e in called.values() if e.name) or None,
                    number,
                    tuple(waiting),
                    max((stuck_s.get(each, 0.0) for each in waiting), default=0)
                    or None,
                    tuple(missing),
                    tuple((name, lines[name]) for name in missing if name in lines),
                    mismatch,
                )
            )
    return tuple(found)


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


# ------------------------------------------------------------------------- screen


def _parts(report: WhereReport) -> Iterator[Part]:
    table = where_table(report)
    if table.rows:
        yield table
    yield from _notes(report, Names(report.seats))
    yield how_measured(Paragraph(_HOW))


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
    if not report.unfinished and all(each.doing == _ENDED for each in report.ranks):
        hint = "`%%gpu_ranks` above a cell runs it on all"
        yield Note("note", "only what was begun by `%%gpu_ranks` can be asked", hint)


def where_table(report: WhereReport) -> Table:
    """Ranks that are at the same place in one row."""
    doing = {each.name: each.doing for each in report.ranks}
    places = {each.name: each.at for each in report.ranks}
    for each in report.waiting:
        doing |= dict.fromkeys(each.waiting, f"waits in {_called(each)}")
        places |= {name: line_text(line) for name, line in each.lines}
    doing |= {each.name: WHY[each.why][0] for each in report.unfinished}
    alike: dict[tuple[str, str], list[int]] = defaultdict(list)
    for name, its in sorted(doing.items()):
        alike[its, places.get(name, "")].append(name)
    properties = (
        Property(Column("Ranks"), lambda row: numbers_text(row[1])),
        Property(Column("Doing"), lambda row: clean(row[0][0])),
        Property(Column("At"), lambda row: clean(row[0][1]) or None),
    )
    rows = sorted(alike.items(), key=lambda row: (len(row[1]), row[1]))
    return Table.of("Where ranks are", properties, rows, name="ranks")


# ------------------------------------------------------------------ while a cell runs


class Panel:
    """Draws where ranks are, once a cell takes long; it says who hangs."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._began_s = self._drawn_s = time.monotonic()

    def see(self, asked: Asked) -> None:
        """Draw how things stand, four times a second at most."""
        now_s = time.monotonic()
        is_early = now_s - self._began_s < _BEGINS_AFTER_S and not asked.interrupted
        if not is_early and now_s - self._drawn_s >= _S_BETWEEN:
            self._drawn_s = now_s
            self._place.show(self._drawing(asked, now_s))

    def _drawing(self, asked: Asked, now_s: float) -> Drawing:
        said = asked.checked()
        where = where_of([e for e in said if getattr(e, "why", "") != "silent"])
        engines = f"{len(asked.running)} of {count_text(len(asked.results), 'engine')}"
        title = f"{engines} run since {seconds_text(now_s - self._began_s)}"
        if waiting := hanging(where, HANG_S):
            title = waiting_text(waiting[0])
        failed = [e for e in where.unfinished if e.why in {"raised", "lost", "died"}]
        if any(each.why != "lost" for each in failed):
            title = f"{unfinished_text(failed, Names())}; {title}"
        if asked.interrupted:
            title = f"Ctrl-C was sent to {count_text(len(asked.interrupted), 'engine')}"
        deaf = [e.name for e in said if isinstance(e, Alive) and e.deaf]
        if deaf:
            who = f"{Names().several(deaf)} {verb(deaf, 'does', 'do')}"
            title = f"{who} not hear Ctrl-C: press it again to stop waiting"
        return Drawing(title, (where_table(where),))
