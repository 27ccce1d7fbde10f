"""What each rank did with its time, as bars and in figures: the odd ones and the rest.

Ranks that were recorded and ranks that run are told alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.cuda_sync_time.view_busy import COMMUNICATION, FOR_OTHERS
from gpumagic.drawing import Column, Property, Stack, Stacks, Table
from gpumagic.report.robust import median
from gpumagic.report.units import count_text, range_text, seconds_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpumagic.drawing import Cell

OWN = "kernel"
_MOST_ODD = 2
_EACH = 2  # ranks: so many have a row each
_ODD = 1.1  # times the median of all, or as much below it

WAITS = (
    "The rank that came last to a collective waits for nobody: its duration is the "
    "transfer. What others spent beyond it, doing nothing else, is waiting."
)
OWN_WORK = "Own work is the rest of the time, in which the GPU may have been idle."
BLAMED = "Others waited: of each collective for which it came last, the longest wait."

IN = {
    "input": "in its input",
    "optimizer": "in the optimizer",
    "host late": "as its host was late",
}
HINTS = {
    "input": "`%pin_loader LOADER` on its machine; compare disk and CPU with another",
    "host late": "compare its CPU with another's: other processes, threads, clock",
}
IN_TURN = "now one rank is late, now another, and all wait for it"
HINT_IN_TURN = "give all ranks batches of one size: sort or bucket by length"

# A rank with `own_s`, `waits_s`, `moves_s`, and `blamed_s`: how long others waited.
Share = Any


def _odd_ones(shares: Sequence[Share], slow: Share | None) -> list[Share]:
    """The ranks that are unlike the others: the slowest, then the most blamed."""
    usual_s = median([each.own_s for each in shares])
    odd = [
        each
        for each in shares
        if not usual_s / _ODD <= each.own_s <= usual_s * _ODD or each is slow
    ]
    odd.sort(key=lambda each: (each is not slow, -each.blamed_s))
    # Where most are unlike the median, none of them is odd.
    return (odd if 2 * len(odd) <= len(shares) else odd[:1])[:_MOST_ODD]


def in_sight(shares: Sequence[Share], slow: Share | None, most: int) -> list[Share]:
    """The odd ones, then of the others one in the middle, and the ends."""
    odd = _odd_ones(shares, slow)
    others = [each for each in shares if each not in odd]
    others.sort(key=lambda each: each.own_s)
    middle = len(others) // 2
    of_others = (others[at] for at in (middle, 0, -1, middle // 2) if others)
    chosen = list(dict.fromkeys((*odd, *of_others)))[:most]
    return [each for each in shares if each in chosen]


# ------------------------------------------------------------------------ figures


class Row(NamedTuple):
    """A rank, or several that are told as one."""

    name: str
    shares: tuple[Share, ...]


def odd_rows(
    shares: Sequence[Share], slow: Share | None, name: Callable[[Any], str]
) -> list[Row]:
    """The odd ones each, and all others as a range; a few ranks each."""
    odd = _odd_ones(shares, slow)
    others = [each for each in shares if each not in odd]
    if len(shares) <= _EACH:
        odd, others = [*odd, *others], []
    rows = [Row(name(each), (each,)) for each in odd]
    if others:
        called = count_text(len(others), "other" if odd else "rank")
        rows.append(Row(called, tuple(others)))
    return rows


def ranged(
    heading: str,
    figure: Callable[[Any], float | None],
    text: Callable[[float], str] = seconds_text,
) -> Property:
    """A column of a figure; of several ranks, from the least to the most."""

    def told(row: Row) -> Cell:
        known = [each for each in map(figure, row.shares) if each is not None]
        return range_text(text(min(known)), text(max(known))) if known else None

    return Property(Column(heading, number=True), told)


def table(
    caption: str,
    rows: Iterable[Row],
    *further: Property,
    moves_known: bool = True,
    at_least: bool = False,
) -> Table:
    """What ranks did with their time, in figures."""
    limit = " at least" * at_least + " at most" * (not moves_known)
    columns = [
        Property(Column("Rank"), lambda row: row.name),
        ranged("Own work", lambda each: each.own_s),
        ranged(f"Waits{limit}", lambda each: each.waits_s),
        ranged("Moves", lambda each: each.moves_s),
        ranged("Others waited", lambda each: each.blamed_s),
    ]
    if not moves_known:
        del columns[3]
    return Table.of(caption, (*columns, *further), rows)


# ----------------------------------------------------------------------- pictures


def bars(
    caption: str, shares: Iterable[tuple[str, Share, float]], own: str = OWN
) -> Stacks:
    """A bar for each rank, where no clock says what was when."""
    stacks = tuple(
        Stack(
            name,
            (
                (own, each.own_s),
                (FOR_OTHERS, each.waits_s),
                (COMMUNICATION, each.moves_s),
            ),
            seconds_text(length_s),
        )
        for name, each, length_s in shares
    )
    legend = (
        (own, "own work" * (own == OWN)),
        (FOR_OTHERS, ""),
        (COMMUNICATION, "data moves"),
    )
    return Stacks(caption, stacks, legend)
