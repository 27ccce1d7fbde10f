"""Who waits for whom just now: which ranks are in which collective, and who is not."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
    CELL_END,
    EVERYBODYS,
    Alive,
    Call,
    Done,
    Flight,
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
from gpumagic.report.record import Record, Report
from gpumagic.report.units import count_text, seconds_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpumagic.drawing import Part
    from gpumagic.drawing.progress import Place
    from gpumagic.gpu_ranks.answers import Answer
    from gpumagic.gpu_ranks.engines import Asked
    from gpumagic.report.places import CodeLine

HANG_S = 5.0  # how long a collective may stay open until the panel tells
_BEGINS_AFTER_S, _S_BETWEEN = 1.0, 0.25  # of the panel
_GO_ON = Note(
    "problem",
    "nobody goes on until all have called it",
    "Ctrl-C once, then `%gpu_ranks group`",
)
_HOW = (
    "Ranks told it while they ran, by torch's flight recorder where there is one; "
    "nothing was stopped. A rank can be silent while one long call keeps Python's lock."
)


@dataclass(frozen=True)
class Waiting(Record):
    """A collective that some ranks have called and others have not."""

    collective: str  # "all_reduce", ...
    number: int  # its place in the order of its group
    waiting: tuple[int, ...]  # which ranks wait in it
    waited_s: float  # for how long, the longest; 0 if unknown
    missing: tuple[int, ...]  # which ranks have not called it
    lines: tuple[tuple[int, CodeLine], ...] = ()  # where these are, as far as known
    mismatch: str = ""  # as in "rank 2 calls broadcast"; empty if calls agree


@dataclass(frozen=True)
class WhereReport(Report):
    """Who waits for whom just now."""

    waiting: tuple[Waiting, ...]  # open collectives, the longest wait first
    alive: tuple[Alive, ...] = ()  # ranks that run
    ended: tuple[int, ...] = ()  # those that have come to the end of the cell
    seats: tuple[Seat, ...] = ()  # where these sit
    unfinished: tuple[Unfinished, ...] = ()  # ranks that do not answer

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
    if not report.alive:
        return "nothing runs on the engines"
    recorded = any(each.flight for each in report.alive)
    known = "no collective is open" if recorded else "no flight recorder here"
    doing = Counter(each.doing for each in report.alive).most_common()
    return f"{known}: {', '.join(f'{count:,} {clean(its)}' for its, count in doing)}"


def waiting_text(waiting: Waiting, names: Names) -> str:
    """Who waits in what, who has not come, and where that one is."""
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
    return f"{clean(waiting.collective)} no. {waiting.number:,}"


def where_of(read: Sequence[Answer]) -> WhereReport:
    """Which ranks have called which collective, and who has not."""
    read = sorted(each_once(read), key=lambda each: each.name)
    alive = tuple(each for each in read if isinstance(each, Alive))
    done = [each for each in read if isinstance(each, Done)]
    return WhereReport(
        tuple(
            sorted(open_calls(read) if alive else (), key=lambda each: -each.waited_s)
        ),
        alive=alive,
        ended=tuple(each.name for each in done if not each.error),
        seats=tuple(each.seat for each in done),
        unfinished=unfinished_of(e for e in read if not isinstance(e, Alive)),
    )


def open_calls(read: Sequence[Answer]) -> tuple[Waiting, ...]:
    """By group, who is in the collective that is open, and who has not called it."""
    reached: dict[str, dict[int, int]] = defaultdict(dict)
    calls: dict[tuple[str, int], dict[int, Call]] = defaultdict(dict)
    under_way: dict[str, dict[int, int]] = defaultdict(dict)
    nowhere = Flight()
    for each in read:
        flight = getattr(each, "flight", None) or nowhere
        for call in (*flight.last, *flight.under_way):
            its = reached[call.group]
            its[each.name] = max(its.get(each.name, -1), call.number)
            calls[call.group, call.number][each.name] = call
        for call in flight.under_way:
            under_way[call.group][each.name] = call.number
    if EVERYBODYS in reached:  # also who has called nothing yet, or has died, is in it
        reached[EVERYBODYS] = {each.name: -1 for each in read} | reached[EVERYBODYS]
    stuck_s = {each.name: each.stuck_s for each in read if isinstance(each, Alive)}
    lines = {e.name: e.line for e in read if not isinstance(e, Seat) and e.line}
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
                    _most_common(e.name for e in called.values() if e.name)
                    or "a collective",
                    number,
                    tuple(waiting),
                    max((stuck_s.get(each, 0.0) for each in waiting), default=0.0),
                    tuple(missing),
                    tuple((name, lines[name]) for name in missing if name in lines),
                    mismatch,
                )
            )
    return tuple(found)


def _mismatch(calls: Mapping[int, Call]) -> str:
    """How the calls of one number differ; empty if they do not."""
    for what, does in (("name", "calls"), ("sizes", "sends")):
        every = {name: getattr(call, what) for name, call in sorted(calls.items())}
        said = {name: each for name, each in every.items() if each}
        usual = _most_common(said.values())
        odd = [name for name, each in said.items() if each != usual]
        if odd:
            return f"rank {odd[0]} {does} {said[odd[0]]}, the others {usual}"
    return ""


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
        yield _GO_ON
    for each in report.waiting[1:]:
        yield Note("problem", waiting_text(each, names))
    if report.waiting and report.unfinished:
        yield Note("warning", unfinished_text(report.unfinished, names))
    if not report.unfinished and not report.alive:
        hint = "`%%gpu_ranks` above a cell runs it on all"
        yield Note("note", "only what was begun by `%%gpu_ranks` can be asked", hint)


def where_table(report: WhereReport) -> Table:
    """Ranks that are at the same place in one row."""
    doing = dict.fromkeys(report.ended, "has ended")
    doing |= {each.name: each.doing for each in report.alive}
    for each in report.waiting:
        doing |= dict.fromkeys(each.waiting, f"waits in {_called(each)}")
    doing |= {each.name: WHY[each.why][0] for each in report.unfinished}
    every: list[Alive | Unfinished] = [*report.alive, *report.unfinished]
    places = dict.fromkeys(report.ended, CELL_END)
    places |= {each.name: line_text(each.line) for each in every if each.line}
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
        notes: list[Note] = []
        if where.waiting and where.waiting[0].waited_s >= HANG_S:
            title = waiting_text(where.waiting[0], Names())
            notes.append(_GO_ON)
        failed = [e for e in where.unfinished if e.why in {"raised", "lost", "died"}]
        if any(each.why != "lost" for each in failed):
            title = f"{unfinished_text(failed, Names())}; {title}"
        if asked.interrupted:
            title = f"Ctrl-C was sent to {count_text(len(asked.interrupted), 'engine')}"
        deaf = [e.name for e in said if isinstance(e, Alive) and e.deaf]
        if deaf:
            who = f"{Names().several(deaf)} {verb(deaf, 'does', 'do')}"
            title = f"{who} not hear Ctrl-C: press it again to stop waiting"
        return Drawing(title, (where_table(where), *notes))
