"""Lays out how a tensor is indexed, how it lies in memory, and where several meet.

A number is a place in the storage, in elements, and a colour is the index along the
slowest dim that moves. What is large is cut short: a picture costs what is drawn, and
not what the tensor holds.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle, product
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.drawing.tiles import BLANK, SKIPPED, UNUSED, Figure, Row, Tile
from gpumagic.report.units import listed
from gpumagic.tensor_info.geometry import LINE_BYTES, SECTOR_BYTES, Geometry
from gpumagic.tensor_info.overlap import is_nested

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpumagic.tensor_info.geometry import WarpRead
    from gpumagic.tensor_info.report import TensorReport

# Each carries text, so that those may be used as well that vanish on one theme.
FILLS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")

_MOST_PARTS = 4  # an index of more is told by its number
# The first and last indices that are drawn, and up to which size all are.
_FIRST, _LAST, _WHOLE = 3, 2, 6
# A tensor as small as this is drawn whole: a break would hide what it shows.
_SMALL, _SMALL_AXIS = 64, 12
# Up to so many elements in so many places, each place is drawn.
_MOST_LISTED, _MOST_PLACES = 4096, 64
_MOST_PAGES = 3
_MOST_UNUSED = 3  # a longer run of unused places is one tile with its length
_MOST_SHARED = 32
_TIMES = "\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True)
class Visible(Geometry):
    """A tensor of at least one element, as it is drawn."""

    stored: int | None = None  # places in the storage; None if unknown

    @cached_property
    def moving(self) -> list[int]:
        """The dims along which a step leads elsewhere."""
        return [dim for dim in self.walked_dims if self.stride[dim]]

    @cached_property
    def landings(self) -> dict[int, tuple[tuple[int, ...], int]]:
        """Each place with the lowest index that leads there, and how many do.

        Empty where there are too many to draw.
        """
        if self.span_elements > _MOST_PLACES or self.numel > _MOST_LISTED:
            return {}
        found: dict[int, tuple[tuple[int, ...], int]] = {}
        for index in product(*map(range, self.size)):
            place = self.place(index)
            lowest, times = found.get(place, (index, 0))
            found[place] = lowest, times + 1
        return dict(sorted(found.items()))

    def tile(self, index: tuple[int, ...], text: str) -> Tile:
        """An element: its colour is its index along the slowest dim that moves."""
        return Tile(text, FILLS[next((index[d] for d in self.moving), 0) % len(FILLS)])

    def label(self, index: tuple[int, ...]) -> str:
        """An index in a few letters; by its number where it has too many parts."""
        if len(index) <= _MOST_PARTS:
            return ",".join(map(str, index)) or "[]"
        number = 0
        for at, count in zip(index, self.size, strict=True):
            number = number * count + at
        return f"#{number}"

    def shown(self, dim: int) -> tuple[int | None, ...]:
        """The indices of a dim that are drawn; None stands for those left out."""
        is_small = self.numel <= _SMALL and max(self.size) <= _SMALL_AXIS
        if is_small or self.size[dim] <= _WHOLE:
            return tuple(range(self.size[dim]))
        return (*range(_FIRST), None, *range(self.size[dim] - _LAST, self.size[dim]))

    def keys(self) -> Iterator[str]:
        """Which dim a walk through memory moves along first, where there is a choice.

        Where windows overlap it depends.
        """
        if len(self.moving) > 1 and is_nested(self):
            fastest = min(self.moving, key=lambda dim: abs(self.stride[dim]))
            yield f"from place to place, dim {fastest} changes first"


def visible_tensor(report: TensorReport) -> Visible | None:
    """How a tensor is drawn; None if it has no element or no geometry."""
    size, stride = report.size, report.stride
    if size is None or stride is None or 0 in size:
        return None
    itemsize, stored_bytes = report.itemsize or 1, report.storage_bytes
    stored = None if stored_bytes is None else stored_bytes // itemsize
    return Visible(size, stride, report.storage_offset or 0, itemsize, stored)


def index_panel(visible: Visible) -> Figure:
    """The elements of up to three dims by index, each with its place in the storage."""
    ndim, keys = visible.ndim, [*visible.keys()]
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
    above = {0: "", 3: "dims 0 and 2"}.get(ndim, f"dim {ndim - 1}")
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
    place = visible.place(known)
    # A stride of 0 shows the same element at a lower index already.
    if any(at and not step for at, step in zip(known, visible.stride, strict=True)):
        return Tile(f"={place}")
    return visible.tile(known, str(place))


def sector_figure(report: TensorReport, reads: Sequence[WarpRead], of: str) -> Figure:
    """The sectors that a warp fetches along each dim, with the lanes that each serves.

    Like `reads`, it is for a tensor whose address is known.
    """
    rows = tuple(_sector_tiles(report, read) for read in reads)
    most = max(map(len, rows))
    return Figure(
        f"Each sector that a warp of 32 lanes fetches{of}, with the lanes it serves",
        "sector",
        tuple(str(number) for number in range(1, most + 1)),
        tuple(
            Row(f"along dim {read.dim}", (*tiles, *[BLANK] * (most - len(tiles))))
            for read, tiles in zip(reads, rows, strict=True)
        ),
        ("sectors of one colour are one line of 128 B",),
    )


def _sector_tiles(report: TensorReport, read: WarpRead) -> list[Tile]:
    itemsize, stride = report.itemsize or 1, (report.stride or ())[read.dim]
    lanes: dict[int, list[int]] = defaultdict(list)
    for lane in range(read.lanes):
        first = (report.address or 0) + lane * stride * itemsize
        last = first + itemsize - 1
        for sector in range(first // SECTOR_BYTES, last // SECTOR_BYTES + 1):
            lanes[sector].append(lane)
    lines = sorted({sector * SECTOR_BYTES // LINE_BYTES for sector in lanes})
    colours = dict(zip(lines, cycle(FILLS), strict=False))
    return [
        Tile(
            str(served[0]) if len(served) == 1 else f"{served[0]}-{served[-1]}",
            colours[sector * SECTOR_BYTES // LINE_BYTES],
        )
        for sector, served in sorted(lanes.items())
    ]


class _Column(NamedTuple):
    """A column of the strip: its place (None for a run of places), and its tiles."""

    place: int | None
    tile: Tile
    times: int = 1


def memory_strip(visible: Visible, marks: Mapping[int, str] | None = None) -> Figure:
    """The storage in the order of addresses; `marks` are words below some places."""
    columns = tuple(_columns(visible))
    tiles = tuple(each.tile for each in columns)
    rows, keys = [Row("index", tiles)], [*visible.keys()]
    if visible.ndim > _MOST_PARTS:
        keys.append("#n: element number n in the order of indices")
    runs = any(each.place is None for each in columns)
    known = (UNUSED.text, UNUSED in tiles), ("a size in place of an index", runs)
    if unused := [mark for mark, is_there in known if is_there]:
        keys.append(f"{listed(unused, ' or ')}: no element of this tensor")
    if any(each.times > 1 for each in columns):
        times = (
            Tile(f"{_TIMES}{c.times:,}") if c.times > 1 else BLANK for c in columns
        )
        rows.append(Row("times", tuple(times)))
        keys.append(f"{_TIMES}n: n indices land on this place")
    if marks:
        words = (marks.get(-1 if c.place is None else c.place, "") for c in columns)
        rows.append(Row("walk", tuple(map(Tile, words))))
    heads = tuple("" if each.place is None else str(each.place) for each in columns)
    caption = "Memory: the places in their order, each with the index that lies there"
    return Figure(caption, "place", heads, tuple(rows), tuple(keys))


def _columns(visible: Visible) -> Iterator[_Column]:
    past, where = 0, "before"
    for place, (index, times) in visible.landings.items():
        yield from _unused(visible, past, place, where)
        yield _Column(place, visible.tile(index, visible.label(index)), times)
        past, where = place + 1, ""
    yield from _unused(visible, past, visible.stored or 0, "after")


def _unused(visible: Visible, start: int, stop: int, where: str) -> Iterator[_Column]:
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
        return (
            self.start_byte + (self.visible.first_element or 0) * self.visible.itemsize
        )

    @property
    def last_byte(self) -> int:
        """Where its highest element ends; exclusive."""
        return self.first_byte + self.visible.span_bytes

    def tile(self, byte: int) -> Tile:
        """What lies at a byte where an element may begin."""
        if not self.first_byte <= byte < self.last_byte:
            return BLANK
        place = (byte - self.start_byte) // self.visible.itemsize
        if place not in self.visible.landings:
            return UNUSED
        index, count = self.visible.landings[place]
        times = f" {_TIMES}{count}" if count > 1 else ""
        return self.visible.tile(index, f"{self.visible.label(index)}{times}")


def lane_cells(lanes: Sequence[Lane]) -> Figure | None:
    """A lane for each tensor, and how many of them have an element at each place.

    None where places are many, or differ in size.
    """
    first, last = (
        min(each.first_byte for each in lanes),
        max(e.last_byte for e in lanes),
    )
    unit = lanes[0].visible.itemsize
    starts = range(first, last, unit)
    alike = all(
        lane.visible.itemsize == unit
        and (lane.start_byte - first) % unit == 0
        and lane.visible.landings
        for lane in lanes
    )
    if not alike or len(starts) > _MOST_SHARED:
        return None
    rows = [Row(lane.name, tuple(map(lane.tile, starts))) for lane in lanes]
    holders = [
        sum(bool(tile.fill) for tile in at)
        for at in zip(*(r.tiles for r in rows), strict=True)
    ]
    keys = []
    if any(UNUSED in row.tiles for row in rows):
        left_out = "a place between its elements that the tensor leaves out"
        keys.append(f"{UNUSED.text}: {left_out}")
    held, shares = sum(n > 1 for n in holders), "hold elements of more than one tensor"
    keys.append(f"{held} of {len(holders)} places, {unit} B each, {shares}")
    shared = (Tile(f"{_TIMES}{n}") if n > 1 else BLANK for n in holders)
    rows.append(Row("shared", tuple(shared)))
    heads = tuple(str(start // unit) for start in starts)
    caption = "One memory: each place with the index that lands there, tensor by tensor"
    return Figure(caption, "place", heads, tuple(rows), tuple(keys))
