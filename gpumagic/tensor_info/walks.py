"""The places that a tensor reaches, as sums of steps: a set, in no order of dims."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.tensor_info.meetings import meetings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpumagic.tensor_info.geometry import Geometry

# One bit for each place: a million of them take a few milliseconds at most.
MOST_BITS = 2**20


class Walk(NamedTuple):
    """A step and how many stops it makes, the start among them; both are positive."""

    step: int
    stops: int

    @property
    def reach(self) -> int:
        """How far the last step leads."""
        return self.step * (self.stops - 1)


Walks = tuple[Walk, ...]


def walks_of(g: Geometry) -> Walks:
    """The walks that reach every place once for each index, the shortest step first.

    Dims that take no step are left out. A negative step reaches the same places
    as a positive one from the other end. The tensor must not be empty.
    """
    dims = zip(g.stride, g.size, strict=True)
    found: list[Walk] = []
    for step, count in sorted((abs(step), n) for step, n in dims if step and n > 1):
        if found and step == found[-1].step * found[-1].stops:
            found[-1] = Walk(found[-1].step, found[-1].stops * count)
        else:
            found.append(Walk(step, count))
    return tuple(found)


def in_units(walks: Walks, units: int) -> Walks:
    """The places of the units that every element is made of, bytes for example."""
    found = [Walk(walk.step * units, walk.stops) for walk in walks]
    if found and found[0].step == units:
        return (Walk(1, units * found[0].stops), *found[1:])
    return (Walk(1, units), *found) if units > 1 else tuple(found)


def as_a_set(walks: Walks) -> Walks:
    """Fewer walks to the same places: what lies within another's steps is absorbed.

    Overlapping windows along one dim become a single walk.
    """
    kept: list[Walk] = []
    for walk in walks:
        for at, wide in enumerate(kept):
            times, rest = divmod(walk.step, wide.step)
            if rest == 0 and times <= wide.stops:
                kept[at] = Walk(wide.step, wide.stops + times * (walk.stops - 1))
                break
        else:
            kept.append(walk)
    return tuple(kept)


def split_at(walks: Walks, steps: Iterable[int]) -> Walks:
    """The same places with long walks split into rows where one of the steps ends.

    Two tensors that are cut out of one matrix have rows of the same step, and what
    lies row beside row is compared at once.
    """
    found: dict[int, int] = {walk.step: walk.stops for walk in walks}
    for far in sorted(steps):
        for step, stops in found.items():
            row, rest = divmod(far, step)
            if far not in found and not rest and 1 < row < stops and not stops % row:
                found |= {step: row, far: stops // row}
                break
    return tuple(Walk(*each) for each in sorted(found.items()))


def reach(walks: Walks) -> int:
    """The highest place; the lowest is 0."""
    return sum(walk.reach for walk in walks)


def indices(walks: Walks) -> int:
    """How many sums there are, places that are reached twice counted twice."""
    return math.prod(walk.stops for walk in walks)


def independent(walks: Walks) -> list[Walks]:
    """Groups that cannot meet: the longer steps clear what the shorter ones reach."""
    groups: list[Walks] = []
    start, far = 0, 0
    for at, walk in enumerate(walks):
        if math.gcd(*(each.step for each in walks[at:])) > far and at > start:
            groups.append(walks[start:at])
            start = at
        far += walk.reach
    return [*groups, walks[start:]] if walks else groups


def distinct(walks: Walks) -> int | None:
    """How many places are reached; None where telling would take too long."""
    counts = [_distinct_in_group(group) for group in independent(as_a_set(walks))]
    known = [count for count in counts if count is not None]
    return math.prod(known) if len(known) == len(counts) else None


def _distinct_in_group(group: Walks) -> int | None:
    if len(group) == 1:
        return group[0].stops
    if len(group) == 2:
        return indices(group) - math.prod(met_by_pair(*group))
    if meetings(group, group, 0) == indices(group):  # each sum meets but itself
        return indices(group)
    bits = places_as_bits(group, divisor(group))
    return None if bits is None else bits.bit_count()


def divisor(walks: Walks) -> int:
    """What all steps are multiples of; 1 where there is none."""
    return math.gcd(*(walk.step for walk in walks)) or 1


def met_by_pair(short: Walk, long: Walk) -> tuple[int, int]:
    """From how many starts of each walk both can go on to one and the same place.

    `long.step // gcd` of the short steps lead where `short.step // gcd` of the long
    ones lead: the places that are reached again are the product of the two.
    """
    common = math.gcd(short.step, long.step)
    return (
        max(0, short.stops - long.step // common),
        max(0, long.stops - short.step // common),
    )


def places_as_bits(walks: Walks, unit: int) -> int | None:
    """A number with a bit for each place; None where it would be too long.

    Args:
        walks: What leads to the places.

        unit: What one bit stands for; all steps are multiples of it.
    """
    if reach(walks) // unit >= MOST_BITS:
        return None
    bits = 1
    for walk in walks:
        done = 1
        while done < walk.stops:
            more = min(done, walk.stops - done)
            bits |= bits << (more * walk.step // unit)
            done += more
    return bits
