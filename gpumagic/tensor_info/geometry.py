"""Sizes and strides: where elements lie, which layouts those are, what a warp fetches.

Closed forms on numbers: what they cost depends on the dims, never on the elements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from gpumagic.tensor_info.report import WarpRead

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_CONTIGUOUS = "contiguous_format"
SECTOR_BYTES = 32
_LANES = 32
_LINE_BYTES = 128


@dataclass(frozen=True)
class Geometry:
    """Sizes, strides and offset in elements, and the bytes of one element.

    Strides may be negative, as NumPy's are. Every figure is a closed form: what
    it costs depends on the number of dims, never on the number of elements.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int  # of the element whose indices are all 0
    itemsize: int  # in bytes

    def __post_init__(self) -> None:
        if len(self.size) != len(self.stride):
            raise ValueError(f"{len(self.size)} sizes, {len(self.stride)} strides")

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

    @property
    def stride_bytes(self) -> tuple[int, ...]:
        """The strides in bytes."""
        return tuple(step * self.itemsize for step in self.stride)

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


def canonical(g: Geometry) -> bool:
    """Whether the strides are those of a new tensor, dims of size 1 included."""
    return g.stride == fresh_strides(g.size)


def is_channels_last(g: Geometry) -> bool:
    """Whether torch calls it contiguous in the format of images or of volumes."""
    order = _channels_last_order(g)
    return bool(order) and _packed(g, order)


def treat_as(g: Geometry) -> str:
    """The memory format in which operators return what they make of this.

    Unlike the flags it reads the strides of dims of size 1, and it does not ask
    for density: a crop of an image keeps its format.
    """
    order = _channels_last_order(g)
    if not order or 0 in g.size or g.stride[1] == 0 or _misfit(g):
        return _CONTIGUOUS
    return "channels_last" if g.ndim == 4 else "channels_last_3d"


def ambiguity(g: Geometry) -> str | None:
    """Why this is both contiguous and channels last, or called what it is not used as.

    None where the format is plain.
    """
    if not is_channels_last(g):
        return None
    names = "NCHW" if g.ndim == 4 else "NCDHW"
    if is_contiguous(g):
        return _both_fit(g, names)
    if treat_as(g) != _CONTIGUOUS:
        return None
    dim, least = _misfit(g) or (1, 1)
    return (
        f"{names[dim]} = 1 with a stride of {g.stride[dim]}, below {least}: channels "
        "last by its flag, but not for operators, which read that stride"
    )


def non_overlapping_and_dense(g: Geometry) -> bool:
    """Whether some order of the dims is contiguous, as torch has the rule."""
    by_step = sorted(g.walked_dims, key=lambda dim: g.stride[dim])
    return g.numel < 2 or _packed(g, by_step)


def dim_order(g: Geometry) -> tuple[int, ...] | None:
    """The dims from the slowest to the fastest, as torch has them; None if not dense.

    Dims of size 1 go where torch's own sorting leaves them.
    """
    if not non_overlapping_and_dense(g):
        return None
    plain = _plain_order(g)
    return plain or tuple(reversed(_sorted_by_speed((g,))))


def dim_order_unique(g: Geometry) -> bool | None:
    """Whether torch accepts only one order of the dims; None if not dense."""
    if not non_overlapping_and_dense(g):
        return None
    if 1 in g.size or any(one == other for one, other in pairwise(g.stride)):
        return False
    order = _sorted_by_speed((g,))
    in_order = all(_compared((g,), *pair) < 0 for pair in pairwise(order))
    return in_order or bool(_plain_order(g))


def common_order(tensors: Sequence[Geometry]) -> tuple[int, ...]:
    """The dims in which an element-wise operator walks tensors of one size.

    From the slowest to the fastest, as torch orders them. Where the tensors disagree
    the first has its way. Dims that a tensor repeats, with stride 0, leave the word to
    the others.
    """
    if all(map(is_contiguous, tensors)):
        return tuple(range(tensors[0].ndim))
    if tensors[0].ndim == 4 and all(map(is_channels_last, tensors)):
        return (0, 2, 3, 1)
    return tuple(reversed(_sorted_by_speed(tensors)))


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


