"""A tensor as it is drawn: which indices are shown, and its elements by place.

From an index to its place and back it takes closed forms: a picture costs what is
drawn, and not what the tensor holds. Only windows that overlap are listed one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.tensor_info.geometry import Geometry
from gpumagic.tensor_info.overlap import is_nested

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpumagic.tensor_info.report import TensorReport

# Each carries text, so that those may be used as well that vanish on one theme.
FILLS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")

# An index of more parts than this is told by its number.
_MOST_PARTS = 4

# The first and last indices that are drawn, and up to which size all are.
_FIRST, _LAST, _WHOLE = 3, 2, 6

# A tensor as small as this is drawn whole: a break would hide what it shows.
_SMALL, _SMALL_AXIS = 64, 12

_MOST_LISTED = 4096

# Up to so many places from the first to the last element, all are drawn.
_FEW = 48
_HEAD, _TAIL = 12, 2


class Landing(NamedTuple):
    """A place with the lowest of the indices that lead there, and how many do."""

    place: int
    indices: tuple[int, ...]
    times: int


@dataclass(frozen=True)
class Visible(Geometry):
    """A tensor of at least one element, as it is drawn."""

    stored: int | None = None  # places in the storage; None if unknown

    @cached_property
    def first(self) -> int:
        """The lowest place."""
        return self.offset + self._reach(-1)

    @cached_property
    def last(self) -> int:
        """The highest place."""
        return self.offset + self._reach(+1)

    @cached_property
    def moving(self) -> list[int]:
        """The dims along which a step leads elsewhere, the farthest step first."""
        dims = [dim for dim in self.walked_dims if self.stride[dim]]
        return sorted(dims, key=lambda dim: -abs(self.stride[dim]))

    @property
    def fastest(self) -> int | None:
        """The dim that a walk through memory moves along first.

        None where there is no choice, or windows overlap and it depends.
        """
        return self.moving[-1] if self.moving[1:] and self._nested else None

    @property
    def is_in_order(self) -> bool:
        """Whether its elements can be told in the order of their places."""
        sizes = (self.size[dim] for dim in self.moving)
        return self._nested or prod(sizes) <= _MOST_LISTED

    @cached_property
    def _nested(self) -> bool:
        return is_nested(self)

    @cached_property
    def _listed(self) -> list[Landing] | None:
        """All places in their order, where windows overlap; else None."""
        if self._nested:
            return None
        found: dict[int, tuple[tuple[int, ...], int]] = {}
        sizes = (
            n if step else 1 for n, step in zip(self.size, self.stride, strict=True)
        )
        for index in product(*map(range, sizes)):
            place = self.place(index)
            lowest, times = found.get(place, (index, 0))
            found[place] = lowest, times + self._repeats
        return [Landing(place, *found[place]) for place in sorted(found)]

    @property
    def _repeats(self) -> int:
        pairs = zip(self.size, self.stride, strict=True)
        return prod(n for n, step in pairs if not step)

    @property
    def count(self) -> int:
        """How many places hold an element."""
        if self._listed is not None:
            return len(self._listed)
        return prod(self.size[dim] for dim in self.moving)

    def nth(self, number: int) -> Landing:
        """The place of this number in the order of places."""
        if self._listed is not None:
            return self._listed[number]
        index = [0] * self.ndim
        for dim in reversed(self.moving):
            number, at = divmod(number, self.size[dim])
            index[dim] = at if self.stride[dim] > 0 else self.size[dim] - 1 - at
        return Landing(self.place(tuple(index)), tuple(index), self._repeats)

    def number_of(self, place: int) -> int:
        """The number of the last place up to this one that holds an element."""
        if self._listed is not None:
            return sum(each.place <= place for each in self._listed) - 1
        number, rest = 0, max(place - self.first, 0)
        for dim in self.moving:
            step = abs(self.stride[dim])
            at = min(rest // step, self.size[dim] - 1)
            number, rest = number * self.size[dim] + at, rest - at * step
        return number

    def landing(self, place: int) -> Landing | None:
        """Which indices lead to a place; None if none does."""
        if not self.first <= place <= self.last:
            return None
        found = self.nth(self.number_of(place))
        return found if found.place == place else None

    def fill(self, index: tuple[int, ...]) -> str:
        """The colour of an element: its index along the slowest dim that moves."""
        moving = (index[dim] for dim in sorted(self.moving))
        return FILLS[next(moving, 0) % len(FILLS)]

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

    def windows(self, around: Iterable[int] = ()) -> list[range]:
        """The numbers of the places that a strip of memory shows, in runs.

        They lie at the first element, where the walk first takes a longer step,
        around the places asked for, and at the last element.
        """
        if self.last - self.first < _FEW:
            return [range(self.count)]
        inner = 1
        for dim in reversed(self.moving):
            if inner <= _HEAD:
                inner *= self.size[dim]
        near = [min(inner, self.count) - 1, *map(self.number_of, around)]
        runs = [(0, _HEAD), (self.count - _TAIL, self.count)]
        runs += ((number - 1, number + 3) for number in near)
        joined: list[range] = []
        for start, stop in sorted(runs):
            first, end = max(start, 0), min(stop, self.count)
            if joined and first <= joined[-1].stop:
                joined[-1] = range(joined[-1].start, max(end, joined[-1].stop))
            else:
                joined.append(range(first, end))
        return joined


def visible_tensor(report: TensorReport) -> Visible | None:
    """How a tensor is drawn; None if it has no element or no geometry."""
    size, stride = report.size, report.stride
    if size is None or stride is None or not prod(size):
        return None
    itemsize, stored_bytes = report.itemsize or 1, report.storage_bytes
    stored = None if stored_bytes is None else stored_bytes // itemsize
    return Visible(size, stride, report.storage_offset or 0, itemsize, stored)
