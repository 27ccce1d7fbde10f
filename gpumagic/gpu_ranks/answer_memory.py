"""The memory of each rank: the odd one, and who would run out first."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.gpu_ranks.answers import LOAD, MANY
from gpumagic.gpu_ranks.unfinished import (
    Names,
    unfinished_headline,
    unfinished_notes,
    unfinished_table,
)
from gpumagic.report.units import (
    bytes_text,
    count_text,
    part_text,
    range_text,
    shortened,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.drawing import Note, Part, Property, Table
    from gpumagic.gpu_ranks.answer_times import RanksReport
    from gpumagic.gpu_ranks.answers import RankMemory

_MOST_ODD = 3
_MOST_BARS = 4
_NEAR = 0.1  # of its limit: so little is left that one more tensor may not fit
_HOW = (
    "The peak is the most that lay in tensors at one time while the cell ran. Of each "
    "process its fullest device counts. The limit is what that device has."
)


# ------------------------------------------------------------------------ verdict


def headline(report: RanksReport) -> str:
    """The peak in the middle, the odd one, and who comes nearest to its limit."""
    names = Names(report.seats)
    if report.unfinished:
        return unfinished_headline(report.unfinished, report.ranks, names)
    return memory_text(report, names)


def memory_text(report: RanksReport, names: Names) -> str:
    """The memory of all in a sentence."""
    of_rank = {each.name: each for each in report.memory}
    peaks = [each.peak_bytes for each in report.memory if each.peak_bytes is not None]
    if not peaks:
        return f"no {names.noun} tells of memory: none has used a GPU"
    first, odd = report.runs_out_first, report.odd_in_memory
    nearest = None if first is None else of_rank.get(first)
    middle = f"peak {bytes_text(median(peaks))} in the middle"
    if odd:
        one = of_rank[first if first in odd and first is not None else odd[0]]
        said = f"{names.at(one.name)} has {bytes_text(one.peak_bytes)}"
        return f"{middle}; {said}{_below(one)}"
    if len(peaks) == 1:
        return f"peak {bytes_text(peaks[0])}{_below(report.memory[0])}"
    left = "no limit is known"
    if nearest is not None:
        left = f"all stayed {bytes_text(nearest.left_bytes)} or more below their limits"
    return f"{middle}, no {names.noun} stands out; {left}"


def _below(one: RankMemory) -> str:
    left = one.left_bytes
    return "" if left is None else f", {bytes_text(left)} below its limit"


# ------------------------------------------------------------------------- screen


def parts(report: RanksReport) -> Iterator[Part]:
    """Bars to their limits, the odd ones in figures, what to do."""
    from gpumagic.drawing import Details, Grid, Paragraph, how_measured

    names = Names(report.seats)
    known = [each for each in report.memory if each.peak_bytes is not None]
    odd = [*report.odd_in_memory[:_MOST_ODD]]
    if report.runs_out_first is not None and report.runs_out_first not in odd:
        odd.insert(0, report.runs_out_first)
    if known:
        yield _picture(known, odd, names)
        yield _table("After the cell", _odd_rows(report.memory, odd, names))
    yield from _notes(report, names)
    every = [_Row(names.one(each.name), (each,)) for each in report.memory]
    tables = (*([_table("", every)] if every else []),)
    if tables := (*tables, *unfinished_table(report.unfinished)):
        yield Details(f"Memory of every {names.noun}", tables, "ranks")
    told = f"{len(known):,} of {count_text(report.ranks, names.noun)}"
    facts = [("memory known", told), *([("code", report.code)] if report.code else [])]
    grid = Grid("", tuple((name, shortened(each, 60)) for name, each in facts))
    yield how_measured(grid, Paragraph(_HOW))


def _picture(known: Sequence[RankMemory], odd: Sequence[int], names: Names) -> Part:
    """The odd ones, one in the middle and the ends; of very many a distribution."""
    from gpumagic.drawing import Histogram, Stack, Stacks

    if len(known) > MANY:
        peaks = [float(each.peak_bytes or 0) for each in known]
        return Histogram(f"Peaks of {len(peaks):,} ranks", peaks, bytes_text)
    by_peak = sorted(known, key=lambda each: each.peak_bytes or 0)
    others = [each for each in by_peak if each.name not in odd]
    chosen = [each for each in by_peak if each.name in odd]
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


class _Row(NamedTuple):
    name: str
    ranks: tuple[RankMemory, ...]


def _odd_rows(
    memory: Sequence[RankMemory], odd: Sequence[int], names: Names
) -> list[_Row]:
    of_rank = {each.name: each for each in memory}
    each_alone = [*of_rank] if len(memory) <= 2 else odd
    rows = [_Row(names.one(name), (of_rank[name],)) for name in each_alone]
    others = tuple(each for each in memory if each.name not in each_alone)
    if others:
        rows.append(_Row(count_text(len(others), "other"), others))
    return rows


def _table(caption: str, rows: Sequence[_Row]) -> Table:
    from gpumagic.drawing import Column, Property, Table

    def ranged(heading: str, figure: Callable[[RankMemory], int | None]) -> Property:
        def told(row: _Row) -> str | None:
            known = [each for each in map(figure, row.ranks) if each is not None]
            if not known:
                return None
            return range_text(bytes_text(min(known)), bytes_text(max(known)))

        return Property(Column(heading, number=True), told)

    properties = (
        Property(Column("Rank"), lambda row: row.name),
        ranged("Peak", lambda each: each.peak_bytes),
        ranged("Below its limit", lambda each: each.left_bytes),
        ranged("In use now", lambda each: each.allocated_bytes),
        ranged("Reserved", lambda each: each.reserved_bytes),
    )
    return Table.of(caption, properties, rows)


def _notes(report: RanksReport, names: Names) -> Iterator[Note]:
    from gpumagic.drawing import Note

    if report.unfinished:
        yield from unfinished_notes(
            report.unfinished,
            names,
            died=report.group_died,
            in_script=report.in_script,
            restart=report.restart,
        )
        if report.memory:
            text = f"of those that finished: {memory_text(report, names)}"
            yield Note("note", text)
    if ran_out := [each.name for each in report.memory if each.ooms]:
        text = f"{names.several(ran_out)} ran out of memory since the process began"
        yield Note("problem", text, _asks(report, ran_out[0], "%gpu_mem why", "why"))
    nearest = next((e for e in report.memory if e.name == report.runs_out_first), None)
    if nearest is not None and _is_near(nearest):
        hint = _asks(report, nearest.name, "%gpu_mem", "what holds it")
        text = f"{names.one(nearest.name)} would run out first"
        yield Note("warning", text, f"a smaller batch there; {hint}")
    elif report.odd_in_memory:
        hint = _asks(report, report.odd_in_memory[0], "%gpu_mem", "what holds it")
        yield Note("warning", "ranks of one job should hold about the same", hint)


def _asks(report: RanksReport, rank: int, magic: str, what: str) -> str:
    """What to type to ask one rank alone."""
    engines = {each.name: each.engine for each in report.seats}
    engine = engines.get(rank)
    target = rank if engine is None else engine
    return f"{LOAD} `%%px --targets {target}` above `{magic}` tells {what}"


def _is_near(one: RankMemory) -> bool:
    """Whether little is left below its limit."""
    left, limit = one.left_bytes, one.limit_bytes
    return left is not None and limit is not None and left < _NEAR * limit
