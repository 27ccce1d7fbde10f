"""How often the places of two tensors meet, counted without visiting them."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpumagic.tensor_info.walks import Walks

# Choices looked at before the answer is "not decided": some twenty milliseconds.
MOST_WORK = 20_000
WORK_OF_CLOSED_FORM = 10  # it takes as long as so many choices
SAMPLES = 8  # of the choices of one level


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


def meetings(first: Walks, second: Walks, distance: int) -> int | None:
    """How many pairs of one sum of each are such that first - second == distance.

    Args:
        first: One tensor's walks, no two with the same step.

        second: The other's, likewise.

        distance: From where the first's walks begin to where the second's do.

    Returns:
        The number of pairs, or None where there was too much to try.
    """
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
    return choices[:: -(-len(choices) // SAMPLES) or 1]


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
    if work + len(open_distances) * WORK_OF_CLOSED_FORM > MOST_WORK:
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

    Between two cuts it is a polynomial of degree 2, so three values give the sum.
    """
    total = 0
    for before, last in pairwise(cuts):
        count = last - before
        if count <= 3:
            total += sum(map(ways, range(before + 1, last + 1)))
            continue
        one, two, three = (ways(before + ahead) for ahead in (1, 2, 3))
        total += count * one + math.comb(count, 2) * (two - one)
        total += math.comb(count, 3) * (three - 2 * two + one)
    return total
