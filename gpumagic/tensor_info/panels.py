"""Lays out how a tensor is indexed, how it lies in memory, and where several meet.

A number is a place in the storage, in elements, and a colour is the index along the
slowest dim that moves.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.tensor_info.figure import Figure
from gpumagic.tensor_info.picture import (
    BLANK,
    ELLIPSIS,
    MORE,
    SKIPPED,
    UNDECIDED,
    UNUSED,
    Hop,
    Key,
    Matrix,
    Row,
    Tile,
)
from gpumagic.tensor_info.sentences import elements_text
from gpumagic.tensor_info.visible_axes import windows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpumagic.tensor_info.picture import Look
    from gpumagic.tensor_info.visible_axes import Landing, VisibleTensor

_MOST_PAGES = 3
_MOST_TILE_ROWS, _MOST_TILE_COLUMNS = 2, 3
Prefix = tuple[int, ...]

# A longer run of unused places is one tile with its length.
_MOST_UNUSED = 3
_MOST_HOPS = 3

# A column of the strip: its place (None for a run of places), and its two tiles.
Column = tuple[int | None, Tile, Tile]
_MOST_PLACES = 32


def index_panel(visible: VisibleTensor) -> Figure:
    """The elements by index, each with its place in the storage."""
    bands = tuple(_bands(visible))
    return Figure(
        "Each index with its place in memory, in elements",
        bands,
        keys=tuple(_index_keys(visible, bands)),
        remarks=tuple(_remarks(visible)),
    )


def _bands(visible: VisibleTensor) -> Iterator[tuple[Matrix, ...]]:
    """Rows of matrices: one, or pages, or blocks of blocks."""
    held = (0,) * len(visible.held)
    outer = visible.drawn[:-2]
    if not outer:
        yield (_matrix(visible, held),)
    elif len(outer) == 1:
        pages = range(min(outer[0].size, _MOST_PAGES))
        yield tuple(_matrix(visible, (*held, page)) for page in pages)
    else:
        down, right = (axis.size for axis in outer)
        for block in range(min(down, _MOST_TILE_ROWS)):
            columns = range(min(right, _MOST_TILE_COLUMNS))
            yield tuple(_matrix(visible, (*held, block, each)) for each in columns)


def _matrix(visible: VisibleTensor, prefix: Prefix) -> Matrix:
    plane = visible.drawn[-2:]
    lists = [visible.shown(axis) for axis in plane]
    down = lists[0] if len(lists) == 2 else (None,)
    right = lists[-1] if lists else (None,)
    return Matrix(
        _corner(visible),
        tuple(_head(at) for at in right) if plane else ("",),
        tuple(_row(visible, prefix, at, right) for at in down),
        _title(visible, prefix),
        tuple(_hop(right)),
        down=len(lists) == 2 and len(down) > 1,
    )


def _row(
    visible: VisibleTensor,
    prefix: Prefix,
    at: int | None,
    right: tuple[int | None, ...],
) -> Row:
    if not visible.drawn:
        return Row("", (_index_tile(visible, prefix),))
    if len(visible.drawn) > 1 and at is None:
        return Row(ELLIPSIS, (SKIPPED,) * len(right))
    start = prefix if at is None else (*prefix, at)
    tiles = (
        SKIPPED if each is None else _index_tile(visible, (*start, each))
        for each in right
    )
    return Row("" if at is None else str(at), tuple(tiles))


def _index_tile(visible: VisibleTensor, index: Prefix) -> Tile:
    place = visible.places.place(index)
    if visible.is_ghost(index):
        return Tile(f"={place}", "ghost")
    landing = None if visible.places.nested else visible.places.landing(place)
    look: Look = "shared" if landing and landing.times > 1 else "used"
    return Tile(str(place), look, visible.fill(index))


def _corner(visible: VisibleTensor) -> str:
    """Which dims the two headings are, where one matrix is all there is."""
    few = visible.drawn if len(visible.drawn) < 3 else ()
    return " \\ ".join(axis.name for axis in few)


def _head(at: int | None) -> str:
    return ELLIPSIS if at is None else str(at)


def _hop(right: tuple[int | None, ...]) -> Iterator[Hop]:
    if len(right) > 1:
        yield Hop(0, 1, "")


def _title(visible: VisibleTensor, prefix: Prefix) -> str:
    """Which index the outer axes have in this matrix."""
    outer = list(zip(visible.axes, prefix, strict=False))[len(visible.held) :]
    return ", ".join(f"{axis.name} = {at}" for axis, at in outer)


def _index_keys(
    visible: VisibleTensor, bands: Sequence[Sequence[Matrix]]
) -> Iterator[str | Key]:
    """The order of memory, and what the looks mean that a tile really has."""
    yield from _first_to_change(visible)
    looks = {
        tile.look
        for band in bands
        for matrix in band
        for row in matrix.rows
        for tile in row.tiles
    }
    if "ghost" in looks:
        again = "an element that was drawn already"
        yield Key(f"dashed, with =: {again}", f"=: {again}")
    if "shared" in looks:
        yield Key("double border: several indices share the element", "")


def _remarks(visible: VisibleTensor) -> Iterator[str]:
    if visible.held:
        names = ", ".join(axis.name for axis in visible.held)
        yield f"held at index 0: {names}"
    yield from _left_out(visible)


def _left_out(visible: VisibleTensor) -> Iterator[str]:
    """How much of the outer axes is not drawn."""
    most = {
        3: (_MOST_PAGES,),
        4: (_MOST_TILE_ROWS, _MOST_TILE_COLUMNS),
    }.get(len(visible.drawn), ())
    for axis, limit in zip(visible.drawn, most, strict=False):
        if axis.size > limit:
            yield f"{axis.name}: {axis.size - limit:,} more not drawn"


def memory_strip(
    visible: VisibleTensor, marks: Mapping[int, str] | None = None
) -> Figure:
    """The storage in the order of addresses.

    `marks` are places that must be seen besides the telling ones, with a word each.
    """
    places, marks = visible.places, marks or {}
    around = tuple(at for at in marks if places.first <= at <= places.last)
    columns = tuple(_columns(visible, around))
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
        hops=tuple(_hops(visible, columns)),
    )
    return Figure(
        "Memory: the places in their order, each with the index that lies there",
        ((matrix,),),
        keys=tuple(_strip_keys(visible, columns)),
    )


def _marked(marks: Mapping[int, str], place: int | None) -> Tile:
    word = "" if place is None else marks.get(place, "")
    return Tile(word, "blank") if word else BLANK


def _columns(visible: VisibleTensor, around: tuple[int, ...]) -> Iterator[Column]:
    runs = windows(visible, around)
    yield from _unused(visible, 0, runs[0][0], "before")
    for number, run in enumerate(runs):
        if number:
            left_out = run[0] - runs[number - 1][-1] - 1
            yield None, Tile(f"... {left_out:,} el ...", "skip"), BLANK
        yield _used(visible, run[0])
        for before, place in pairwise(run):
            yield from _unused(visible, before + 1, place)
            yield _used(visible, place)
    if visible.stored is not None:
        yield from _unused(visible, runs[-1][-1] + 1, visible.stored, "after")


def _used(visible: VisibleTensor, place: int) -> Column:
    landing = visible.places.landing(place)
    if landing is None:
        return place, UNUSED, BLANK
    if not landing.times:
        return place, UNDECIDED, BLANK
    shared = landing.times > 1 and not visible.places.nested
    look: Look = "shared" if shared else "used"
    tile = Tile(visible.label(landing.index), look, visible.fill(landing.index))
    return place, tile, _times(landing)


def _times(landing: Landing) -> Tile:
    if landing.times == 1:
        return BLANK
    more = "+" if landing.at_least else ""
    return Tile(f"\N{MULTIPLICATION SIGN}{landing.times:,}{more}", "blank")


def _unused(
    visible: VisibleTensor, start: int, stop: int, where: str = ""
) -> Iterator[Column]:
    """The places from `start` up to `stop`, where no element lies."""
    count = stop - start
    if count > _MOST_UNUSED:
        said = f"{elements_text(count, visible.itemsize)} {where}".rstrip()
        yield None, Tile(said, "gap"), BLANK
        return
    for place in range(start, stop):
        yield place, UNUSED, BLANK


def _hops(visible: VisibleTensor, columns: tuple[Column, ...]) -> Iterator[Hop]:
    """One step along each axis from the element at index 0, where both are drawn."""
    at = {place: number for number, (place, _, _) in enumerate(columns)}
    start = visible.places.offset
    for axis in visible.axes[-_MOST_HOPS:]:
        stop = start + axis.step
        if axis.size > 1 and axis.step and start in at and stop in at:
            yield Hop(at[start], at[stop], axis.name)


def _strip_keys(
    visible: VisibleTensor, columns: tuple[Column, ...]
) -> Iterator[str | Key]:
    looks = {tile.look for _, tile, _ in columns}
    yield from _first_to_change(visible)
    if len(visible.axes) > 4:
        yield "#n: element number n in the order of indices"
    if looks & {"unused", "gap"}:
        yield _none_here(looks)
    if any(tile is UNDECIDED for _, tile, _ in columns):
        yield "?: whether an element lies here would take long to find out"
    if any(tile is not BLANK for _, _, tile in columns):
        yield "\N{MULTIPLICATION SIGN}n: n indices land on this place"


def _first_to_change(visible: VisibleTensor) -> Iterator[str]:
    fastest = visible.fastest
    if fastest is not None:
        change = "changes" if len(fastest.dims) == 1 else "change"
        yield f"from place to place, {fastest.name} {change} first"


def _none_here(looks: set[Look]) -> Key:
    """What a place without an element looks like."""
    marks = {"unused": UNUSED.text, "gap": "a size in place of an index"}
    spelled = " or ".join(mark for look, mark in marks.items() if look in looks)
    return Key(*(f"{each}: no element of this tensor" for each in ("hatched", spelled)))


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
    first, last = _extent(lanes)
    unit = min(lane.visible.itemsize for lane in lanes)
    whole = all((lane.start_byte - first) % unit == 0 for lane in lanes)
    return whole and (last - first) // unit <= _MOST_PLACES


def lane_cells(lanes: Sequence[Lane]) -> Figure:
    """A lane for each tensor, and how many of them have an element at each place."""
    first, last = _extent(lanes)
    sizes = {lane.visible.itemsize for lane in lanes}
    unit = min(sizes)
    starts = range(first, last, unit)
    rows = [
        Row(lane.name, tuple(_lane_tile(lane, at) for at in starts)) for lane in lanes
    ]
    if len(sizes) > 1:
        corner, heads = "byte", [str(at) for at in starts]
    else:
        corner, heads = "place", [str(at // unit) for at in starts]
    shared = Row("shared", tuple(_shared(lanes, at) for at in starts))
    matrix = Matrix(corner, tuple(heads), (*rows, shared))
    return Figure(
        "One memory: each place with the index that lands there, tensor by tensor",
        ((matrix,),),
        keys=tuple(_lane_keys(rows, corner)),
        remarks=(_shared_text(shared, unit),),
    )


def _extent(lanes: Sequence[Lane]) -> tuple[int, int]:
    return (
        min(lane.first_byte for lane in lanes),
        max(lane.last_byte for lane in lanes),
    )


def _lane_tile(lane: Lane, byte: int) -> Tile:
    if not lane.first_byte <= byte < lane.last_byte:
        return BLANK
    place, within = divmod(byte - lane.start_byte, lane.visible.itemsize)
    landing = lane.visible.places.landing(place)
    if landing is None:
        return UNUSED
    if not landing.times:
        return UNDECIDED
    if within:
        return MORE
    times = f" \N{MULTIPLICATION SIGN}{landing.times}" if landing.times > 1 else ""
    label = lane.visible.label(landing.index)
    return Tile(f"{label}{times}", "used", lane.visible.fill(landing.index))


def _holders(lanes: Sequence[Lane], byte: int) -> int:
    looks = (_lane_tile(lane, byte).look for lane in lanes)
    return sum(look in ("used", "more") for look in looks)


def _shared(lanes: Sequence[Lane], byte: int) -> Tile:
    holders = _holders(lanes, byte)
    text = f"\N{MULTIPLICATION SIGN}{holders}"
    return Tile(text, "skip") if holders > 1 else BLANK


def _shared_text(shared: Row, unit: int) -> str:
    places = sum(tile is not BLANK for tile in shared.tiles)
    return (
        f"{places} of {len(shared.tiles)} places, {unit} B each, hold elements of "
        "more than one tensor"
    )


def _lane_keys(rows: Sequence[Row], corner: str) -> list[Key]:
    looks = {tile.look for row in rows for tile in row.tiles}
    keys = []
    if "unused" in looks:
        left_out = "a place between its elements that the tensor leaves out"
        keys.append(Key(f"hatched: {left_out}", f"{UNUSED.text}: {left_out}"))
    if corner == "byte":
        keys.append(
            Key(
                "wide tiles: one element over several places",
                f"{MORE.text}: the element to the left goes on",
            )
        )
    return keys
