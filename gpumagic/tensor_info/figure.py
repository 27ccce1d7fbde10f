"""Lays out how a tensor is indexed, how it lies in memory, and where several meet.

A number is a place in the storage, in elements, and a colour is the index along the
slowest dim that moves.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.drawing.tiles import (
    BLANK,
    MORE,
    SKIPPED,
    UNDECIDED,
    UNUSED,
    Figure,
    Matrix,
    Row,
    Tile,
)
from gpumagic.report.units import listed
from gpumagic.tensor_info.axes import windows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpumagic.tensor_info.axes import VisibleTensor

_MOST_PAGES = 3
_MOST_UNUSED = 3  # a longer run of unused places is one tile with its length
_MOST_PLACES = 32
_TIMES = "\N{MULTIPLICATION SIGN}"


def index_panel(visible: VisibleTensor) -> Figure:
    """The elements of up to three dims by index, each with its place in the storage."""
    pages: list[tuple[int, ...]] = [()]
    remarks = []
    if len(visible.axes) > 2:
        outer = visible.axes[0]
        pages = [(page,) for page in range(min(outer.size, _MOST_PAGES))]
        if outer.size > _MOST_PAGES:
            remarks.append(f"{outer.name}: {outer.size - _MOST_PAGES:,} more not drawn")
    band = tuple(_matrix(visible, page) for page in pages)
    looks = {tile.look for each in band for row in each.rows for tile in row.tiles}
    keys = [*_first_to_change(visible)]
    if "ghost" in looks:
        keys.append("=: an element that was drawn already")
    caption = "Each index with its place in memory, in elements"
    return Figure(caption, (band,), (*keys, *remarks))


def _matrix(visible: VisibleTensor, page: tuple[int, ...]) -> Matrix:
    plane = visible.axes[-2:]
    lists = [visible.shown(axis) for axis in plane]
    right = lists[-1] if lists else (0,)
    rows = []
    for at in lists[0] if len(lists) == 2 else (-1,):
        start = page if at in {None, -1} else (*page, at)
        tiles = tuple(
            SKIPPED
            if each is None or at is None
            else _index_tile(visible, (*start, each) if plane else start)
            for each in right
        )
        rows.append(Row({None: "...", -1: ""}.get(at, str(at)), tiles))
    return Matrix(
        "" if page else " \\ ".join(axis.name for axis in plane),
        tuple("..." if at is None else str(at) for at in right) if plane else ("",),
        tuple(rows),
        f"{visible.axes[0].name} = {page[0]}" if page else "",
    )


def _index_tile(visible: VisibleTensor, index: tuple[int, ...]) -> Tile:
    place = visible.places.place(index)
    if visible.is_ghost(index):
        return Tile(f"={place}", "ghost")
    landing = None if visible.places.nested else visible.places.landing(place)
    is_shared = landing is not None and landing.times > 1
    return Tile(str(place), "shared" if is_shared else "used", visible.fill(index))


def _first_to_change(visible: VisibleTensor) -> Iterator[str]:
    fastest = visible.fastest
    if fastest is not None:
        yield f"from place to place, {fastest.name} changes first"


class _Column(NamedTuple):
    """A column of the strip: its place (None for a run of places), and its tiles."""

    place: int | None
    tile: Tile
    times: Tile = BLANK


def memory_strip(
    visible: VisibleTensor, marks: Mapping[int, str] | None = None
) -> Figure:
    """The storage in the order of addresses.

    `marks` are places that must be seen besides the telling ones, with a word each.
    """
    places, marks = visible.places, marks or {}
    around = tuple(at for at in marks if places.first <= at <= places.last)
    columns = tuple(_columns(visible, around))
    rows = [Row("index", tuple(each.tile for each in columns))]
    times = tuple(each.times for each in columns)
    if any(tile is not BLANK for tile in times):
        rows.append(Row("times", times))
    if marks:
        said = (marks.get(-1 if c.place is None else c.place) for c in columns)
        walk = tuple(Tile(word, "blank") if word else BLANK for word in said)
        rows.append(Row("walk", walk))
    heads = tuple("" if each.place is None else str(each.place) for each in columns)
    caption = "Memory: the places in their order, each with the index that lies there"
    keys = tuple(_strip_keys(visible, columns))
    return Figure(caption, ((Matrix("place", heads, tuple(rows)),),), keys)


def _columns(visible: VisibleTensor, around: tuple[int, ...]) -> Iterator[_Column]:
    runs = windows(visible, around)
    yield from _unused(visible, 0, runs[0][0], "before")
    for number, run in enumerate(runs):
        if number:
            left_out = run[0] - runs[number - 1][-1] - 1
            yield _Column(None, Tile(f"... {left_out:,} el ...", "skip"))
        yield _used(visible, run[0])
        for before, place in pairwise(run):
            yield from _unused(visible, before + 1, place)
            yield _used(visible, place)
    if visible.stored is not None:
        yield from _unused(visible, runs[-1][-1] + 1, visible.stored, "after")


def _used(visible: VisibleTensor, place: int) -> _Column:
    landing = visible.places.landing(place)
    if landing is None or not landing.times:
        return _Column(place, UNUSED if landing is None else UNDECIDED)
    is_shared = landing.times > 1 and not visible.places.nested
    label, fill = visible.label(landing.index), visible.fill(landing.index)
    tile = Tile(label, "shared" if is_shared else "used", fill)
    if landing.times == 1:
        return _Column(place, tile)
    more = "+" if landing.at_least else ""
    return _Column(place, tile, Tile(f"{_TIMES}{landing.times:,}{more}", "blank"))


def _unused(
    visible: VisibleTensor, start: int, stop: int, where: str = ""
) -> Iterator[_Column]:
    """The places from `start` up to `stop`, where no element lies."""
    count = stop - start
    if count > _MOST_UNUSED:
        said = f"{count:,} el = {count * visible.itemsize:,} B {where}".rstrip()
        yield _Column(None, Tile(said, "gap"))
    else:
        yield from (_Column(place, UNUSED) for place in range(start, stop))


def _strip_keys(visible: VisibleTensor, columns: tuple[_Column, ...]) -> Iterator[str]:
    looks = {each.tile.look for each in columns}
    yield from _first_to_change(visible)
    if len(visible.axes) > 4:
        yield "#n: element number n in the order of indices"
    marks = {"unused": UNUSED.text, "gap": "a size in place of an index"}
    if known := [mark for look, mark in marks.items() if look in looks]:
        yield f"{listed(known, ' or ')}: no element of this tensor"
    if any(each.tile is UNDECIDED for each in columns):
        yield "?: whether an element lies here would take long to find out"
    if any(each.times is not BLANK for each in columns):
        yield f"{_TIMES}n: n indices land on this place"


class Lane(NamedTuple):
    """A tensor, its name, and the byte at which place 0 of its storage lies."""

    name: str
    visible: VisibleTensor
    start_byte: int

    @property
    def first_byte(self) -> int:
        """Where its lowest element begins."""
        return self.start_byte + self.visible.places.first * self.visible.itemsize

    @property
    def last_byte(self) -> int:
        """Where its highest element ends; exclusive."""
        past = self.visible.places.last + 1
        return self.start_byte + past * self.visible.itemsize


def few_places(lanes: Sequence[Lane]) -> bool:
    """Whether each place of the memory can have a tile."""
    first, last, unit = _extent(lanes)
    whole = all((lane.start_byte - first) % unit == 0 for lane in lanes)
    return whole and (last - first) // unit <= _MOST_PLACES


def lane_cells(lanes: Sequence[Lane]) -> Figure:
    """A lane for each tensor, and how many of them have an element at each place."""
    first, last, unit = _extent(lanes)
    starts = range(first, last, unit)
    rows = [
        Row(lane.name, tuple(_lane_tile(lane, at) for at in starts)) for lane in lanes
    ]
    holders = [
        sum(row.tiles[at].look in ("used", "more") for row in rows)
        for at in range(len(starts))
    ]
    in_bytes = len({lane.visible.itemsize for lane in lanes}) > 1
    heads = tuple(str(at if in_bytes else at // unit) for at in starts)
    shared = (Tile(f"{_TIMES}{n}", "skip") if n > 1 else BLANK for n in holders)
    all_rows = (*rows, Row("shared", tuple(shared)))
    held = sum(n > 1 for n in holders)
    keys = []
    if any(tile.look == "unused" for row in rows for tile in row.tiles):
        left_out = "a place between its elements that the tensor leaves out"
        keys.append(f"{UNUSED.text}: {left_out}")
    if in_bytes:
        keys.append(f"{MORE.text}: the element to the left goes on")
    shares = "hold elements of more than one tensor"
    keys.append(f"{held} of {len(holders)} places, {unit} B each, {shares}")
    caption = "One memory: each place with the index that lands there, tensor by tensor"
    matrix = Matrix("byte" if in_bytes else "place", heads, all_rows)
    return Figure(caption, ((matrix,),), tuple(keys))


def _extent(lanes: Sequence[Lane]) -> tuple[int, int, int]:
    """The first and the last byte, and how many bytes a place is."""
    return (
        min(lane.first_byte for lane in lanes),
        max(lane.last_byte for lane in lanes),
        min(lane.visible.itemsize for lane in lanes),
    )


def _lane_tile(lane: Lane, byte: int) -> Tile:
    if not lane.first_byte <= byte < lane.last_byte:
        return BLANK
    place, within = divmod(byte - lane.start_byte, lane.visible.itemsize)
    landing = lane.visible.places.landing(place)
    if landing is None or not landing.times:
        return UNUSED if landing is None else UNDECIDED
    if within:
        return MORE
    times = f" {_TIMES}{landing.times}" if landing.times > 1 else ""
    label = lane.visible.label(landing.index)
    return Tile(f"{label}{times}", "used", lane.visible.fill(landing.index))
