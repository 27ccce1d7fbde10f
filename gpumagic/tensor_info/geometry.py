"""Sizes and strides: where elements lie, which layouts those are, which views work.

Closed forms on numbers: what they cost depends on the dims, never on the elements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.report.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable

_CONTIGUOUS = "contiguous_format"
LANES, SECTOR_BYTES, LINE_BYTES = 32, 32, 128


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


@dataclass(frozen=True)
class Geometry(Record):
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


def dim_order(g: Geometry) -> tuple[int, ...]:
    """The dims from the slowest to the fastest, as torch has them; empty if not dense.

    Dims of size 1 take no step and may stand anywhere.
    """
    if not non_overlapping_and_dense(g):
        return ()
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


def warp_reads(g: Geometry, start: int) -> tuple[WarpRead, ...]:
    """What 32 lanes fetch along each dim from an address on, the other indices at 0."""
    return tuple(_read(g, dim, start) for dim in range(g.ndim)) if g.numel else ()


def _read(g: Geometry, dim: int, start: int) -> WarpRead:
    lanes = min(LANES, g.size[dim])
    lows = {start + lane * g.stride[dim] * g.itemsize for lane in range(lanes)}
    asked = {low + byte for low in lows for byte in range(g.itemsize)}
    sectors = len({byte // SECTOR_BYTES for byte in asked})
    return WarpRead(
        dim=dim,
        lanes=lanes,
        unique_bytes=len(asked),
        sectors=sectors,
        lines=len({byte // LINE_BYTES for byte in asked}),
        fetched_bytes=sectors * SECTOR_BYTES,
        efficiency=len(asked) / (sectors * SECTOR_BYTES),
        ideal_sectors=-(-len(asked) // SECTOR_BYTES),
    )


# --------------------------------------------------------------- which views work


class Run(NamedTuple):
    """Dims that are walked as one: `numel` elements, each `step` after the last."""

    dims: tuple[int, ...]
    numel: int
    step: int


@dataclass(frozen=True)
class View(Record):
    """Whether `.view(shape)` works, and if not, what is in its way."""

    shape: tuple[int, ...]  # with -1 filled in
    view: bool
    stride: tuple[int, ...] = ()  # of the view
    reshape_copies_bytes: int = 0  # 0 where reshape gives a view
    blocked_between_old_dims: tuple[int, ...] = ()  # the two in the way, if any
    blocked_new_dim: int = 0  # this and what follows are about those two
    stride_found: int | None = None  # of the outer of the two old dims
    stride_needed: int | None = None
    last_index: tuple[int, ...] | None = None  # the last before the misfit
    last_element: int | None = None  # and its place in the storage
    next_element: int | None = None  # where the next element lies
    next_expected: int | None = None  # where a view would look for it
    permutation_that_works: tuple[int, ...] = ()  # x.permute(p).view(-1)
    problem: str = ""  # why the shape is no shape for this tensor at all


def merges(g: Geometry) -> tuple[Run, ...]:
    """The dims in the fewest runs that are walked with one step each.

    Every dim with more than one index is in exactly one run, also if it is alone
    there; dims of size 1 are in none. An empty tensor has no runs.
    """
    if not g.numel:
        return ()
    runs: list[Run] = []
    for dim in reversed(g.walked_dims):
        count, step = g.size[dim], g.stride[dim]
        if runs and step == runs[-1].numel * runs[-1].step:
            inner = runs.pop()
            runs.append(Run((dim, *inner.dims), count * inner.numel, inner.step))
        else:
            runs.append(Run((dim,), count, step))
    return tuple(reversed(runs))


def flat(g: Geometry) -> bool:
    """Whether `.view(-1)` works."""
    return len(merges(g)) <= 1


def view(g: Geometry, shape: tuple[int, ...]) -> View:
    """Whether `.view(shape)` works, with torch's strides, or what is in its way.

    One -1 is worked out. A shape that no tensor of this many elements can have is a
    finding with a `problem`.
    """
    runs = merges(g)
    problem = _what_is_wrong(g.numel, shape)
    if problem:
        return View(shape, view=False, problem=problem)
    known = math.prod(count for count in shape if count != -1)
    shape = tuple(g.numel // known if count == -1 else count for count in shape)
    if not g.numel:
        stride = g.stride if shape == g.size else fresh_strides(shape)
        return View(shape, view=True, stride=stride)
    return _laid_over(g, runs, shape)


def _laid_over(g: Geometry, runs: tuple[Run, ...], shape: tuple[int, ...]) -> View:
    """Fit the new dims into the runs, both from the right.

    A new dim of size 1 gets the stride that torch gives it: that of the run it
    ends, and before the first run that of the last old dim, used or not.
    """
    inner = len(runs)  # the run that is being filled
    left, done = 1, 1
    step = (1, *g.stride)[-1]
    stride = [1] * len(shape)
    for dim in reversed(range(len(shape))):
        if shape[dim] != 1 and left == 1:
            inner -= 1
            left, done, step = runs[inner].numel, 1, runs[inner].step
        if left % shape[dim]:
            return _blocked(g, runs, shape, dim, inner)
        stride[dim] = step * done
        left //= shape[dim]
        done *= shape[dim]
    return View(shape, view=True, stride=tuple(stride))


def _blocked(
    g: Geometry, runs: tuple[Run, ...], shape: tuple[int, ...], dim: int, inner: int
) -> View:
    """Say where the walk along the new dim leaves the step of the inner run."""
    outer_dim, inner_dim = runs[inner - 1].dims[-1], runs[inner].dims[0]
    needed = runs[inner].numel * runs[inner].step
    by_step = sorted(range(g.ndim), key=lambda dim: -abs(g.stride[dim]))
    order = dim_order(g) or tuple(by_step)
    is_flat = flat(g.permuted(order))
    last = (0,) * (outer_dim + 1) + tuple(n - 1 for n in g.size[outer_dim + 1 :])
    return View(
        shape,
        view=False,
        reshape_copies_bytes=g.logical_bytes,
        blocked_new_dim=dim,
        blocked_between_old_dims=(outer_dim, inner_dim),
        stride_found=g.stride[outer_dim],
        stride_needed=needed,
        last_index=last,
        last_element=g.place(last),
        next_element=g.offset + g.stride[outer_dim],
        next_expected=g.offset + needed,
        permutation_that_works=order if is_flat else (),
    )


def _what_is_wrong(numel: int, shape: tuple[int, ...]) -> str:
    """Why no tensor of so many elements has this shape; empty if one can."""
    known = math.prod(count for count in shape if count != -1)
    unknown = shape.count(-1)
    if unknown == 0 and known != numel and min(shape, default=0) >= 0:
        return f"{shape} has {known} elements and the tensor has {numel}"
    # What could be any number is none, either.
    splits = unknown == 0 or (unknown == 1 and known > 0 and numel % known == 0)
    if min(shape, default=0) >= -1 and splits:
        return ""
    return f"{numel} elements cannot be split as {shape}"
