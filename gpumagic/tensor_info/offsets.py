"""Counts the places that tensors reach and share, without visiting them.

A tensor is a set of sums of steps here, its walks, in no order of dims. Where a count
would take too long it is None: not decided.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpumagic.tensor_info.geometry import Geometry

# One bit for each place: a million of them take a few milliseconds at most.
MOST_BITS = 2**20

# Choices looked at before the answer is "not decided": some twenty milliseconds.
MOST_WORK = 20_000
_WORK_OF_CLOSED_FORM = 10  # it takes as long as so many choices
_SAMPLES = 8  # of the choices of one level


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
    if shared_offsets(group, group, 0) == indices(group):  # each sum meets but itself
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

    One bit stands for a `unit`, and all steps are multiples of it.
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


@dataclass(frozen=True)
class _Level:
    """One step that the first takes up to `first` times, the second up to `second`.

    Only the difference of the two numbers of steps matters, from `-(second - 1)`
    to `first - 1`; `low` and `high` bound what all later levels can add.
    """

    step: int
    first: int
    second: int
    low: int
    high: int
    unit: int  # what this step and all later ones are multiples of

    def pairs(self, difference: int) -> int:
        """In how many ways the two numbers of steps differ by so much."""
        most = min(self.first, self.second + difference)
        return max(0, most - max(0, difference))

    def differences(self, distance: int) -> range:
        """Those after which the later levels may still make up for the rest."""
        if distance % self.unit:
            return range(0)
        least = max(1 - self.second, -((self.high - distance) // self.step))
        most = min(self.first - 1, (distance - self.low) // self.step)
        return range(least, most + 1)


def shared_offsets(first: Walks, second: Walks, distance: int) -> int | None:
    """How many pairs of one sum of each are such that first - second == distance."""
    counts = _counts(first, second)
    long_first = sorted(counts, reverse=True)
    found = _tried(_levels(counts, long_first), distance)
    if found is None:
        # Long steps first leave few choices, unless the short ones reach far.
        wide = sorted(long_first, key=lambda step: sum(counts[step]))[-2:]
        narrow_first = [step for step in long_first if step not in wide]
        found = _tried(_levels(counts, narrow_first + wide), distance)
    return found


def surely_meet(first: Walks, second: Walks, distance: int) -> bool:
    """Whether trying a few of the choices was enough to find a meeting."""
    counts = _counts(first, second)
    levels = _levels(counts, sorted(counts, reverse=True))
    open_distances = [distance]
    for level in levels[:-2]:
        open_distances = [
            rest - choice * level.step
            for rest in _few(open_distances)
            for choice in _few(level.differences(rest))
        ]
    return any(_with_two_steps(levels[-2:], rest) for rest in open_distances)


def _few(choices: Sequence[int]) -> Sequence[int]:
    return choices[:: -(-len(choices) // _SAMPLES) or 1]


def _counts(first: Walks, second: Walks) -> dict[int, tuple[int, int]]:
    """The stops that either makes with each of the steps."""
    one, other = dict(first), dict(second)
    return {step: (one.get(step, 1), other.get(step, 1)) for step in one | other}


def _levels(counts: dict[int, tuple[int, int]], order: list[int]) -> list[_Level]:
    """A level for each step in this order, bounded by those that come after it."""
    levels: list[_Level] = []
    low = high = unit = 0
    for step in reversed(order):
        first, second = counts[step]
        unit = math.gcd(unit, step)
        levels.append(_Level(step, first, second, low, high, unit))
        low -= step * (second - 1)
        high += step * (first - 1)
    return levels[::-1]


def _tried(levels: list[_Level], distance: int) -> int | None:
    """Try every choice, level by level; the last two together are a closed form."""
    open_distances = {distance: 1}
    work = 0
    for level in levels[:-2]:
        after: defaultdict[int, int] = defaultdict(int)
        for rest, ways in open_distances.items():
            choices = level.differences(rest)
            work += 1 + len(choices)
            if work > MOST_WORK:
                return None
            for choice in choices:
                after[rest - choice * level.step] += ways * level.pairs(choice)
        open_distances = after
    if work + len(open_distances) * _WORK_OF_CLOSED_FORM > MOST_WORK:
        return None
    return sum(
        ways * _with_two_steps(levels[-2:], rest)
        for rest, ways in open_distances.items()
    )


def _with_two_steps(levels: list[_Level], distance: int) -> int:
    """The meetings of at most two steps, in closed form."""
    if not levels:
        return int(distance == 0)
    if len(levels) == 1:
        (only,) = levels
        return 0 if distance % only.step else only.pairs(distance // only.step)
    long, short = levels  # as if: either may be the longer one
    choices = long.differences(distance)
    if not choices:
        return 0
    # The choices that leave a multiple of the short step recur with this period.
    period = short.step // long.unit
    first = distance // long.unit * pow(long.step // long.unit, -1, period) % period
    start = choices[0] + (first - choices[0]) % period
    count = len(range(start, choices[-1] + 1, period))
    rest = (distance - start * long.step) // short.step
    fall = long.step // long.unit

    def ways(at: int) -> int:
        return long.pairs(start + at * period) * short.pairs(rest - at * fall)

    corners = [
        *((corner - start) // period for corner in _corners(long)),
        *((rest - corner) // fall for corner in _corners(short)),
    ]
    cuts = sorted({-1, count - 1, *(cut for cut in corners if 0 <= cut < count)})
    return _summed(ways, cuts)


def _corners(level: _Level) -> tuple[int, int]:
    """The differences at which the number of pairs begins or ceases to grow."""
    return 0, level.first - level.second


def _summed(ways: Callable[[int], int], cuts: list[int]) -> int:
    """The sum over all numbers after the first cut, up to and with the last.

    Between two cuts it is a polynomial of degree 2, so three values give the sum;
    those beyond the last, where there are fewer, count for nothing.
    """
    total = 0
    for before, last in pairwise(cuts):
        count = last - before
        one, two, three = (ways(before + ahead) for ahead in (1, 2, 3))
        total += count * one + math.comb(count, 2) * (two - one)
        total += math.comb(count, 3) * (three - 2 * two + one)
    return total
