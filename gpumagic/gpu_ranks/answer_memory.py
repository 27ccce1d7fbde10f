"""The memory of each rank: the odd one, and who would run out first."""

from __future__ import annotations

from statistics import median
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
from gpumagic.gpu_open import view_shares
from gpumagic.gpu_ranks import unfinished as words
from gpumagic.gpu_ranks.answers import LOAD, MANY
from gpumagic.report.units import bytes_text, count_text, part_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

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


# ------------------------------------------------------------------------ verdict


def headline(report: RanksReport) -> str:
    """The peak in the middle, the odd one, and who comes nearest to its limit."""
    names = words.Names(report.seats)
    if report.unfinished:
        return words.unfinished_headline(report.unfinished, report.ranks, names)
    return memory_text(report, names)


def memory_text(report: RanksReport, names: Names) -> str:
    """The memory of all in a sentence."""
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


# ------------------------------------------------------------------------- screen


def parts(report: RanksReport) -> Iterator[Part]:
    """Bars to their limits, the odd ones in figures, what to do."""
    names, memory = words.Names(report.seats), report.memory
    known = [each for each in memory if each.peak_bytes is not None]
    odd = [*report.odd_in_memory[:_MOST_ODD]]
    if report.runs_out_first is not None and report.runs_out_first not in odd:
        odd.insert(0, report.runs_out_first)
    folded = [*words.unfinished_table(report.unfinished)]
    if known:
        yield _picture(known, odd, names)
        alone = [each for each in memory if each.name in odd or len(memory) <= 2]
        rows = [*_each(alone, names)]
        if others := tuple(each for each in memory if each not in alone):
            rows.append(_Row(count_text(len(others), "other"), others))
        yield _table("After the cell", rows)
    if memory:
        folded.insert(0, _table("", _each(memory, names)))
    yield from _notes(report, names)
    if folded:
        yield Details(f"Memory of every {names.noun}", tuple(folded), "ranks")
    told = f"{len(known):,} of {count_text(report.ranks, names.noun)}"
    yield how_measured(Grid("", (("memory known", told),)), Paragraph(_HOW))


def _picture(known: Sequence[RankMemory], odd: Sequence[int], names: Names) -> Part:
    """The odd ones and the fullest of the others; of very many a distribution."""
    if len(known) > MANY:
        peaks = [float(each.peak_bytes or 0) for each in known]
        return Histogram(f"Peaks of {len(peaks):,} ranks", peaks, bytes_text)
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
    some = f"{len(shown)} of {len(known)} ranks: " if len(shown) < len(known) else ""
    legend = (("in use", "at the peak"), ("free", ""))
    return Stacks(f"{some}peak and limit".capitalize(), stacks, legend)


class _Row(NamedTuple):
    name: str
    shares: tuple[RankMemory, ...]


def _each(memory: Iterable[RankMemory], names: Names) -> Iterator[_Row]:
    return (_Row(names.one(each.name), (each,)) for each in memory)


def _table(caption: str, rows: Iterable[_Row]) -> Table:
    ranged = view_shares.ranged
    properties = (
        Property(Column("Rank"), lambda row: row.name),
        ranged("Peak", lambda each: each.peak_bytes, bytes_text),
        ranged("Below its limit", lambda each: each.left_bytes, bytes_text),
        ranged("In use now", lambda each: each.allocated_bytes, bytes_text),
        ranged("Reserved", lambda each: each.reserved_bytes, bytes_text),
    )
    return Table.of(caption, properties, rows)


def _notes(report: RanksReport, names: Names) -> Iterator[Note]:
    if report.unfinished:
        yield from words.unfinished_notes(
            report.unfinished,
            names,
            in_script=report.in_script,
            restart=report.restart,
        )
        if report.memory:
            text = f"of those that finished: {memory_text(report, names)}"
            yield Note("note", text)
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
    engine = next((each.engine for each in report.seats if each.name == rank), None)
    target = rank if engine is None else engine
    return f"{LOAD} `%%px --targets {target}` above `{magic}` tells {what}"


def _is_near(one: RankMemory) -> bool:
    """Whether little is left below its limit."""
    left, limit = one.left_bytes, one.limit_bytes
    return left is not None and limit is not None and left < _NEAR * limit
