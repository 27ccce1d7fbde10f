"""Lays out how a tensor is indexed, how it lies in memory, and where several meet.

A number is a place in the storage, in elements, and a colour is the index along the
slowest dim that moves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpumagic.drawing.tiles import BLANK, SKIPPED, UNUSED, Figure, Row, Tile
from gpumagic.report.units import listed
from gpumagic.tensor_info.sentences import dims_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpumagic.tensor_info.axes import Visible

_MOST_PAGES = 3
_MOST_UNUSED = 3  # a longer run of unused places is one tile with its length
_MOST_PLACES = 32
_TIMES = "\N{MULTIPLICATION SIGN}"


def index_panel(visible: Visible) -> Figure:
    """The elements of up to three dims by index, each with its place in the storage."""
    ndim, keys = visible.ndim, [*_first_to_change(visible)]
    pages: list[tuple[int | None, ...]] = [()]
    if ndim > 2:
        pages = [(page,) for page in range(min(visible.size[0], _MOST_PAGES))]
        if (more := visible.size[0] - _MOST_PAGES) > 0:
            keys.append(f"dim 0: {more:,} more not drawn")
    down = [(at,) for at in visible.shown(ndim - 2)] if ndim > 1 else [()]
    across = [(at,) for at in visible.shown(ndim - 1)] if ndim else [()]
    columns = [(page, at) for page in pages for at in across]
    rows = tuple(
        Row(
            _index_text(at),
            tuple(_index_tile(visible, (*page, *at, *last)) for page, last in columns),
        )
        for at in down
    )
    if any(tile.text.startswith("=") for row in rows for tile in row.tiles):
        keys.append("=: an element that was drawn already")
    above = dims_text([dim for dim in range(ndim) if dim != ndim - 2]) if ndim else ""
    corner = f"dim {ndim - 2} \\ {above}" if ndim > 1 else above
    heads = tuple(_index_text((*page, *at)) for page, at in columns)
    caption = "Each index with its place in memory, in elements"
    return Figure(caption, corner, heads, rows, tuple(keys))


def _index_text(parts: Sequence[int | None]) -> str:
    return "..." if None in parts else ",".join(map(str, parts))


def _index_tile(visible: Visible, index: tuple[int | None, ...]) -> Tile:
    known = tuple(at for at in index if at is not None)
    if known != index:
        return SKIPPED
    # A stride of 0 shows the same element at a lower index already.
    if any(at and not step for at, step in zip(known, visible.stride, strict=True)):
        return Tile(f"={visible.place(known)}")
    return Tile(str(visible.place(known)), visible.fill(known))


def _first_to_change(visible: Visible) -> Iterator[str]:
    if visible.fastest is not None:
        yield f"from place to place, dim {visible.fastest} changes first"


class _Column(NamedTuple):
    """A column of the strip: its place (None for a run of places), and its tiles."""

    place: int | None
    tile: Tile
    times: int = 1


def memory_strip(visible: Visible, marks: Mapping[int, str] | None = None) -> Figure:
    """The storage in the order of addresses.

    `marks` are places that must be seen besides the telling ones, with a word each.
    """
    columns = tuple(_columns(visible, marks or {}))
    rows = [Row("index", tuple(each.tile for each in columns))]
    times = tuple(
        Tile(f"{_TIMES}{c.times:,}") if c.times > 1 else BLANK for c in columns
    )
    keys = [*_first_to_change(visible)]
    if visible.ndim > 4:
        keys.append("#n: element number n in the order of indices")
    gaps = any(
        each.place is None and not each.tile.text.startswith("...") for each in columns
    )
    said = (UNUSED.text, UNUSED in rows[0].tiles), ("a size in place of an index", gaps)
    if known := [mark for mark, is_there in said if is_there]:
        keys.append(f"{listed(known, ' or ')}: no element of this tensor")
    if any(tile.text for tile in times):
        rows.append(Row("times", times))
        keys.append(f"{_TIMES}n: n indices land on this place")
    if marks:
        words = (marks.get(-1 if c.place is None else c.place, "") for c in columns)
        rows.append(Row("walk", tuple(map(Tile, words))))
    heads = tuple("" if each.place is None else str(each.place) for each in columns)
    caption = "Memory: the places in their order, each with the index that lies there"
    return Figure(caption, "place", heads, tuple(rows), tuple(keys))


def _columns(visible: Visible, marks: Mapping[int, str]) -> Iterator[_Column]:
    yield from _unused(visible, 0, visible.first, "before")
    past = visible.first
    for run in visible.windows(marks):
        for number in run:
            place, index, times = visible.nth(number)
            if number != run[0] or past == visible.first:
                yield from _unused(visible, past, place)
            else:
                yield _Column(None, Tile(f"... {place - past:,} el ..."))
            yield _Column(place, Tile(visible.label(index), visible.fill(index)), times)
            past = place + 1
    if visible.stored is not None:
        yield from _unused(visible, past, visible.stored, "after")


def _unused(
    visible: Visible, start: int, stop: int, where: str = ""
) -> Iterator[_Column]:
    """The places from `start` up to `stop`, where no element lies."""
    count = stop - start
    if count > _MOST_UNUSED:
        said = f"{count:,} el = {count * visible.itemsize:,} B {where}".rstrip()
        yield _Column(None, Tile(said))
    else:
        yield from (_Column(place, UNUSED) for place in range(start, stop))


class Lane(NamedTuple):
    """A tensor, its name, and the byte at which place 0 of its storage lies."""

    name: str
    visible: Visible
    start_byte: int

    @property
    def first_byte(self) -> int:
        """Where its lowest element begins."""
        return self.start_byte + self.visible.first * self.visible.itemsize

    @property
    def last_byte(self) -> int:
        """Where its highest element ends; exclusive."""
        return self.start_byte + (self.visible.last + 1) * self.visible.itemsize

    def tile(self, byte: int) -> Tile:
        """What lies at a byte; an element of several places goes on to the right."""
        if not self.first_byte <= byte < self.last_byte:
            return BLANK
        place, within = divmod(byte - self.start_byte, self.visible.itemsize)
        landing = self.visible.landing(place)
        if landing is None:
            return UNUSED
        fill = self.visible.fill(landing.indices)
        if within:
            return Tile("~", fill)
        times = f" {_TIMES}{landing.times}" if landing.times > 1 else ""
        return Tile(f"{self.visible.label(landing.indices)}{times}", fill)


def few_places(lanes: Sequence[Lane]) -> bool:
    """Whether each place of the memory can have a tile."""
    first, last, unit = _extent(lanes)
    known = all(
        lane.visible.is_in_order and (lane.start_byte - first) % unit == 0
        for lane in lanes
    )
    return known and (last - first) // unit <= _MOST_PLACES


def lane_cells(lanes: Sequence[Lane]) -> Figure:
    """A lane for each tensor, and how many of them have an element at each place."""
    first, last, unit = _extent(lanes)
    starts = range(first, last, unit)
    rows = [Row(lane.name, tuple(map(lane.tile, starts))) for lane in lanes]
    holders = [
        sum(bool(row.tiles[at].fill) for row in rows) for at in range(len(starts))
    ]
    in_bytes = len({lane.visible.itemsize for lane in lanes}) > 1
    heads = tuple(str(at if in_bytes else at // unit) for at in starts)
    shared = (Tile(f"{_TIMES}{n}") if n > 1 else BLANK for n in holders)
    keys = []
    if any(UNUSED in row.tiles for row in rows):
        left_out = "a place between its elements that the tensor leaves out"
        keys.append(f"{UNUSED.text}: {left_out}")
    if in_bytes:
        keys.append("~: the element to the left goes on")
    held = sum(n > 1 for n in holders)
    shares = "hold elements of more than one tensor"
    keys.append(f"{held} of {len(holders)} places, {unit} B each, {shares}")
    caption = "One memory: each place with the index that lands there, tensor by tensor"
    corner = "byte" if in_bytes else "place"
    rows.append(Row("shared", tuple(shared)))
    return Figure(caption, corner, heads, tuple(rows), tuple(keys))


def _extent(lanes: Sequence[Lane]) -> tuple[int, int, int]:
    """The first and the last byte, and how many bytes a place is."""
    return (
        min(lane.first_byte for lane in lanes),
        max(lane.last_byte for lane in lanes),
        min(lane.visible.itemsize for lane in lanes),
    )
