"""Several tensors over one small piece of memory, place by place."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpumagic.tensor_info.diagram.figure import Figure
from gpumagic.tensor_info.diagram.tiles import (
    BLANK,
    MORE,
    UNDECIDED,
    UNUSED,
    Key,
    Matrix,
    Row,
    Tile,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumagic.tensor_info.diagram.sight import Sight

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
    rows = [Row(lane.name, tuple(_tile(lane, at) for at in starts)) for lane in lanes]
    if len(sizes) > 1:
        corner, heads = "byte", [str(at) for at in starts]
    else:
        corner, heads = "place", [str(at // unit) for at in starts]
    shared = Row("shared", tuple(_shared(lanes, at) for at in starts))
    matrix = Matrix(corner, tuple(heads), (*rows, shared))
    return Figure(
        "One memory: each place with the index that lands there, tensor by tensor",
        ((matrix,),),
        keys=tuple(_keys(rows, corner)),
        remarks=(_shared_text(shared, unit),),
    )


def _extent(lanes: Sequence[Lane]) -> tuple[int, int]:
    return (
        min(lane.first_byte for lane in lanes),
        max(lane.last_byte for lane in lanes),
    )


def _tile(lane: Lane, byte: int) -> Tile:
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
    looks = (_tile(lane, byte).look for lane in lanes)
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


def _keys(rows: Sequence[Row], corner: str) -> list[Key]:
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
