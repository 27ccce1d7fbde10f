"""Sizes and strides: where elements lie, which layouts those are, what a warp fetches.

Closed forms on numbers: what they cost depends on the dims, never on the elements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from gpumagic.report.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable

_CONTIGUOUS = "contiguous_format"
SECTOR_BYTES = 32
_LANES = 32
_LINE_BYTES = 128


@dataclass(frozen=True)
class WarpRead(Record):
    """What 32 lanes fetch that read along one dim, each its own element."""

    dim: int
    lanes: int
    unique_bytes: int
    sectors: int  # of 32 bytes
    lines: int  # of 128 bytes
    fetched_bytes: int
    efficiency: float  # unique_bytes of fetched_bytes
    ideal_sectors: int
    # the bytes of each sector that some lane asks for, line by line
    used: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Geometry:
    """Sizes, strides and offset in elements, and the bytes of one element.

    Strides may be negative, as NumPy's are.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int  # of the element whose indices are all 0
    itemsize: int  # in bytes

    @property
    def ndim(self) -> int:
        """How many dims there are."""
        return len(self.size)

    @property
    def numel(self) -> int:
        """How many elements can be indexed."""
        return math.prod(self.size)

    @property
    def walked_dims(self) -> tuple[int, ...]:
        """The dims that have more than one index: the others take no step."""
        return tuple(dim for dim, count in enumerate(self.size) if count != 1)

    @property
    def first_element(self) -> int | None:
        """The lowest place in the storage; None if there is no element."""
        return self.offset + self._reach(-1) if self.numel else None

    @property
    def last_element(self) -> int | None:
        """The highest place in the storage; None if there is no element."""
        return self.offset + self._reach(+1) if self.numel else None

    @property
    def span_elements(self) -> int:
        """The places from the lowest to the highest, both counted."""
        return self._reach(+1) - self._reach(-1) + 1 if self.numel else 0

    @property
    def span_bytes(self) -> int:
        """The bytes from the first of the lowest element to the last of the highest."""
        return self.span_elements * self.itemsize

    @property
    def logical_bytes(self) -> int:
        """The bytes that a copy with nothing shared would take."""
        return self.numel * self.itemsize

    def place(self, index: tuple[int, ...]) -> int:
        """Where the element with these indices lies in the storage, in elements."""
        pairs = zip(index, self.stride, strict=True)
        return self.offset + sum(each * step for each, step in pairs)

    def permuted(self, dims: tuple[int, ...]) -> Geometry:
        """The same elements with the dims in another order."""
        return Geometry(
            tuple(self.size[dim] for dim in dims),
            tuple(self.stride[dim] for dim in dims),
            self.offset,
            self.itemsize,
        )

    def _reach(self, sign: int) -> int:
        pairs = zip(self.size, self.stride, strict=True)
        return sum((count - 1) * step for count, step in pairs if step * sign > 0)


def fresh_strides(size: tuple[int, ...]) -> tuple[int, ...]:
    """The strides that a new row-major tensor of this size has."""
    steps = [1] * len(size)
    for dim in range(len(size) - 2, -1, -1):
        steps[dim] = steps[dim + 1] * max(size[dim + 1], 1)
    return tuple(steps)


def is_contiguous(g: Geometry) -> bool:
    """Whether torch calls it contiguous: strides of dims of size 1 do not count."""
    return g.numel == 0 or _packed(g, reversed(range(g.ndim)))


def is_channels_last(g: Geometry) -> bool:
    """Whether torch calls it contiguous in the format of images or of volumes."""
    order = _channels_last_order(g)
    return bool(order) and _packed(g, order)


def treat_as(g: Geometry) -> str:
    """The memory format in which operators return what they make of this.

    Unlike the flags it reads the strides of dims of size 1, and it does not ask
    for density: a crop of an image keeps its format.
    """
    order, least = _channels_last_order(g), 0
    if not order or 0 in g.size or g.stride[1] == 0:
        return _CONTIGUOUS
    for dim in order:
        # All sizes but the batch's are 1: only row-major is meant by that.
        lone_pixels = dim == 0 and least == g.stride[1]
        if g.stride[dim] < least or lone_pixels:
            return _CONTIGUOUS
        least = g.stride[dim] * g.size[dim]
    return "channels_last" if g.ndim == 4 else "channels_last_3d"


def non_overlapping_and_dense(g: Geometry) -> bool:
    """Whether some order of the dims is contiguous, as torch has the rule."""
    by_step = sorted(g.walked_dims, key=lambda dim: g.stride[dim])
    return g.numel < 2 or _packed(g, by_step)


def dim_order(g: Geometry) -> tuple[int, ...] | None:
    """The dims from the slowest to the fastest, as torch has them; None if not dense.

    Dims of size 1 take no step and may stand anywhere.
    """
    if not non_overlapping_and_dense(g):
        return None
    if is_contiguous(g):
        return tuple(range(g.ndim))
    return tuple(sorted(range(g.ndim), key=lambda dim: -g.stride[dim]))


def _packed(g: Geometry, fastest_first: Iterable[int]) -> bool:
    """Whether each stride is the product of the sizes before it in this order."""
    expected = 1
    for dim in fastest_first:
        if g.size[dim] == 1:
            continue
        if g.stride[dim] != expected:
            return False
        expected *= g.size[dim]
    return True


def _channels_last_order(g: Geometry) -> tuple[int, ...]:
    """The dims of images and volumes, fastest first; empty for any other rank."""
    return {4: (1, 3, 2, 0), 5: (1, 4, 3, 2, 0)}.get(g.ndim, ())


def warp_reads(g: Geometry, base_address: int) -> tuple[WarpRead, ...]:
    """What 32 lanes fetch along each dim, the other indices at 0.

    `base_address` is that of the byte where its storage starts, before the offset. An
    empty tensor is not read.
    """
    if not g.numel:
        return ()
    start = base_address + g.offset * g.itemsize
    return tuple(_read(g, dim, start) for dim in range(g.ndim))


def _read(g: Geometry, dim: int, start: int) -> WarpRead:
    lanes = min(_LANES, g.size[dim])
    lows = {start + lane * g.stride[dim] * g.itemsize for lane in range(lanes)}
    asked = sorted(low + byte for low in lows for byte in range(g.itemsize))
    used = tuple(
        tuple(len(list(sector)) for _, sector in groupby(line, _sector))
        for _, line in groupby(asked, lambda byte: byte // _LINE_BYTES)
    )
    sectors = sum(map(len, used))
    return WarpRead(
        dim=dim,
        lanes=lanes,
        unique_bytes=len(asked),
        sectors=sectors,
        lines=len(used),
        fetched_bytes=sectors * SECTOR_BYTES,
        efficiency=len(asked) / (sectors * SECTOR_BYTES),
        ideal_sectors=-(-len(asked) // SECTOR_BYTES),
        used=used,
    )


def _sector(byte: int) -> int:
    return byte // SECTOR_BYTES
