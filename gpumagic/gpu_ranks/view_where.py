"""Who waits for whom just now, and what ranks are called in sentences."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from gpumagic.drawing import (
    Column,
    Details,
    Grid,
    Note,
    Paragraph,
    Property,
    Table,
    how_measured,
)
from gpumagic.gpu_ranks.records import CELL_END
from gpumagic.report.units import count_text, seconds_text, shortened

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpumagic.drawing import NoteKind, Part
    from gpumagic.gpu_ranks.records import Seat, Unfinished, Waiting
    from gpumagic.gpu_ranks.report import RanksReport, WhereReport
    from gpumagic.report.places import CodeLine

_ROW = 4  # ranks in a row from which on the first and the last are named
_MOST = 4  # rows of ranks that are named
_MANY = 16  # ranks; a sentence has room for their number only
_MOST_LETTERS, _MOST_OF_AN_ERROR = 60, 100
_WORKS, _ENDED, _WAITS_FOR_ONE = "works", "has ended", "waits for another"
_LEAVE = "`%gpu_ranks group` ends what they wait for, and begins the group anew"
_REBUILD = "`%gpu_ranks group` begins it anew among those that are left"
_RESTART_JOB = (
    "start the job anew from what it saved last: `torchrun --max-restarts=3` does so"
)

_TOLD_BY = {
    "flight recorder": "torch's flight recorder: which collectives each rank has "
    "called, in their order",
    "simulated GPUs": "the record of the simulated GPUs: which collectives each rank "
    "has called, and which one its host waits in",
    "stacks": "stacks alone: the function of torch.distributed that each rank is in",
}
_BY = {
    "flight recorder": "torch's flight recorder",
    "simulated GPUs": "the record of the simulated GPUs",
    "stacks": "their stacks",
}
_BLIND = (
    "Ranks told it while they ran; nothing was stopped. A rank can be silent while one "
    "long call keeps Python's lock."
)


class Names:
    """What ranks are called: with their host where there are several.

    Args:
        seats: Where they sit, as far as known.
    """

    def __init__(self, seats: Iterable[Seat] = ()) -> None:
        self._seats = {each.name: each for each in seats}
        self._several_hosts = len({each.host for each in self._seats.values()}) > 1

    @property
    def noun(self) -> str:
        """Where there is no group, nobody has a rank."""
        seats = self._seats.values()
        no_group = bool(seats) and all(each.rank is None for each in seats)
        return "engine" if no_group else "rank"

    def one(self, name: int) -> str:
        """As in "rank 3"."""
        return f"{self.noun} {name}"

    def at(self, name: int) -> str:
        """The same with its host, where there are several."""
        seat = self._seats.get(name)
        at = f" ({seat.host})" if seat is not None and self._several_hosts else ""
        return f"{self.one(name)}{at}"

    def several(self, names: Iterable[int]) -> str:
        """As in "ranks 1 and 3", "ranks 0, 1, 3", "ranks 0 to 6", "1,022 ranks"."""
        every = sorted(set(names))
        if len(every) == 1:
            return self.one(every[0])
        if len(every) > _MANY and len(_rows(every)) > 1:
            return f"{len(every):,} {self.noun}s"
        return f"{self.noun}s {numbers_text(every)}"


def numbers_text(numbers: Iterable[int]) -> str:
    """Numbers of ranks, as in "1 and 3", "0, 1, 3", "0 to 6, 8"."""
    rows = _rows(sorted(set(numbers)))
    told = [text for row in rows[:_MOST] for text in _row_told(row)]
    if more := sum(map(len, rows[_MOST:])):
        return f"{', '.join(told)} and {more:,} more"
    pair = len(told) == 2 and all(each.isdigit() for each in told)
    return " and ".join(told) if pair else ", ".join(told)


def _rows(numbers: Sequence[int]) -> list[list[int]]:
    """Those that follow each other, together."""
    rows: list[list[int]] = []
    for number in numbers:
        if rows and rows[-1][-1] == number - 1:
            rows[-1].append(number)
        else:
            rows.append([number])
    return rows


def _row_told(row: Sequence[int]) -> list[str]:
    few = len(row) < _ROW
    return [str(each) for each in row] if few else [f"{row[0]} to {row[-1]}"]


def is_one(names: Sequence[int]) -> bool:
    """Whether the verb is that of one."""
    return len(names) == 1


# ---------------------------------------------------------------------- sentences


def waiting_text(waiting: Waiting, names: Names | None = None) -> str:
    """Who waits in what, who has not come, and where that one is."""
    names = names or Names()
    has = "has" if is_one(waiting.waiting) else "have"
    since = "waits" if is_one(waiting.waiting) else "wait"
    if waiting.waited_s:
        since = f"{has} waited {seconds_text(waiting.waited_s)}"
    said = f"{names.several(waiting.waiting)} {since} in {_called(waiting)}"
    if waiting.mismatch:
        return f"{said}; calls differ: {_clean(waiting.mismatch)}"
    if not waiting.missing:
        return said
    verb = "has" if is_one(waiting.missing) else "have"
    said = f"{said}; {names.several(waiting.missing)} {verb} not called it"
    where = _where(waiting.lines)
    return f"{said}: {where}" if where else said


def _called(waiting: Waiting) -> str:
    name = _clean(waiting.collective or "a collective")
    return name if waiting.number is None else f"{name} no. {waiting.number:,}"


def _where(lines: Sequence[tuple[int, CodeLine]]) -> str:
    """The line that the missing ones are at, if it is one."""
    if not lines or len({line for _, line in lines}) > 1:
        return ""
    return line_text(lines[0][1])


def line_text(line: CodeLine) -> str:
    """A line of code with its place."""
    source = _clean(line.source or "")
    return f"{line.where}, {source}" if source else line.where


def _clean(text: str, most: int = _MOST_LETTERS) -> str:
    return shortened(" ".join(text.split()), most)


def unfinished_headline(
    unfinished: Sequence[Unfinished], ranks: int, names: Names
) -> str:
    """How many finished, and what became of the gravest of the others."""
    if deaf := [each for each in unfinished if each.why == "deaf"]:
        return _deaf_text(deaf, unfinished, ranks, names)
    finished = ranks - len({each.name for each in unfinished})
    here = f"{finished:,}" if finished > 0 else "none"
    said = f"{here} of {count_text(ranks, names.noun)} finished"
    return f"{said}; {unfinished_text(unfinished, names)}"


def _deaf_text(
    deaf: Sequence[Unfinished],
    unfinished: Sequence[Unfinished],
    ranks: int,
    names: Names,
) -> str:
    """What went wrong; who came back after Ctrl-C, who cannot hear it, until when."""
    away = {each.name for each in deaf}
    causes = [each for each in unfinished if each.why in {"died", "raised"}]
    told = away | {each.name for each in causes}
    back = sorted({e.name for e in unfinished if e.why == "interrupted"} - told)
    finished = ranks - len({each.name for each in unfinished})
    came = f"{names.several(back)} came back; " if back else ""
    if causes:
        came = f"{unfinished_text(causes, names)}; {came}"
    if finished:
        came = f"{finished:,} of {count_text(ranks, names.noun)} finished; {came}"
    verb = "does" if is_one([*away]) else "do"
    return f"{came}{names.several(away)} {verb} not hear Ctrl-C{_until(deaf)}"


def _until(deaf: Sequence[Unfinished]) -> str:
    until = next((each.text for each in deaf if each.text), "")
    return f": {_clean(until)}" if until else ""


def interrupted_text(running: Sequence[int], back: Sequence[int], until: str) -> str:
    """While it is waited for after Ctrl-C: who has come back, and who has not."""
    names = Names()
    verb = "does" if is_one(running) else "do"
    said = f"{names.several(running)} {verb} not hear Ctrl-C"
    came = f"; {names.several(back)} came back" if back else ""
    # A terminal that is narrow shows the beginning of it alone.
    return (
        f"{said}: press it again to stop waiting{f' ({until})' if until else ''}{came}"
    )


def unfinished_text(unfinished: Sequence[Unfinished], names: Names) -> str:
    """Who gave no answer and why, the first kind of them; and how many more."""
    alike: dict[tuple[str, str], list[Unfinished]] = defaultdict(list)
    for each in unfinished:
        alike[each.why, each.text].append(each)
    (why, text), gravest = max(
        alike.items(), key=lambda each: _GRAVITY.index(each[0][0])
    )
    first = [each.name for each in gravest]
    said = f"{names.several(first)} {_why(why, text, one=is_one(first))}"
    lost = {each.name for each in unfinished if each.why == "lost"} - {*first}
    line = gravest[0].line
    if lost and line is not None and is_one(first):
        said = f"{said} ({line.where})"
    more = len({each.name for each in unfinished} - {*first} - lost)
    said = f"{said}; {count_text(more, 'other')} did not finish" if more else said
    return f"{said}; {count_text(len(lost), 'other')} lost it" if lost else said


_GRAVITY = (
    "lost",
    "silent",
    "interrupted",
    "deaf",
    "refused",
    "garbage",
    "raised",
    "died",
)
_OF_ONE_AND_MORE = {
    "deaf": ("does not hear Ctrl-C", "do not hear Ctrl-C"),
    "interrupted": ("was interrupted", "were interrupted"),
}

_OF_SEVERAL = {
    "its engine is gone": "their engines are gone",
    "it is busy": "they are busy",
    "it ended without an answer": "they ended without an answer",
}


def _why(why: str, text: str, *, one: bool) -> str:
    text = _clean(text, _MOST_OF_AN_ERROR)
    text = text if one else _OF_SEVERAL.get(text, text)
    if why in _OF_ONE_AND_MORE:
        return _OF_ONE_AND_MORE[why][0 if one else 1]
    match why:
        case "raised":
            return f"raised {text}" if text else "raised an error"
        case "died" | "lost":
            why = "lost another" if why == "lost" else why
            return f"{why}: {text}" if text else why
        case "refused":
            return f"{'refuses' if one else 'refuse'}{': ' if text else ''}{text}"
        case "garbage":
            return f"sent what cannot be read{': ' if text else ''}{text}"
        case _:
            silent = "does not answer" if one else "do not answer"
            return f"{silent}: {text}" if text else silent


def unfinished_notes(  # noqa: PLR0913 -- each is a fact of its own
    unfinished: Sequence[Unfinished],
    names: Names,
    *,
    died: str | None = None,
    told: Iterable[Waiting] = (),
    in_script: bool = False,
    ranks: int | None = None,
) -> Iterator[Note]:
    """What is not in the first line: where they were, and how to go on."""
    known = {name for each in told for name, _ in each.lines}
    at = [each for each in unfinished if each.line is not None and each.why != "lost"]
    alike: dict[tuple[NoteKind, str], list[int]] = defaultdict(list)
    for each in at:
        if each.name not in known and each.line is not None:
            kind: NoteKind = "problem" if each.why == "raised" else "warning"
            alike[kind, line_text(each.line)].append(each.name)
    for (kind, line), ranks_there in [*alike.items()][:2]:
        was = "was" if is_one(ranks_there) else "were"
        yield Note(kind, f"{names.several(ranks_there)} {was} at {line}")
    gone = [each for each in unfinished if each.why == "died"]
    if died is not None or gone:
        anew = _RESTART_JOB if in_script else _REBUILD
        if not in_script and len(gone) == ranks:
            anew = f"rc.cluster.start_engines_sync(n={len(gone)}) starts others"
        why = _clean(died or "one of its ranks is gone")
        yield Note("problem", f"the group cannot be used any more: {why}", anew)
    if any(each.why == "deaf" for each in unfinished):
        text = (
            "they wait in C++, where Python's Ctrl-C arrives only once that has ended"
        )
        yield Note("problem", text, _LEAVE)
    elif any(each.why == "interrupted" for each in unfinished) and died is None:
        text = "ranks that were interrupted may disagree on what comes next"
        again = _RESTART_JOB if in_script else "`%gpu_ranks group` lets all begin anew"
        yield Note("warning", text, again)


def is_in_script(report: RanksReport) -> bool:
    """Whether a launcher has started these ranks, and not a cluster of engines."""
    started = bool(report.seats) and all(each.engine is None for each in report.seats)
    return started or bool(report.told_by)


def unfinished_table(unfinished: Sequence[Unfinished]) -> Iterator[Details]:
    """All who gave no whole answer, folded, where the first line has not named all."""
    if len({(each.why, each.text) for each in unfinished}) < 2:
        return
    properties = (
        Property(Column("Rank"), lambda each: str(each.name)),
        Property(Column("Did not finish"), lambda each: _why(each.why, "", one=True)),
        Property(Column("Said last"), lambda each: _clean(each.text, 200) or None),
        Property(
            Column("At"),
            lambda each: None if each.line is None else line_text(each.line),
        ),
    )
    table = Table.of("", properties, unfinished)
    yield Details("Who did not finish", (table,), "unfinished")


# ------------------------------------------------------------------------- report


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
        wait = "waits" if is_one(report.waiting_for_one) else "wait"
        said = f"{names.several(report.waiting_for_one)} {wait} for another"
        return f"{said}, in no collective of all{f'; {work}' if count else ''}"
    if not count:
        return "no rank waits in a collective of all"
    return f"no rank waits for another: {work}"


def parts(report: WhereReport) -> Iterator[Part]:
    """Where each is, what to do, and who told it."""
    names = Names(report.seats)
    table = _table(report)
    if table.rows:
        yield table
    yield from _notes(report, names)
    yield from unfinished_table(report.unfinished)
    yield _how(report)


def _notes(report: WhereReport, names: Names) -> Iterator[Note]:
    if report.waiting:
        yield _advice(report.waiting[0])
    for each in report.waiting[1:]:
        yield Note("problem", waiting_text(each, names))
    if report.waiting and report.unfinished:
        yield Note("warning", unfinished_text(report.unfinished, names))
    if not report.told_by and not report.unfinished:
        hint = "`%%gpu_ranks` above a cell runs it on all"
        yield Note("note", "only what was begun by `%%gpu_ranks` can be asked", hint)


def _advice(waiting: Waiting) -> Note:
    if waiting.mismatch:
        text = "all ranks have to call the same, in one order, with one size"
        return Note("problem", text, "look for an `if rank == ...` round a collective")
    if waiting.missing:
        text = "nobody goes on until all have called it"
        return Note("problem", text, "Ctrl-C once, then `%gpu_ranks group`")
    return Note("note", "all have called it: the data still moves")


def _table(report: WhereReport) -> Table:
    """Ranks that are at the same place in one row."""
    places = dict(report.lines)
    states = {
        name: _ENDED if place == CELL_END else _WORKS for name, place in places.items()
    }
    states |= dict.fromkeys(report.waiting_for_one, _WAITS_FOR_ONE)
    for each in report.waiting:
        states |= dict.fromkeys(each.waiting, f"waits in {_called(each)}")
        places |= {name: line_text(line) for name, line in each.lines}
    ended = {each.name: _why(each.why, "", one=True) for each in report.unfinished}
    by = f", by {_BY[report.told_by]}" if report.told_by in _BY else ""
    return _of_places(f"Where ranks are{by}", states | ended, places)


def _of_places(
    caption: str, states: Mapping[int, str], places: Mapping[int, str]
) -> Table:
    alike: dict[tuple[str, str], list[int]] = defaultdict(list)
    for name, state in sorted(states.items()):
        alike[state, places.get(name, "")].append(name)
    rows = sorted(alike.items(), key=lambda each: (len(each[1]), each[1]))
    properties = (
        Property(Column("Ranks"), lambda row: numbers_text(row[1])),
        Property(Column("Doing"), lambda row: row[0][0]),
        Property(Column("At"), lambda row: _clean(row[0][1]) or None),
    )
    return Table.of(caption, properties, rows, name="ranks")


def _how(report: WhereReport) -> Details:
    facts = [("told by", _TOLD_BY.get(report.told_by, report.told_by or "nobody"))]
    return how_measured(Grid("", tuple(facts)), Paragraph(_BLIND))
