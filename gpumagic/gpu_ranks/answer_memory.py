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
    if not report.memory:
        return f"no {names.noun} has used a GPU that tells its memory"
    peaks = [each.peak_bytes for each in report.memory]
    first = min(report.memory, key=lambda each: each.left_bytes)
    left = bytes_text(first.left_bytes)
    if len(peaks) == 1:
        return f"peak {bytes_text(first.peak_bytes)}, {left} below its limit"
    middle = f"peak {bytes_text(median(peaks))} in the middle"
    odd = [each for each in report.memory if each.name in report.odd_in_memory]
    if not odd:
        none = f"no {names.noun} stands out"
        return f"{middle}, {none}; all stayed {left} or more below their limits"
    one = min(odd, key=lambda each: each.left_bytes)
    has = f"{names.at(one.name)} has {bytes_text(one.peak_bytes)}"
    return f"{middle}; {has}, {bytes_text(one.left_bytes)} below its limit"


def memory_parts(report: RanksReport, names: Names) -> Iterator[Part]:
    """Bars to their limits, and the odd ones in figures."""
    memory = report.memory
    odd = [report.runs_out_first, *report.odd_in_memory[:_MOST_ODD]]
    if memory:
        yield _picture(memory, odd, names)
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


def _picture(
    memory: Sequence[RankMemory], odd: Sequence[int | None], names: Names
) -> Part:
    """The odd ones and the fullest of the others."""
    ordered = sorted(memory, key=lambda e: (e.name not in odd, -e.peak_bytes))
    shown = sorted(ordered[:_MOST_BARS], key=lambda each: each.name)
    stacks = tuple(
        Stack(
            names.one(each.name),
            (
                ("in use", float(each.peak_bytes)),
                ("free", float(max(each.left_bytes, 0))),
            ),
            part_text(each.peak_bytes, each.limit_bytes),
        )
        for each in shown
    )
    which = f"{len(shown)} of {count_text(len(memory), names.noun)}"
    legend = (("in use", "at the peak"), ("free", ""))
    return Stacks(f"{which}: peak and limit", stacks, legend)


def memory_notes(report: RanksReport, names: Names) -> Iterator[Note]:
    """Who would run out first, else who is odd."""
    first = min(report.memory, key=lambda each: each.left_bytes, default=None)
    if first and first.left_bytes < _NEAR * first.limit_bytes:
        text = f"{names.one(first.name)} would run out first"
        hint = f"a smaller batch there; {_asks(report, first.name)}"
        yield Note("warning", text, hint)
    elif report.odd_in_memory:
        text = "ranks of one job should hold about the same"
        yield Note("warning", text, _asks(report, report.odd_in_memory[0]))


def _asks(report: RanksReport, rank: int) -> str:
    """What to type to ask one rank alone."""
    engines = {e.name: e.engine for e in report.seats if e.engine is not None}
    target = engines.get(rank, rank)
    return f"{LOAD} `%%px --targets {target}` above `%gpu_mem` tells what holds it"


def how_memory_is_known(report: RanksReport, names: Names) -> Part:
    """Of how many it is known, and what the figures mean."""
    told = f"{len(report.memory):,} of {count_text(report.ranks, names.noun)}"
    return how_measured(Grid("", (("memory known", told),)), Paragraph(_HOW))
