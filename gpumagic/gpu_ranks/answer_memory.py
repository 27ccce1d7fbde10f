"""The memory of each rank: the odd one, and who would run out first."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from gpumagic.drawing import (
    Column,
    Grid,
    Note,
    Paragraph,
    Property,
    Stack,
    Stacks,
    Table,
    how_measured,
)
from gpumagic.drawing.document import MOST_ROWS
from gpumagic.gpu_open.view_shares import Row, ranged
from gpumagic.gpu_ranks.answers import LOAD
from gpumagic.report.units import bytes_text, count_text, part_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.drawing import Part
    from gpumagic.gpu_ranks.answer_times import RanksReport
    from gpumagic.gpu_ranks.answers import RankMemory
    from gpumagic.gpu_ranks.unfinished import Names

_MOST_ODD = 3
_MOST_BARS = 4
_NEAR = 0.1  # of its limit: so little is left that one more tensor may not fit
_HOW = (
    "The peak is the most that lay in tensors at one time while the cell ran. Of each "
    "process its fullest device counts. The limit is what that device has."
)


def memory_text(report: RanksReport, names: Names) -> str:
    """The peak in the middle, the odd one, and who comes nearest to its limit."""
    of_rank = {each.name: each for each in report.memory}
    peaks = [each.peak_bytes for each in report.memory if each.peak_bytes is not None]
    if not peaks:
        return f"no {names.noun} tells of memory: none has used a GPU"
    first, odd = report.runs_out_first, report.odd_in_memory
    middle = f"peak {bytes_text(median(peaks))} in the middle"
    if odd:
        one = of_rank[first if first in odd and first is not None else odd[0]]
        said = f"{names.at(one.name)} has {bytes_text(one.peak_bytes)}"
        return f"{middle}; {said}{_below(one)}"
    if len(peaks) == 1:
        return f"peak {bytes_text(peaks[0])}{_below(report.memory[0])}"
    left = "no limit is known"
    if first in of_rank:
        least = bytes_text(of_rank[first].left_bytes)
        left = f"all stayed {least} or more below their limits"
    return f"{middle}, no {names.noun} stands out; {left}"


def _below(one: RankMemory) -> str:
    left = one.left_bytes
    return "" if left is None else f", {bytes_text(left)} below its limit"


def memory_parts(report: RanksReport, names: Names) -> Iterator[Part]:
    """Bars to their limits, and the odd ones in figures."""
    memory = report.memory
    known = [each for each in memory if each.peak_bytes is not None]
    odd = [*report.odd_in_memory[:_MOST_ODD]]
    if report.runs_out_first is not None and report.runs_out_first not in odd:
        odd.insert(0, report.runs_out_first)
    if known:
        yield _picture(known, odd, names)
        alone = [e for e in memory if e.name in odd or len(memory) <= MOST_ROWS]
        rows = [Row(names.one(each.name), (each,)) for each in alone]
        if others := tuple(each for each in memory if each not in alone):
            rows.append(Row(count_text(len(others), "other"), others))
        properties = (
            Property(Column("Rank"), lambda row: row.name),
            ranged("Peak", lambda each: each.peak_bytes, bytes_text),
            ranged("Below its limit", lambda each: each.left_bytes, bytes_text),
        )
        yield Table.of("After the cell", properties, rows)


def _picture(known: Sequence[RankMemory], odd: Sequence[int], names: Names) -> Part:
    """The odd ones and the fullest of the others."""
    ordered = sorted(known, key=lambda e: (e.name not in odd, -(e.peak_bytes or 0)))
    shown = sorted(ordered[:_MOST_BARS], key=lambda each: each.name)
    stacks = tuple(
        Stack(
            names.one(each.name),
            (
                ("in use", float(each.peak_bytes or 0)),
                ("free", float(max(each.left_bytes or 0, 0))),
            ),
            part_text(each.peak_bytes, each.limit_bytes),
        )
        for each in shown
    )
    some = f"{len(shown)} of {len(known):,} ranks: " if len(shown) < len(known) else ""
    legend = (("in use", "at the peak"), ("free", ""))
    return Stacks(f"{some}peak and limit".capitalize(), stacks, legend)


def memory_notes(report: RanksReport, names: Names) -> Iterator[Note]:
    """Who would run out first, else who is odd."""
    first = next((e for e in report.memory if e.name == report.runs_out_first), None)
    if first is not None and (first.left_bytes or 0) < _NEAR * (first.limit_bytes or 0):
        text = f"{names.one(first.name)} would run out first"
        hint = f"a smaller batch there; {_asks(report, first.name)}"
        yield Note("warning", text, hint)
    elif report.odd_in_memory:
        text = "ranks of one job should hold about the same"
        yield Note("warning", text, _asks(report, report.odd_in_memory[0]))


def _asks(report: RanksReport, rank: int) -> str:
    """What to type to ask one rank alone."""
    engine = next((each.engine for each in report.seats if each.name == rank), None)
    target = rank if engine is None else engine
    return f"{LOAD} `%%px --targets {target}` above `%gpu_mem` tells what holds it"


def how_memory_is_known(report: RanksReport, names: Names) -> Part:
    """Of how many it is known, and what the figures mean."""
    known = sum(each.peak_bytes is not None for each in report.memory)
    told = f"{known:,} of {count_text(report.ranks, names.noun)}"
    return how_measured(Grid("", (("memory known", told),)), Paragraph(_HOW))
