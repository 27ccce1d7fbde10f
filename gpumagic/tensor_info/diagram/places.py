"""From an index to its place in the storage and back, in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Only overlapping windows make a search necessary; it stops before it is felt.
_MOST_TRIED = 150


@dataclass(frozen=True)
class Landing:
    """Which indices lead to one place: one of them, and how many there are.

    None found after a search that was cut short is `times` 0: it is not decided.
    """

    index: tuple[int, ...]
    times: int
    at_least: bool = False  # the search was cut short


@dataclass(frozen=True)
class Places:
    """The places of a tensor's elements; it has at least one."""

    offset: int
    sizes: tuple[int, ...]
    steps: tuple[int, ...]

    def of(self, index: Sequence[int]) -> int:
        """The place of the element at an index."""
        moved = sum(at * step for at, step in zip(index, self.steps, strict=True))
        return self.offset + moved

    @cached_property
    def first(self) -> int:
        """The lowest place; steps may go down."""
        reaches = self._reaches
        return self.offset + sum(reach for reach in reaches if reach < 0)

    @cached_property
    def last(self) -> int:
        """The highest place."""
        reaches = self._reaches
        return self.offset + sum(reach for reach in reaches if reach > 0)

    @property
    def _reaches(self) -> list[int]:
        return [
            (size - 1) * step for size, step in zip(self.sizes, self.steps, strict=True)
        ]

    @cached_property
    def _moving(self) -> list[tuple[int, int, int]]:
        """Size, step and axis of what moves at all, the farthest step first."""
        axes = zip(self.sizes, self.steps, range(len(self.sizes)), strict=True)
        moving = [
            (size, abs(step), axis) for size, step, axis in axes if size > 1 and step
        ]
        return sorted(moving, key=lambda each: -each[1])

    @cached_property
    def _repeats(self) -> int:
        times = 1
        for size, step in zip(self.sizes, self.steps, strict=True):
            times *= 1 if step else size
        return times

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
        """Where the walk through memory first has to take a longer step.

        Args:
            after: Ends up to this place are too near to be of interest.
        """
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
        index = [0] * len(self.sizes)
        for at, (size, _, axis) in zip(chosen, self._moving, strict=True):
            index[axis] = at if self.steps[axis] > 0 else size - 1 - at
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
