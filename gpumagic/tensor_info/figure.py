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
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from gpumagic.drawing.tiles import BLANK, SKIPPED, UNUSED, Figure, Row, Tile
from gpumagic.report.units import listed, range_text
from gpumagic.tensor_info.geometry import LINE_BYTES, SECTOR_BYTES, Geometry
from gpumagic.tensor_info.overlap import is_nested

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

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

        Empty where there is no memory, or too much to draw.
        """
        is_much = self.span_elements > _MOST_PLACES or self.numel > _MOST_LISTED
        if is_much or self.stored == 0:
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
    g, stored_bytes = report.geometry, report.storage_bytes
    if not g or not g.numel:
        return None
    return Visible(**vars(g), stored=stored_bytes and stored_bytes // g.itemsize)


def index_panel(visible: Visible) -> Figure:
    """The elements of up to three dims by index, each with its place in the storage."""
    ndim, keys = visible.ndim, [*visible.keys()]
    pages: list[tuple[int | None, ...]] = [()]
    if ndim > 2:
        pages = [(page,) for page in range(min(visible.size[0], _MOST_PAGES))]
        if (more := visible.size[0] - _MOST_PAGES) > 0:
            keys.append(f"dim 0: {more:,} more not drawn")
    axes = ([(at,) for at in visible.shown(dim)] for dim in range(ndim)[-2:])
    *_, down, across = [()], [()], *axes
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
    corner = ("", "dim 0", "dim 0 \\ dim 1", "dim 1 \\ dims 0 and 2")[ndim]
    heads = tuple(_index_text((*page, *at)) for page, at in columns)
    caption = "Each index with its place in memory, in elements"
    return Figure(caption, corner, heads, rows, tuple(keys))


def _index_text(parts: Sequence[int | None]) -> str:
    return "..." if None in parts else ",".join(map(str, parts))


def _index_tile(visible: Visible, index: tuple[int | None, ...]) -> Tile:
    if None in index:
        return SKIPPED
    known = cast("tuple[int, ...]", index)
    place = visible.place(known)
    # A stride of 0 shows the same element at a lower index already.
    if any(at and not step for at, step in zip(known, visible.stride, strict=True)):
        return Tile(f"={place}")
    return visible.tile(known, str(place))


def sector_figure(
    g: Geometry, start: int, reads: Sequence[WarpRead], of: str
) -> Figure:
    """The sectors that a warp fetches along each dim, with the lanes that each serves.

    `start` is the address of the first element, as for the `reads`.
    """
    rows = tuple(_sector_tiles(g, start, read) for read in reads)
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


def _sector_tiles(g: Geometry, start: int, read: WarpRead) -> list[Tile]:
    lanes: dict[int, list[int]] = defaultdict(list)
    for lane in range(read.lanes):
        first = start + lane * g.stride[read.dim] * g.itemsize
        last = first + g.itemsize - 1
        for sector in range(first // SECTOR_BYTES, last // SECTOR_BYTES + 1):
            lanes[sector].append(lane)
    lines = sorted({sector * SECTOR_BYTES // LINE_BYTES for sector in lanes})
    colours = dict(zip(lines, cycle(FILLS), strict=False))
    return [
        Tile(
            range_text(str(served[0]), str(served[-1]), "-"),
            colours[sector * SECTOR_BYTES // LINE_BYTES],
        )
        for sector, served in sorted(lanes.items())
    ]


def memory_strip(visible: Visible, marks: Mapping[Any, str] | None = None) -> Figure:
    """The storage in the order of addresses; `marks` are words below some places."""
    columns = [*_columns(visible)]
    heads, tiles = (tuple(each) for each in zip(*columns, strict=True))
    rows, keys = [Row("index", tiles)], [*visible.keys()]
    if visible.ndim > _MOST_PARTS:
        keys.append("#n: element number n in the order of indices")
    unused = {UNUSED.text: UNUSED in tiles, "a size in place of an index": "" in heads}
    if marks_of_it := [mark for mark, is_there in unused.items() if is_there]:
        keys.append(f"{listed(marks_of_it, ' or ')}: no element of this tensor")
    several = {
        str(place): f"{_TIMES}{times:,}"
        for place, (_, times) in visible.landings.items()
        if times > 1
    }
    if several:
        rows.append(_words_below("times", heads, several))
        keys.append(f"{_TIMES}n: n indices land on this place")
    places = {str(place): word for place, word in (marks or {}).items()}
    if walk := {head: places[head] for head in heads if head in places}:
        rows.append(_words_below("walk", heads, walk))
    caption = "Memory: the places in their order, each with the index that lies there"
    return Figure(caption, "place", heads, tuple(rows), tuple(keys))


def _words_below(name: str, heads: Iterable[str], words: Mapping[str, str]) -> Row:
    return Row(name, tuple(Tile(words.get(head, "")) for head in heads))


def _columns(visible: Visible) -> Iterator[tuple[str, Tile]]:
    """Each place with its tile; a run of unused ones is one column without a head."""
    past, where = 0, "before"
    for place, (index, _) in visible.landings.items():
        yield from _unused(visible, past, place, where)
        yield str(place), visible.tile(index, visible.label(index))
        past, where = place + 1, ""
    yield from _unused(visible, past, visible.stored or 0, "after")


def _unused(
    visible: Visible, start: int, stop: int, where: str
) -> Iterator[tuple[str, Tile]]:
    """The places from `start` up to `stop`, where no element lies."""
    count = stop - start
    if count > _MOST_UNUSED:
        said = f"{count:,} el = {count * visible.itemsize:,} B {where}".rstrip()
        yield "", Tile(said)
    else:
        yield from ((str(place), UNUSED) for place in range(start, stop))


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
        said = f"{self.visible.label(index)} {_TIMES}{count}"
        return self.visible.tile(index, said.removesuffix(f" {_TIMES}1"))


def lane_cells(lanes: Sequence[Lane]) -> list[Figure]:
    """A lane for each tensor, and how many of them have an element at each place.

    Nothing where places are many, or differ in size.
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
        return []
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
    heads = tuple(str(start // unit) for start in starts)
    by_head = zip(heads, holders, strict=True)
    shared = {head: f"{_TIMES}{n}" for head, n in by_head if n > 1}
    rows.append(_words_below("shared", heads, shared))
    caption = "One memory: each place with the index that lands there, tensor by tensor"
    return [Figure(caption, "place", heads, tuple(rows), tuple(keys))]
