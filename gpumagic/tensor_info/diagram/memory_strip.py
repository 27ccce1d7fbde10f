"""How a tensor lies: places in the order of addresses, with who lands there."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from gpumagic.tensor_info.diagram.figure import Figure
from gpumagic.tensor_info.diagram.steps import elements_text
from gpumagic.tensor_info.diagram.tiles import (
    BLANK,
    UNDECIDED,
    UNUSED,
    Hop,
    Key,
    Matrix,
    Row,
    Tile,
)
from gpumagic.tensor_info.diagram.windows import windows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpumagic.tensor_info.diagram.places import Landing
    from gpumagic.tensor_info.diagram.sight import Sight
    from gpumagic.tensor_info.diagram.tiles import Look

# A longer run of unused places is one tile with its length.
_MOST_UNUSED = 3

_MOST_HOPS = 3

# A column of the strip: its place (None for a run of places), and its two tiles.
Column = tuple[int | None, Tile, Tile]


def memory_strip(sight: Sight, marks: Mapping[int, str] | None = None) -> Figure:
    """The storage in the order of addresses.

    Args:
        sight: What is drawn.

        marks: Places that must be seen besides the telling ones, with a word each.
    """
    places, marks = sight.places, marks or {}
    around = tuple(at for at in marks if places.first <= at <= places.last)
    columns = tuple(_columns(sight, around))
    rows = [Row("index", tuple(tile for _, tile, _ in columns))]
    times = tuple(tile for _, _, tile in columns)
    if any(tile is not BLANK for tile in times):
        rows.append(Row("times", times))
    if marks:
        rows.append(Row("walk", tuple(_marked(marks, place) for place, *_ in columns)))
    matrix = Matrix(
        "place",
        tuple("" if place is None else str(place) for place, _, _ in columns),
        tuple(rows),
        hops=tuple(_hops(sight, columns)),
    )
    return Figure(
        "In memory: the places in the order of addresses, each with its index",
        ((matrix,),),
        keys=tuple(_keys(sight, columns)),
    )


def _marked(marks: Mapping[int, str], place: int | None) -> Tile:
    word = "" if place is None else marks.get(place, "")
    return Tile(word, "blank") if word else BLANK


def _columns(sight: Sight, around: tuple[int, ...]) -> Iterator[Column]:
    runs = windows(sight, around)
    yield from _unused(sight, 0, runs[0][0], "before")
    for number, run in enumerate(runs):
        if number:
            left_out = run[0] - runs[number - 1][-1] - 1
            yield None, Tile(f"... {left_out:,} el ...", "skip"), BLANK
        yield _used(sight, run[0])
        for before, place in pairwise(run):
            yield from _unused(sight, before + 1, place)
            yield _used(sight, place)
    if sight.stored is not None:
        yield from _unused(sight, runs[-1][-1] + 1, sight.stored, "after")


def _used(sight: Sight, place: int) -> Column:
    landing = sight.places.landing(place)
    if landing is None:
        return place, UNUSED, BLANK
    if not landing.times:
        return place, UNDECIDED, BLANK
    shared = landing.times > 1 and not sight.places.nested
    look: Look = "shared" if shared else "used"
    tile = Tile(sight.label(landing.index), look, sight.fill(landing.index))
    return place, tile, _times(landing)


def _times(landing: Landing) -> Tile:
    if landing.times == 1:
        return BLANK
    more = "+" if landing.at_least else ""
    return Tile(f"\N{MULTIPLICATION SIGN}{landing.times:,}{more}", "blank")


def _unused(sight: Sight, start: int, stop: int, where: str = "") -> Iterator[Column]:
    """The places from `start` up to `stop`, where no element lies."""
    count = stop - start
    if count > _MOST_UNUSED:
        said = f"{elements_text(count, sight.itemsize)} {where}".rstrip()
        yield None, Tile(said, "gap"), BLANK
        return
    for place in range(start, stop):
        yield place, UNUSED, BLANK


def _hops(sight: Sight, columns: tuple[Column, ...]) -> Iterator[Hop]:
    """One step along each axis from the element at index 0, where both are drawn."""
    at = {place: number for number, (place, _, _) in enumerate(columns)}
    start = sight.places.offset
    for axis in sight.axes[-_MOST_HOPS:]:
        stop = start + axis.step
        if axis.size > 1 and axis.step and start in at and stop in at:
            yield Hop(at[start], at[stop], axis.name)


def _keys(sight: Sight, columns: tuple[Column, ...]) -> Iterator[str | Key]:
    looks = {tile.look for _, tile, _ in columns}
    fastest = sight.fastest
    if fastest is not None:
        change = "changes" if len(fastest.dims) == 1 else "change"
        yield f"from place to place, {fastest.name} {change} first"
    if len(sight.axes) > 4:
        yield "#n: element number n in the order of indices"
    if looks & {"unused", "gap"}:
        yield _none_here(looks)
    if any(tile is UNDECIDED for _, tile, _ in columns):
        yield "?: whether an element lies here would take long to find out"
    if any(tile is not BLANK for _, _, tile in columns):
        yield "\N{MULTIPLICATION SIGN}n: n indices land on this place"


def _none_here(looks: set[Look]) -> Key:
    """What a place without an element looks like."""
    marks = {"unused": UNUSED.text, "gap": "a size in place of an index"}
    spelled = " or ".join(mark for look, mark in marks.items() if look in looks)
    return Key(*(f"{each}: no element of this tensor" for each in ("hatched", spelled)))
