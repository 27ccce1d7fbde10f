"""Which axes a tensor is drawn along, and which indices of each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

from gpumagic.tensor_info.diagram.places import Places
from gpumagic.tensor_info.diagram.tiles import FILLS

if TYPE_CHECKING:
    from gpumagic.tensor_info.report import TensorReport

# More dims than these are drawn as the runs that memory has them in.
_MOST_DIMS = 4

# The first and last indices that are drawn, and up to which size all are.
_OF_PAGES = 3, 2, 6
_OF_BLOCKS = 2, 1, 5

# A tensor as small as this is drawn whole: a break would hide what it shows.
_SMALL, _SMALL_AXIS = 64, 16


@dataclass(frozen=True)
class Axis:
    """One direction of a figure: a dim, or dims that are walked as one."""

    dims: tuple[int, ...]
    size: int
    step: int

    @property
    def name(self) -> str:
        """What the axis is called in a figure."""
        if len(self.dims) == 1:
            return f"dim {self.dims[0]}"
        return f"dims {'+'.join(map(str, self.dims))}"


@dataclass(frozen=True)
class Sight:
    """A tensor as it is drawn: along at most four axes, the others held at 0."""

    axes: tuple[Axis, ...]
    offset: int
    itemsize: int
    stored: int | None  # places in the storage; None if unknown

    @cached_property
    def places(self) -> Places:
        """Where the elements lie, by all axes."""
        sizes = tuple(axis.size for axis in self.axes)
        return Places(self.offset, sizes, tuple(axis.step for axis in self.axes))

    @property
    def held(self) -> tuple[Axis, ...]:
        """The slowest axes where there are more than can be drawn."""
        return self.axes[: max(len(self.axes) - _MOST_DIMS, 0)]

    @property
    def drawn(self) -> tuple[Axis, ...]:
        """The axes that a figure spreads out."""
        return self.axes[len(self.held) :]

    @property
    def colour_axis(self) -> int | None:
        """The axis whose index is the colour: the slowest that moves.

        Of four axes the second comes before the first: of images it is the channel.
        """
        numbers = list(range(len(self.held), len(self.axes)))
        if len(numbers) == _MOST_DIMS:
            numbers[:2] = numbers[1::-1]
        return next((at for at in numbers if self._moves(self.axes[at])), None)

    @property
    def fastest(self) -> Axis | None:
        """The axis that a walk through memory moves along first.

        None where there is no choice, or windows overlap and it depends.
        """
        moving = [axis for axis in self.axes if self._moves(axis)]
        if len(moving) < 2 or not self.places.nested:
            return None
        return min(moving, key=lambda axis: abs(axis.step))

    @staticmethod
    def _moves(axis: Axis) -> bool:
        return axis.size > 1 and axis.step != 0

    def fill(self, index: tuple[int, ...]) -> str:
        """The colour of the element at an index."""
        axis = self.colour_axis
        return FILLS[0 if axis is None else index[axis] % len(FILLS)]

    def label(self, index: tuple[int, ...]) -> str:
        """An index in a few letters; by its number where it has too many parts."""
        if len(index) <= _MOST_DIMS:
            return ",".join(map(str, index)) or "[]"
        number = 0
        for at, axis in zip(index, self.axes, strict=True):
            number = number * axis.size + at
        return f"#{number}"

    def is_ghost(self, index: tuple[int, ...]) -> bool:
        """Whether a stride of 0 shows the same element at a lower index already."""
        return any(
            at and not axis.step for at, axis in zip(index, self.axes, strict=True)
        )

    @property
    def small(self) -> bool:
        """Whether all of it is drawn."""
        sizes = self.places.sizes
        return prod(sizes) <= _SMALL and max(sizes, default=1) <= _SMALL_AXIS

    def shown(self, axis: Axis) -> tuple[int | None, ...]:
        """The indices of an axis that are drawn; None stands for those left out."""
        in_blocks = len(self.drawn) == _MOST_DIMS
        head, tail, whole = _OF_BLOCKS if in_blocks else _OF_PAGES
        if self.small or axis.size <= whole:
            return tuple(range(axis.size))
        return (*range(head), None, *range(axis.size - tail, axis.size))


def sight_of(report: TensorReport) -> Sight | None:
    """How a tensor is drawn; None if it has no element or no geometry."""
    if report.size is None or report.stride is None or not prod(report.size):
        return None
    itemsize, stored_bytes = report.itemsize or 1, report.storage_bytes
    stored = None if stored_bytes is None else stored_bytes // itemsize
    return Sight(_axes(report), report.storage_offset or 0, itemsize, stored)


def _axes(report: TensorReport) -> tuple[Axis, ...]:
    sizes, steps = report.size or (), report.stride or ()
    if len(sizes) > _MOST_DIMS and report.free_merges is not None:
        return tuple(
            Axis(merge.dims, merge.numel, merge.step) for merge in report.free_merges
        )
    dims = enumerate(zip(sizes, steps, strict=True))
    keep_all = len(sizes) <= _MOST_DIMS
    return tuple(
        Axis((dim,), size, step) for dim, (size, step) in dims if keep_all or size > 1
    )
