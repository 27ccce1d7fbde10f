"""Robust statistics: medians with what they are worth, and which of two is faster.

The order of values tells it, and no shape of the noise is assumed. Times have a long
right tail, which moves a mean and its deviation at will, and hardly moves a rank.
"""

from __future__ import annotations

import enum
import itertools
import math
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.report.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

_SAME = math.log(1.01)  # a smaller effect is none: it is within what is worth knowing
_NEAREST = _SAME / 10  # an effect this near to the limit is taken to be so far from it
_FEWEST_PAIRS = 10
_SHORTEST_S = 1e-12  # no clock tells less from nothing, and nothing has no logarithm


class Interval(NamedTuple):
    """Where a median lies, and how sure that is.

    `coverage` is the probability that intervals found like this hold the true
    median. With few values it is well above what was asked for: there are no ranks
    between two neighbours.
    """

    low: float
    high: float
    coverage: float


def median(values: Sequence[float]) -> float:
    """The middle of the values, or half way between the two in the middle."""
    return quantile(values, 0.5)


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share of the values lies below.

    Between two values it is a straight line, as numpy and scipy draw it by default
    (method "linear", Hyndman and Fan's type 7).
    """
    if not values:
        raise ValueError("there is no quantile of no values")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    # Equal neighbours must give themselves exactly: low + (high - low) * x does.
    return low + (high - low) * (place - below)


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """What a quarter of the values lies below, and what a quarter lies above."""
    return quantile(values, 0.25), quantile(values, 0.75)


def honest_interval(
    values: Sequence[float], confidence: float = 0.95
) -> Interval | None:
    """Where the true median lies, also if each value resembles the one before.

    It reaches from the r-th smallest to the r-th largest value, with the greatest r
    that is still sure enough: how many values fall below the true median is counted
    like heads of a fair coin, so that the coverage is exact whatever the noise is.
    Values that depend on each other are worth fewer than they are: the ranks are those
    of `effective_count` values, spread over all of them. Drawing blocks again and
    again (a bootstrap) is the usual way; at the counts that are measured here its
    intervals prove much too narrow.
    """
    count = effective_count(values)
    found = symmetric_rank(count, confidence)
    if found is None:
        return None
    rank, coverage = found
    rank = (len(values) + 1) * rank // (count + 1)
    ordered = sorted(values)
    return Interval(ordered[rank - 1], ordered[-rank], coverage)


def effective_count(values: Sequence[float]) -> int:
    """How many values that do not depend on each other these are worth.

    Each value says again a part of what the one before has said: of a memory that
    halves with every step, the autocorrelation tells how much. Noise upon a slow
    wandering hides it there, so that the sides of the median are followed as well
    for as long as they are the same, and the worse of both answers counts. A
    correlation that chance alone gives (below one over the root of the count) is none.
    """
    count = len(values)
    again = autocorrelation(values)
    if again * math.sqrt(count) <= 1:
        return count
    again = min(again + 1 / count, 0.999)  # it comes out too low by about 1/n
    by_memory = (1 + again) / (1 - again)
    return int(count / max(by_memory, _times_said(values)))


def autocorrelation(values: Sequence[float]) -> float:
    """How much each value resembles the one before: 1 entirely, 0 not at all.

    It is 0 where all values are equal.
    """
    if not values:
        return 0.0
    # From the first one: the mean of equal values is not always quite their value.
    rest = [value - values[0] for value in values]
    mean = sum(rest) / len(rest)
    away = [value - mean for value in rest]
    return _products(away, 1) / whole if (whole := _products(away, 0)) > 0 else 0.0


def symmetric_rank(count: int, confidence: float) -> tuple[int, float] | None:
    """The greatest r with the median between r-th smallest and r-th largest."""
    whole = 1 << count
    missed = ways = 1  # all values on one side of the median: one way of 2**n
    found = None
    for rank in range(1, count // 2 + 1):
        coverage = (whole - 2 * missed) / whole
        if coverage < confidence:
            break
        found = rank, coverage
        ways = ways * (count - rank + 1) // rank
        missed += ways
    return found


def ranks_of(values: Sequence[float]) -> list[float]:
    """The place of each value in their order, from 1; equal ones share a mean place."""
    order = sorted(range(len(values)), key=values.__getitem__)
    places = [0.0] * len(values)
    done = 0
    for _, equal in itertools.groupby(order, key=values.__getitem__):
        group = list(equal)
        shared = done + (len(group) + 1) / 2
        for index in group:
            places[index] = shared
        done += len(group)
    return places


def rank_shift(before: Sequence[float], now: Sequence[float]) -> float:
    """How far the ranks of one group lie above those of another, in standard errors.

    It is Wilcoxon's sum of ranks: beyond 2 in either direction chance gets once in
    twenty times, if both are the same.
    """
    if not before or not now:
        raise ValueError("an empty group has no ranks to compare")
    every = len(before) + len(now)
    found = sum(ranks_of([*before, *now])[len(before) :])
    expected = len(now) * (every + 1) / 2
    error = math.sqrt(len(before) * len(now) * (every + 1) / 12)
    return (found - expected) / error


def _times_said(values: Sequence[float]) -> float:
    """How often the same is said, by the sides of the median that values lie on.

    Correlations are added over growing distances until two neighbouring ones cancel:
    what lies beyond is noise (Geyer's initial positive sequence).
    """
    middle = median(values)
    sides = [float((value > middle) - (value < middle)) for value in values]
    whole, times = _products(sides, 0), 1.0
    for distance in range(1, len(values) // 2, 2):
        both = _products(sides, distance) + _products(sides, distance + 1)
        if both <= 0:
            break
        times += 2 * both / whole
    return times


def _products(values: Sequence[float], distance: int) -> float:
    return float(sum(map(operator.mul, values, values[distance:])))


Pair = tuple[float, float]


class Verdict(enum.Enum):
    """What a comparison comes to; said of the newer code."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "the same"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True)
class Comparison(Record):
    """Pairs taken in turn, each of one sample of either code."""

    # seconds for one call of the base, and of the newer code
    pairs: tuple[tuple[float, float], ...]
    ratio: float  # the median of newer over base
    interval: Interval | None  # where the true ratio lies with 95 % confidence
    verdict: Verdict
    more_pairs: int | None = None  # about how many more pairs would settle it


def inverse(ratio: float | None) -> float | None:
    """How many times as fast, from how many times as long."""
    return 1 / ratio if ratio else None


def verdict_of(pairs: Sequence[Pair]) -> Comparison:
    """What pairs of samples come to, by the ranks of their ratios.

    *Faster* and *slower* need an interval without 1 and an effect above one percent;
    *the same* an interval within one percent of 1. All else cannot be told.
    """
    logs = logs_of(pairs)
    effect = median(logs)
    found = honest_interval(logs) or _around(effect, logs)
    verdict = Verdict.CANNOT_TELL
    if found is not None:
        if abs(effect) > _SAME and not found.low <= 0 <= found.high:
            verdict = Verdict.FASTER if effect < 0 else Verdict.SLOWER
        elif found.low >= -_SAME and found.high <= _SAME:
            verdict = Verdict.SAME
    unclear = verdict is Verdict.CANNOT_TELL
    return Comparison(
        pairs=tuple(pairs),
        ratio=math.exp(effect),
        interval=None if found is None else _as_ratios(found),
        verdict=verdict,
        more_pairs=_more_pairs(len(pairs), effect, found) if unclear else None,
    )


def _around(effect: float, logs: Sequence[float]) -> Interval | None:
    """All of many pairs, where none is farther from the effect than a tenth of it.

    They resemble each other too much for an interval of ranks, and yet nothing that
    wanders so little turns the verdict round.
    """
    low, high = min(logs), max(logs)
    if len(logs) < _FEWEST_PAIRS or max(effect - low, high - effect) > abs(effect) / 10:
        return None
    return Interval(low, high, 1 - 2 ** (1 - len(logs)))


def _more_pairs(count: int, effect: float, found: Interval | None) -> int:
    """About how many more would settle it, if the effect is what it seems.

    The interval narrows with the root of the count, until it leaves out 1, or lies
    within the limit, whichever of the two this effect allows.
    """
    if found is None:
        return max(_FEWEST_PAIRS - count, count)
    reach = max(found.high - effect, effect - found.low)
    room = abs(effect) if abs(effect) > _SAME else _SAME - abs(effect)
    wanted = count * (reach / max(room, _NEAREST)) ** 2
    return max(math.ceil(wanted) - count, 1)


def logs_of(pairs: Sequence[Pair]) -> list[float]:
    """Each ratio of newer over base as a logarithm: twice and half are as far."""
    return [
        math.log(max(newer, _SHORTEST_S) / max(base, _SHORTEST_S))
        for base, newer in pairs
    ]


def _as_ratios(logs: Interval) -> Interval:
    return Interval(math.exp(logs.low), math.exp(logs.high), logs.coverage)
