"""How a tensor is indexed: a tile for each element, with its place in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.tensor_info.diagram.figure import Figure
from gpumagic.tensor_info.diagram.steps import step_text
from gpumagic.tensor_info.diagram.tiles import (
    ELLIPSIS,
    SKIPPED,
    Hop,
    Key,
    Matrix,
    Row,
    Tile,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.tensor_info.diagram.sight import Sight
    from gpumagic.tensor_info.diagram.tiles import Look

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
        keys=(*_directions(sight), *_keys(bands)),
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
        return Row("", (_tile(sight, prefix),))
    if len(sight.drawn) > 1 and at is None:
        return Row(ELLIPSIS, (SKIPPED,) * len(right))
    start = prefix if at is None else (*prefix, at)
    tiles = (
        SKIPPED if each is None else _tile(sight, (*start, each)) for each in right
    )
    return Row("" if at is None else str(at), tuple(tiles))


def _tile(sight: Sight, index: Prefix) -> Tile:
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


def _keys(bands: Sequence[Sequence[Matrix]]) -> Iterator[Key]:
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
