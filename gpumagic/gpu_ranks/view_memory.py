"""The memory of each rank: the odd one, and who would run out first."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpumagic.drawing import (
    Column,
    Details,
    Grid,
    Histogram,
    Note,
    Paragraph,
    Property,
    Stack,
    Stacks,
    Table,
    how_measured,
)
from gpumagic.gpu_ranks.records import LOAD
from gpumagic.gpu_ranks.view_where import (
    Names,
    is_in_script,
    unfinished_headline,
    unfinished_notes,
)
from gpumagic.report.robust import median
from gpumagic.report.units import (
    bytes_text,
    count_text,
    part_text,
    range_text,
    shortened,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpumagic.drawing import Cell, Part
    from gpumagic.gpu_ranks.records import RankMemory
    from gpumagic.gpu_ranks.report import RanksReport

_MOST_ODD = 3
_MOST_BARS = 4
_NEAR = 0.1  # of its limit: so little is left that one more tensor may not fit
_HOW = (
    "The peak is the most that lay in tensors at one time while the cell ran. Of each "
    "process its fullest device counts. The limit is what that device has."
)


def headline(report: RanksReport) -> str:
    """The peak in the middle, the odd one, and who comes nearest to its limit."""
    names = Names(report.seats)
    if report.unfinished:
        return unfinished_headline(report.unfinished, report.ranks, names)
    return memory_text(report, names)


def memory_text(report: RanksReport, names: Names) -> str:
    """The memory of all in a sentence."""
    of_rank = {each.name: each for each in report.memory}
    peaks = _peaks(report)
    if not peaks and not report.odd_in_memory:
        return f"no {names.noun} tells of memory: none has used a GPU"
    nearest = of_rank.get(
        -1 if report.runs_out_first is None else report.runs_out_first
    )
    middle = f"peak {bytes_text(median(peaks))} in the middle" if peaks else ""
    if report.odd_in_memory:
        runs_out = nearest is not None and nearest.name in report.odd_in_memory
        one = nearest if runs_out else of_rank.get(report.odd_in_memory[0])
        if one is not None:
            said = f"{names.at(one.name)} has {bytes_text(one.peak_bytes)}"
            return f"{middle}{'; ' if middle else ''}{said}{_below(one)}"
    if len(peaks) == 1:
        return f"peak {bytes_text(peaks[0])}{_below(report.memory[0])}"
    alike = f"{middle}, no {names.noun} stands out"
    if nearest is None:
        return f"{alike}; no limit is known"
    left = bytes_text(nearest.left_bytes)
    return f"{alike}; all stayed {left} or more below their limits"


def _peaks(report: RanksReport) -> list[int]:
    """Of all ranks; empty where only those of some are known."""
    if report.peaks_bytes:
        return [*report.peaks_bytes]
    known = [each.peak_bytes for each in report.memory if each.peak_bytes is not None]
    return [] if report.bucketed else known


def _below(one: RankMemory) -> str:
    left = one.left_bytes
    return "" if left is None else f", {bytes_text(left)} below its limit"


def parts(
    report: RanksReport, told_of_times: Callable[[RanksReport], Iterable[Part]]
) -> Iterator[Part]:
    """Bars to their limits, the odd ones in figures or by name, what to do."""
    names = Names(report.seats)
    known = [each for each in report.memory if each.peak_bytes is not None]
    odd = _odd(report)
    if known:
        yield _picture(report, known, names)
    if known:
        yield _table(report, odd, names)
    yield from _notes(report, names)
    yield from folded(report, names)
    yield from told_of_times(report)
    yield how_measured(Grid("", tuple(_facts(report, names))), Paragraph(_HOW))


def folded(report: RanksReport, names: Names) -> Iterator[Details]:
    """The memory of every rank, and what holds it."""
    if report.memory and not report.peaks_bytes:
        rows = [_Row(names.one(each.name), (each,)) for each in report.memory]
        table = Table.of("", _ALL_COLUMNS, rows)
        yield Details(f"Memory of every {names.noun}", (table,), "memory")


# --------------------------------------------------------------------------- picture


def _odd(report: RanksReport) -> list[int]:
    """The odd ones, and the one that would run out first, by what it has left."""
    odd = [*report.odd_in_memory[:_MOST_ODD]]
    if report.runs_out_first is not None and report.runs_out_first not in odd:
        odd.insert(0, report.runs_out_first)
    known = {each.name for each in report.memory}
    return [name for name in odd if name in known]


def _picture(
    report: RanksReport, known: Sequence[RankMemory], names: Names
) -> Stacks | Histogram:
    if report.peaks_bytes:
        peaks = [float(each) for each in report.peaks_bytes]
        return Histogram(f"Peaks of {len(peaks):,} ranks", peaks, bytes_text)
    odd = _odd(report)
    by_peak = sorted(known, key=lambda each: each.peak_bytes or 0)
    chosen = [each for each in by_peak if each.name in odd]
    others = [each for each in by_peak if each.name not in odd]
    chosen += [others[at] for at in (len(others) // 2, 0, -1, 1) if len(others) > 1]
    shown = list(dict.fromkeys((*chosen, *others)))[:_MOST_BARS]
    stacks = tuple(
        Stack(names.one(each.name), tuple(_pieces(each)), _text(each))
        for each in sorted(shown, key=lambda each: each.name)
    )
    some = f"{len(shown)} of {len(known)} ranks: " if len(shown) < len(known) else ""
    legend = (("in use", "at the peak"), ("free", ""))
    return Stacks(f"{some}peak and limit".capitalize(), stacks, legend)


def _pieces(one: RankMemory) -> Iterator[tuple[str, float]]:
    yield "in use", float(one.peak_bytes or 0)
    if one.left_bytes is not None:
        yield "free", float(max(one.left_bytes, 0))


def _text(one: RankMemory) -> str:
    if one.limit_bytes is None:
        return bytes_text(one.peak_bytes)
    return part_text(one.peak_bytes, one.limit_bytes)


# ----------------------------------------------------------------------------- tables


class _Row(NamedTuple):
    name: str
    ranks: tuple[RankMemory, ...]


def _ranged(heading: str, figure: Callable[[RankMemory], float | None]) -> Property:
    def told(row: _Row) -> Cell:
        known = [each for each in map(figure, row.ranks) if each is not None]
        if not known:
            return None
        return range_text(bytes_text(min(known)), bytes_text(max(known)))

    return Property(Column(heading, number=True), told)


_RANK = Property(Column("Rank"), lambda row: row.name)
_PEAK = _ranged("Peak", lambda each: each.peak_bytes)
_LEFT = _ranged("Below its limit", lambda each: each.left_bytes)
_NOW = _ranged("In use now", lambda each: each.allocated_bytes)
_RESERVED = _ranged("Reserved", lambda each: each.reserved_bytes)
_ALL_COLUMNS = (_RANK, _PEAK, _LEFT, _NOW, _RESERVED)


def _table(report: RanksReport, odd: Sequence[int], names: Names) -> Table:
    memory = report.memory
    of_rank = {each.name: each for each in memory}
    rows = [_Row(names.one(name), (of_rank[name],)) for name in odd]
    others = tuple(each for each in memory if each.name not in odd)
    if len(memory) <= 2:
        rows = [_Row(names.one(each.name), (each,)) for each in memory]
    elif others:
        # Of very many ranks there are the odd ones alone.
        word = "more odd one" if report.peaks_bytes else "other"
        rows.append(_Row(count_text(len(others), word), others))
    return Table.of("After the cell", (_RANK, _PEAK, _LEFT, _NOW, _RESERVED), rows)


# ------------------------------------------------------------------------------ notes


def _notes(report: RanksReport, names: Names) -> Iterator[Note]:
    if report.unfinished:
        yield from unfinished_notes(
            report.unfinished,
            names,
            died=report.group_died,
            in_script=is_in_script(report),
            ranks=report.ranks,
        )
        if report.memory:
            text = f"of those that finished: {memory_text(report, names)}"
            yield Note("note", text)
    yield from _failed(report, names)
    nearest = next((e for e in report.memory if e.name == report.runs_out_first), None)
    if nearest is not None and _is_near(nearest):
        hint = f"a smaller batch there; {_holders(report, nearest.name)}"
        yield Note("warning", f"{names.one(nearest.name)} would run out first", hint)
    elif report.odd_in_memory:
        text = "ranks of one job should hold about the same"
        yield Note("warning", text, _holders(report, report.odd_in_memory[0]))


def _holders(report: RanksReport, rank: int) -> str:
    """What to type to see what holds memory on a rank."""
    engine = _engine(report, rank)
    return f"{LOAD} `%px --targets {engine} %gpu_mem` tells what holds it"


def _engine(report: RanksReport, rank: int) -> int:
    """Its number among the engines; that of the rank where it is not known."""
    engine = next((e.engine for e in report.seats if e.name == rank), None)
    return rank if engine is None else engine


def _is_near(one: RankMemory) -> bool:
    """Whether little is left below its limit."""
    left, limit = one.left_bytes, one.limit_bytes
    return left is not None and limit is not None and left < _NEAR * limit


def _failed(report: RanksReport, names: Names) -> Iterator[Note]:
    ran_out = [each for each in report.memory if each.ooms]
    if ran_out:
        who = names.several([each.name for each in ran_out])
        engine = _engine(report, ran_out[0].name)
        hint = f"{LOAD} `%%px --targets {engine}` above `%gpu_mem why` tells"
        text = f"{who} ran out of memory since the process began"
        yield Note("problem", text, hint)


def _facts(report: RanksReport, names: Names) -> Iterator[tuple[str, Cell]]:
    known = len(report.peaks_bytes) or len(_peaks(report))
    yield "memory known", f"{known:,} of {count_text(report.ranks, names.noun)}"
    if report.code:
        yield "code", shortened(report.code, _MOST_CODE)


_MOST_CODE = 60
