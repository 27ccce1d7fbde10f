"""Chooses the axes, the indices and the places of a tensor that a figure shows.

From an index to its place and back it takes closed forms: a picture costs what is
drawn, and not what the tensor holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

from gpumagic.drawing.palette import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY_BLUE,
    VERMILLION,
    YELLOW,
)
from gpumagic.tensor_info.geometry import Geometry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.tensor_info.report import TensorReport

FILLS = (ORANGE, SKY_BLUE, GREEN, YELLOW, BLUE, VERMILLION, PURPLE)
"""Each carries text, so that those may be used as well that vanish on one theme."""

# More dims than these are drawn as the runs that memory has them in.
_MOST_DIMS = 4

# The first and last indices that are drawn, and up to which size all are.
_OF_PAGES = 3, 2, 6
_OF_BLOCKS = 2, 1, 5

# A tensor as small as this is drawn whole: a break would hide what it shows.
_SMALL, _SMALL_AXIS = 64, 12

# Only overlapping windows make a search necessary; it stops before it is felt.
_MOST_TRIED = 150

# Up to so many places from the first to the last element, all are drawn.
_FEW = 48
_HEAD, _HEAD_OF_IMAGES, _AROUND, _TAIL = 12, 24, 2, 2


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
class VisibleTensor:
    """A tensor as it is drawn: along at most four axes, the others held at 0."""

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
        places = self.places
        return places.numel <= _SMALL and max(places.size, default=1) <= _SMALL_AXIS

    def shown(self, axis: Axis) -> tuple[int | None, ...]:
        """The indices of an axis that are drawn; None stands for those left out."""
        in_blocks = len(self.drawn) == _MOST_DIMS
        head, tail, whole = _OF_BLOCKS if in_blocks else _OF_PAGES
        if self.small or axis.size <= whole:
            return tuple(range(axis.size))
        return (*range(head), None, *range(axis.size - tail, axis.size))


def visible_tensor(report: TensorReport) -> VisibleTensor | None:
    """How a tensor is drawn; None if it has no element or no geometry."""
    if report.size is None or report.stride is None or not prod(report.size):
        return None
    itemsize, stored_bytes = report.itemsize or 1, report.storage_bytes
    stored = None if stored_bytes is None else stored_bytes // itemsize
    return VisibleTensor(_axes(report), report.storage_offset or 0, itemsize, stored)


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
    def _moving(self) -> list[tuple[int, int, int]]:
        """Size, step and axis of what moves at all, the farthest step first."""
        axes = zip(self.size, self.stride, range(self.ndim), strict=True)
        moving = [
            (size, abs(step), axis) for size, step, axis in axes if size > 1 and step
        ]
        return sorted(moving, key=lambda each: -each[1])

    @cached_property
    def _repeats(self) -> int:
        pairs = zip(self.size, self.stride, strict=True)
        return prod(size for size, step in pairs if not step)

    @cached_property
    def nested(self) -> bool:
        """Whether each step leaps over all that the shorter ones reach."""
        reach = 0
        for size, step, _ in reversed(self._moving):
            if step <= reach:
                return False
            reach += (size - 1) * step
        return True

    def run_end(self, after: int) -> int:
        """Where the walk first takes a longer step, at a place after this one."""
        end = self.first
        for size, step, _ in reversed(self._moving):
            end += (size - 1) * step
            if end > after:
                break
        return end

    def landing(self, place: int) -> Landing | None:
        """Which indices lead to a place; None if none does."""
        found: list[tuple[int, ...]] = []
        tried = self._search(self._moving, place - self.first, (), found, 0)
        cut_short = tried > _MOST_TRIED
        if not found:
            return Landing((), 0, at_least=True) if cut_short else None
        index = min(self._index(each) for each in found)
        return Landing(index, len(found) * self._repeats, cut_short)

    def _search(
        self,
        moving: list[tuple[int, int, int]],
        rest: int,
        chosen: tuple[int, ...],
        found: list[tuple[int, ...]],
        tried: int,
    ) -> int:
        """Collect the choices that add up to `rest`; returns how many were tried."""
        if not moving:
            if rest == 0:
                found.append(chosen)
            return tried + 1
        (size, step, _), shorter = moving[0], moving[1:]
        reach = sum((each - 1) * short for each, short, _ in shorter)
        lowest = max(0, -((reach - rest) // step))
        for at in range(lowest, min(size - 1, rest // step) + 1):
            tried = self._search(
                shorter, rest - at * step, (*chosen, at), found, tried + 1
            )
            if tried > _MOST_TRIED:
                break
        return tried

    def _index(self, chosen: tuple[int, ...]) -> tuple[int, ...]:
        index = [0] * self.ndim
        for at, (size, _, axis) in zip(chosen, self._moving, strict=True):
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
        for number, (_size, step, _) in enumerate(self._moving):
            if rest <= 0:
                break
            shorter = self._moving[number + 1 :]
            reach = sum((each - 1) * short for each, short, _ in shorter)
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
        return [list(_onward(places, places.first, _FEW))]
    head = _HEAD_OF_IMAGES if len(visible.drawn) > 3 else _HEAD
    first = list(_onward(places, places.first, head))
    end = places.run_end(first[-1])
    runs = [first, _beside(places, end)]
    runs += [_beside(places, place) for place in around]
    runs.append(_backward(places, places.last, _TAIL))
    return _joined(places, runs)


def _beside(places: Places, place: int) -> list[int]:
    return [
        *_backward(places, place, _AROUND),
        *_onward(places, place + 1, _AROUND),
    ]


def _onward(places: Places, place: int, most: int) -> Iterator[int]:
    return _walk(places.next_used, place, 1, most)


def _backward(places: Places, place: int, most: int) -> list[int]:
    return list(_walk(places.previous_used, place, -1, most))[::-1]


def _walk(
    nearest: Callable[[int], int | None], place: int, direction: int, most: int
) -> Iterator[int]:
    at = nearest(place)
    for _ in range(most):
        if at is None:
            return
        yield at
        at = nearest(at + direction)


def _joined(places: Places, runs: list[list[int]]) -> list[list[int]]:
    """The runs in order, those that touch as one."""
    joined: list[list[int]] = []
    for run in sorted(run for run in runs if run):
        if joined and run[0] <= _following(places, joined[-1][-1]):
            joined[-1] += [place for place in run if place > joined[-1][-1]]
        else:
            joined.append(run)
    return joined


def _following(places: Places, place: int) -> int:
    """The next used place; the same one where there is none."""
    following = places.next_used(place + 1)
    return place if following is None else following
