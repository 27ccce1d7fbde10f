"""How a tensor is indexed: a tile for each element, with its place in it."""

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
from gpumagic.tensor_info.sentences import elements_text, step_text
from gpumagic.tensor_info.visible_axes import windows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpumagic.tensor_info.picture import Look
    from gpumagic.tensor_info.visible_axes import Landing, Sight

_MOST_PAGES = 3
_MOST_TILE_ROWS, _MOST_TILE_COLUMNS = 2, 3

_DIRECTIONS = {
    0: (),
    1: ("right",),
    2: ("down", "right"),
    3: ("page to page", "down", "right"),
    4: ("block to block down", "block to block right", "down", "right"),
}

Prefix = tuple[int, ...]


def index_panel(sight: Sight) -> Figure:
    """The elements by index, each with its place in the storage."""
    bands = tuple(_bands(sight))
    return Figure(
        "By index: each number is the element's place in the storage, in elements",
        bands,
        keys=(*_directions(sight), *_index_keys(bands)),
        remarks=tuple(_remarks(sight)),
    )


def _bands(sight: Sight) -> Iterator[tuple[Matrix, ...]]:
    """Rows of matrices: one, or pages, or blocks of blocks."""
    held = (0,) * len(sight.held)
    outer = sight.drawn[:-2]
    if not outer:
        yield (_matrix(sight, held),)
    elif len(outer) == 1:
        pages = range(min(outer[0].size, _MOST_PAGES))
        yield tuple(_matrix(sight, (*held, page)) for page in pages)
    else:
        down, right = (axis.size for axis in outer)
        for block in range(min(down, _MOST_TILE_ROWS)):
            columns = range(min(right, _MOST_TILE_COLUMNS))
            yield tuple(_matrix(sight, (*held, block, each)) for each in columns)


def _matrix(sight: Sight, prefix: Prefix) -> Matrix:
    plane = sight.drawn[-2:]
    lists = [sight.shown(axis) for axis in plane]
    down = lists[0] if len(lists) == 2 else (None,)
    right = lists[-1] if lists else (None,)
    return Matrix(
        _corner(sight),
        tuple(_head(at) for at in right) if plane else ("",),
        tuple(_row(sight, prefix, at, right) for at in down),
        _title(sight, prefix),
        tuple(_hop(right)),
        down=len(lists) == 2 and len(down) > 1,
    )


def _row(
    sight: Sight, prefix: Prefix, at: int | None, right: tuple[int | None, ...]
) -> Row:
    if not sight.drawn:
        return Row("", (_index_tile(sight, prefix),))
    if len(sight.drawn) > 1 and at is None:
        return Row(ELLIPSIS, (SKIPPED,) * len(right))
    start = prefix if at is None else (*prefix, at)
    tiles = (
        SKIPPED if each is None else _index_tile(sight, (*start, each))
        for each in right
    )
    return Row("" if at is None else str(at), tuple(tiles))


def _index_tile(sight: Sight, index: Prefix) -> Tile:
    place = sight.places.of(index)
    if sight.is_ghost(index):
        return Tile(f"={place}", "ghost")
    landing = None if sight.places.nested else sight.places.landing(place)
    look: Look = "shared" if landing and landing.times > 1 else "used"
    return Tile(str(place), look, sight.fill(index))


def _corner(sight: Sight) -> str:
    """Which dims the two headings are, where one matrix is all there is."""
    few = sight.drawn if len(sight.drawn) < 3 else ()
    return " \\ ".join(axis.name for axis in few)


def _head(at: int | None) -> str:
    return ELLIPSIS if at is None else str(at)


def _hop(right: tuple[int | None, ...]) -> Iterator[Hop]:
    if len(right) > 1:
        yield Hop(0, 1, "")


def _title(sight: Sight, prefix: Prefix) -> str:
    """Which index the outer axes have in this matrix."""
    outer = list(zip(sight.axes, prefix, strict=False))[len(sight.held) :]
    return ", ".join(f"{axis.name} = {at}" for axis, at in outer)


def _directions(sight: Sight) -> Iterator[str]:
    """What one step in each direction means in memory."""
    directions = _DIRECTIONS[len(sight.drawn)]
    for direction, axis in zip(directions, sight.drawn, strict=True):
        if axis.size > 1:
            yield f"{direction}: {axis.name}, {step_text(axis.step, sight.itemsize)}"


def _index_keys(bands: Sequence[Sequence[Matrix]]) -> Iterator[Key]:
    """What the looks mean that a tile really has."""
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


def _remarks(sight: Sight) -> Iterator[str]:
    if sight.held:
        names = ", ".join(axis.name for axis in sight.held)
        yield f"held at index 0: {names}"
    yield from _left_out(sight)


def _left_out(sight: Sight) -> Iterator[str]:
    """How much of the outer axes is not drawn."""
    most = {
        3: (_MOST_PAGES,),
        4: (_MOST_TILE_ROWS, _MOST_TILE_COLUMNS),
    }.get(len(sight.drawn), ())
    for axis, limit in zip(sight.drawn, most, strict=False):
        if axis.size > limit:
            yield f"{axis.name}: {axis.size - limit:,} more not drawn"


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
        keys=tuple(_strip_keys(sight, columns)),
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


def _strip_keys(sight: Sight, columns: tuple[Column, ...]) -> Iterator[str | Key]:
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


_MOST_PLACES = 32


class Lane(NamedTuple):
    """A tensor, its name, and the byte at which place 0 of its storage lies."""

    name: str
    sight: Sight
    start_byte: int

    @property
    def first_byte(self) -> int:
        """Where its lowest element begins."""
        return self.start_byte + self.sight.places.first * self.sight.itemsize

    @property
    def last_byte(self) -> int:
        """Where its highest element ends; exclusive."""
        past = self.sight.places.last + 1
        return self.start_byte + past * self.sight.itemsize


def few_places(lanes: Sequence[Lane]) -> bool:
    """Whether each place of the memory can have a tile."""
    first, last = _extent(lanes)
    unit = min(lane.sight.itemsize for lane in lanes)
    whole = all((lane.start_byte - first) % unit == 0 for lane in lanes)
    return whole and (last - first) // unit <= _MOST_PLACES


def lane_cells(lanes: Sequence[Lane]) -> Figure:
    """A lane for each tensor, and how many of them have an element at each place."""
    first, last = _extent(lanes)
    sizes = {lane.sight.itemsize for lane in lanes}
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
    place, within = divmod(byte - lane.start_byte, lane.sight.itemsize)
    landing = lane.sight.places.landing(place)
    if landing is None:
        return UNUSED
    if not landing.times:
        return UNDECIDED
    if within:
        return MORE
    times = f" \N{MULTIPLICATION SIGN}{landing.times}" if landing.times > 1 else ""
    label = lane.sight.label(landing.index)
    return Tile(f"{label}{times}", "used", lane.sight.fill(landing.index))


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