def _misfit(g: Geometry) -> tuple[int, int] | None:
    """The first dim whose stride is too small for channels last, and the least fit."""
    least = 0
    for dim in _channels_last_order(g):
        # All sizes but the batch's are 1: only row-major is meant by that.
        lone_pixels = dim == 0 and least == g.stride[1]
        if g.stride[dim] < least or lone_pixels:
            return dim, least
        least = g.stride[dim] * g.size[dim]
    return None


def _both_fit(g: Geometry, names: str) -> str:
    if 0 in g.size:
        return "it has no elements: every format fits"
    if g.size[1] == 1:
        return (
            "C = 1: with one channel both formats put every element in the same place"
        )
    pixel = " = ".join(names[2:])
    return (
        f"{pixel} = 1: with one pixel both formats put every element in the same place"
    )


def _plain_order(g: Geometry) -> tuple[int, ...]:
    """The order that the two flags give; empty if they give none, or both."""
    dims = tuple(range(g.ndim))
    is_image = g.ndim == 4 and is_channels_last(g)
    if is_contiguous(g) != is_image:
        return (0, *dims[2:], 1) if is_image else dims
    return ()


def _sorted_by_speed(tensors: Sequence[Geometry]) -> list[int]:
    """The dims, fastest first, by insertion from the last one.

    Comparisons may be undecided, so another way of sorting would leave dims of
    size 1 elsewhere than torch does.
    """
    ndim = tensors[0].ndim
    order = list(reversed(range(ndim)))
    for start in range(1, ndim):
        moving = start
        for other in reversed(range(start)):
            verdict = _compared(tensors, order[other], order[moving])
            if verdict < 0:
                break
            if verdict > 0:
                order[other], order[moving] = order[moving], order[other]
                moving = other
    return order


def _compared(tensors: Sequence[Geometry], faster: int, slower: int) -> int:
    """Below 0 if the two dims are in order, above 0 if not, 0 if nobody decides."""
    for g in tensors:
        steps = g.stride[faster], g.stride[slower]
        if 0 in steps:
            continue
        if steps[0] != steps[1]:
            return -1 if steps[0] < steps[1] else 1
        if g.size[faster] > g.size[slower]:
            return 1
    return 0


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
    step_bytes = g.stride[dim] * g.itemsize
    lowest = min(start, start + (lanes - 1) * step_bytes)
    sectors = _pieces(lowest, abs(step_bytes), lanes, g.itemsize, SECTOR_BYTES)
    unique_bytes = g.itemsize * (lanes if step_bytes else 1)
    return WarpRead(
        dim=dim,
        lanes=lanes,
        requested_bytes=lanes * g.itemsize,
        unique_bytes=unique_bytes,
        sectors=sectors,
        lines=_pieces(lowest, abs(step_bytes), lanes, g.itemsize, _LINE_BYTES),
        fetched_bytes=sectors * SECTOR_BYTES,
        efficiency=unique_bytes / (sectors * SECTOR_BYTES),
        ideal_sectors=-(-unique_bytes // SECTOR_BYTES),
    )


def _pieces(start: int, step: int, lanes: int, item: int, piece: int) -> int:
    """How many aligned pieces of memory the lanes touch."""
    last_byte = start + (lanes - 1) * step + item - 1
    if step <= piece:  # no piece between the first and the last is stepped over
        return last_byte // piece - start // piece + 1
    if start % item == step % item == piece % item == 0:  # no item in two pieces
        return lanes
    lows = [start + lane * step for lane in range(lanes)]
    return len(
        {
            each
            for low in lows
            for each in range(low // piece, (low + item - 1) // piece + 1)
        }
    )
