"""Chooses the axes, the indices and the places of a tensor that a figure shows.

From an index to its place and back it takes closed forms: a picture costs what is
drawn, and not what the tensor holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.tensor_info.geometry import Geometry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.tensor_info.report import TensorReport

# Each carries text, so that those may be used as well that vanish on one theme.
FILLS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")

# An index of more parts than this is told by its number.
_MOST_PARTS = 4

# The first and last indices that are drawn, and up to which size all are.
_FIRST, _LAST, _WHOLE = 3, 2, 6

# A tensor as small as this is drawn whole: a break would hide what it shows.
_SMALL, _SMALL_AXIS = 64, 12

# Only overlapping windows make a search necessary; it stops before it is felt.
_MOST_TRIED = 150

# Up to so many places from the first to the last element, all are drawn.
_FEW = 48
_HEAD, _AROUND, _TAIL = 12, 2, 2


class Axis(NamedTuple):
    """One direction of a figure."""

    dim: int
    size: int
    step: int

    @property
    def name(self) -> str:
        """What the axis is called in a figure."""
        return f"dim {self.dim}"

    @property
    def moves(self) -> bool:
        """Whether a step along it leads elsewhere."""
        return self.size > 1 and self.step != 0


@dataclass(frozen=True)
class VisibleTensor:
    """A tensor as it is drawn."""

    axes: tuple[Axis, ...]
    offset: int
    itemsize: int
    stored: int | None  # places in the storage; None if unknown

    @cached_property
    def places(self) -> Places:
        """Where the elements lie, by all axes."""
        sizes = tuple(axis.size for axis in self.axes)
        steps = tuple(axis.step for axis in self.axes)
        return Places(sizes, steps, self.offset, self.itemsize)

    @property
    def fastest(self) -> Axis | None:
        """The axis that a walk through memory moves along first.

        None where there is no choice, or windows overlap and it depends.
        """
        moving = [axis for axis in self.axes if axis.moves]
        if len(moving) < 2 or not self.places.nested:
            return None
        return min(moving, key=lambda axis: abs(axis.step))

    def fill(self, index: tuple[int, ...]) -> str:
        """The colour of an element: its index along the slowest axis that moves."""
        moving = (at for at, axis in zip(index, self.axes, strict=True) if axis.moves)
        return FILLS[next(moving, 0) % len(FILLS)]

    def label(self, index: tuple[int, ...]) -> str:
        """An index in a few letters; by its number where it has too many parts."""
        if len(index) <= _MOST_PARTS:
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

    def shown(self, axis: Axis) -> tuple[int | None, ...]:
        """The indices of an axis that are drawn; None stands for those left out."""
        size = self.places.size
        is_small = prod(size) <= _SMALL and max(size) <= _SMALL_AXIS
        if is_small or axis.size <= _WHOLE:
            return tuple(range(axis.size))
        return (*range(_FIRST), None, *range(axis.size - _LAST, axis.size))


def visible_tensor(report: TensorReport) -> VisibleTensor | None:
    """How a tensor is drawn; None if it has no element or no geometry."""
    size, stride = report.size, report.stride
    if size is None or stride is None or not prod(size):
        return None
    dims = enumerate(zip(size, stride, strict=True))
    axes = tuple(Axis(dim, *each) for dim, each in dims)
    itemsize, stored_bytes = report.itemsize or 1, report.storage_bytes
    stored = None if stored_bytes is None else stored_bytes // itemsize
    return VisibleTensor(axes, report.storage_offset or 0, itemsize, stored)


@dataclass(frozen=True)
class Landing:
    """Which indices lead to one place: one of them, and how many there are.

    None found after a search that was cut short is `times` 0: it is not decided.
    """

    index: tuple[int, ...]
    times: int
    at_least: bool = False  # the search was cut short


class Places(Geometry):
    """The places of a tensor's elements; it has at least one."""

    @cached_property
    def first(self) -> int:
        """The lowest place; steps may go down."""
        return self.offset + self._reach(-1)

    @cached_property
    def last(self) -> int:
        """The highest place."""
        return self.offset + self._reach(+1)

    @cached_property
    def _moving(self) -> list[tuple[int, int, int, int]]:
        """Size, step, axis, what shorter steps reach; the farthest step first."""
        axes = zip(self.stride, self.size, range(self.ndim), strict=True)
        found, reach = [], 0
        for step, size, axis in sorted((abs(step), *each) for step, *each in axes):
            if size > 1 and step:
                found.append((size, step, axis, reach))
                reach += (size - 1) * step
        return found[::-1]

    @cached_property
    def nested(self) -> bool:
        """Whether each step leaps over all that the shorter ones reach."""
        return all(step > reach for _, step, _, reach in self._moving)

    def run_end(self, after: int) -> int:
        """Where the walk first takes a longer step, at a place after this one."""
        ends = [self.first + reach for *_, reach in reversed(self._moving)]
        return next((end for end in ends if end > after), self.last)

    def landing(self, place: int) -> Landing | None:
        """Which indices lead to a place; None if none does."""
        found: list[tuple[int, ...]] = []
        tried = self._search(0, place - self.first, (), found, 0)
        is_cut = tried > _MOST_TRIED
        if not found:
            return Landing((), 0, at_least=True) if is_cut else None
        pairs = zip(self.size, self.stride, strict=True)
        repeats = prod(size for size, step in pairs if not step)
        return Landing(min(map(self._index, found)), len(found) * repeats, is_cut)

    def _search(
        self,
        level: int,
        rest: int,
        chosen: tuple[int, ...],
        found: list[tuple[int, ...]],
        tried: int,
    ) -> int:
        """Collect the choices that add up to `rest`; returns how many were tried."""
        if level == len(self._moving):
            if rest == 0:
                found.append(chosen)
            return tried + 1
        size, step, _, reach = self._moving[level]
        lowest = max(0, -((reach - rest) // step))
        for at in range(lowest, min(size - 1, rest // step) + 1):
            left = rest - at * step
            tried = self._search(level + 1, left, (*chosen, at), found, tried + 1)
            if tried > _MOST_TRIED:
                break
        return tried

    def _index(self, chosen: tuple[int, ...]) -> tuple[int, ...]:
        index = [0] * self.ndim
        for at, (size, _, axis, _) in zip(chosen, self._moving, strict=True):
            index[axis] = at if self.stride[axis] > 0 else size - 1 - at
        return tuple(index)

    def next_used(self, place: int) -> int | None:
        """The first place from `place` on where an element lies.

        Where windows overlap, the next place is taken to be one, which costs
        nothing but a few unused places in the picture.
        """
        if place > self.last:
            return None
        if not self.nested:
            return max(place, self.first)
        rest, moved = place - self.first, 0
        for _, step, _, reach in self._moving:
            at = max(0, -((reach - rest) // step))
            moved, rest = moved + at * step, rest - at * step
        return self.first + moved

    def previous_used(self, place: int) -> int | None:
        """The last place up to `place` where an element lies."""
        # Seen from its end, a tensor's places look as they do from its beginning.
        mirrored = self.next_used(self.first + self.last - place)
        return None if mirrored is None else self.first + self.last - mirrored


def windows(visible: VisibleTensor, around: tuple[int, ...] = ()) -> list[list[int]]:
    """Runs of used places, each without one left out between its first and last.

    They lie at the first element, where the walk first takes a longer step,
    around the places asked for, and at the last element.
    """
    places = visible.places
    if places.last - places.first < _FEW:
        return [list(_walk(places.next_used, places.first, 1, _FEW))]
    runs = [list(_walk(places.next_used, places.first, 1, _HEAD))]
    for place in (places.run_end(runs[0][-1]), *around):
        before = list(_walk(places.previous_used, place, -1, _AROUND))[::-1]
        runs.append([*before, *_walk(places.next_used, place + 1, 1, _AROUND)])
    runs.append(list(_walk(places.previous_used, places.last, -1, _TAIL))[::-1])
    joined: list[list[int]] = []
    for run in sorted(runs):
        # What touches the run before it, or lies in it, goes on with that one.
        end = joined[-1][-1] if joined else -1
        if joined and run[0] <= (places.next_used(end + 1) or end):
            joined[-1] += [place for place in run if place > end]
        else:
            joined.append(run)
    return joined


def _walk(
    nearest: Callable[[int], int | None], place: int, direction: int, most: int
) -> Iterator[int]:
    at = nearest(place)
    for _ in range(most):
        if at is None:
            return
        yield at
        at = nearest(at + direction)
