"""Whether samples look like one steady thing measured again and again.

Each limit is one that a reader would want to know of, and a sign that chance alone
rarely gives; so a shape is a flag only where it is both large and clear.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.cuda_sync_time.report import Flag, FlagKind
from gpumagic.report import robust
from gpumagic.report.units import seconds_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SPREAD_LIMIT = 0.10  # interquartile range as a share of the median
CORRELATION_LIMIT = 0.5
_STEADY = 0.02  # of the time: less than this between two medians is no movement
_FEWEST_FOR_SPREAD = 3
_FEWEST_FOR_SHAPE = 10  # what ten samples do is as likely as not their own affair
_SMALLEST_CHANGE = 0.01  # less than this part of the time is of no interest
UNLIKELY = 2.576  # standard deviations that chance exceeds once in a hundred times
_SMALLEST_GROUP = 0.15  # as a share of the samples
_FEWEST_IN_GROUP = 3
_GAP = 3  # in interquartile ranges of the groups on either side


class Humps(NamedTuple):
    """Two groups of samples with nothing between them."""

    low: float
    high: float

    @property
    def ratio(self) -> float | None:
        """How many times the upper median is the lower one."""
        return self.high / self.low if self.low > 0 else None


def flags_of(seconds: Sequence[float]) -> tuple[Flag, ...]:
    """What a reader has to know of these samples, in the order they were taken in."""
    return tuple(_flags(seconds))


def spread(seconds: Sequence[float]) -> float | None:
    """The interquartile range as a share of the median; None where there is none."""
    if not seconds or (middle := robust.median(seconds)) <= 0:
        return None
    low, high = robust.quartiles(seconds)
    return (high - low) / middle


def drift(seconds: Sequence[float]) -> float | None:
    """How much the last third takes more than the first, as a share of the first."""
    if len(seconds) < _FEWEST_FOR_SHAPE:
        return None
    if abs(robust.rank_trend(seconds)) * math.sqrt(len(seconds) - 1) < UNLIKELY:
        return None
    third = len(seconds) // 3
    first, last = seconds[:third], seconds[-third:]
    (low, high), (last_low, last_high) = _reach(first), _reach(last)
    before = robust.median(first)
    if before <= 0 or (last_low <= high and low <= last_high):
        return None
    change = robust.median(last) / before - 1
    return change if abs(change) >= _SMALLEST_CHANGE else None


def humps(seconds: Sequence[float]) -> Humps | None:
    """The two groups that the samples form, if they do.

    Between two groups is the largest gap of all that leave enough samples on both
    sides. It must be wide beside either group, and one percent of the time.
    """
    count = len(seconds)
    if count < _FEWEST_FOR_SHAPE:
        return None
    ordered = sorted(seconds)
    fewest = max(_FEWEST_IN_GROUP, math.ceil(_SMALLEST_GROUP * count))
    splits = range(fewest, count - fewest + 1)
    gap, split = max((ordered[each] - ordered[each - 1], each) for each in splits)
    below, above = ordered[:split], ordered[split:]
    widest = max(high - low for low, high in map(robust.quartiles, (below, above)))
    if gap <= max(_GAP * widest, _SMALLEST_CHANGE * robust.median(ordered)):
        return None
    return Humps(robust.median(below), robust.median(above))


def are_alike(before: Sequence[float], now: Sequence[float]) -> bool:
    """Whether the medians of two stretches of time differ by less than two percent."""
    was = robust.median(before)
    return abs(robust.median(now) - was) <= _STEADY * was


def moved(before: Sequence[float], now: Sequence[float]) -> bool:
    """Whether they differ by more, and by more than chance does."""
    clear = abs(robust.rank_shift(before, now)) > UNLIKELY
    return clear and not are_alike(before, now)


def correlation(values: Sequence[float]) -> float | None:
    """How much each value resembles the one before; None where it is not much."""
    again = robust.autocorrelation(values)
    much = len(values) >= _FEWEST_FOR_SHAPE and again > CORRELATION_LIMIT
    return again if much else None


def worth_flags(values: Sequence[float]) -> Iterator[Flag]:
    """What keeps the interval of these values wide, or keeps them from having one."""
    again = correlation(values)
    if again is not None:
        yield Flag(FlagKind.CORRELATED, amount=again)
    elif robust.honest_interval(values) is None:
        yield Flag(FlagKind.FEW, amount=len(values))


def _flags(seconds: Sequence[float]) -> Iterator[Flag]:
    share = spread(seconds) if len(seconds) >= _FEWEST_FOR_SPREAD else None
    if share is not None and share > SPREAD_LIMIT:
        yield Flag(FlagKind.SPREAD, amount=share)
    if (change := drift(seconds)) is not None:
        yield Flag(FlagKind.DRIFT, amount=change)
    if (groups := humps(seconds)) is not None:
        names = tuple(map(seconds_text, groups))
        yield Flag(FlagKind.TWO_HUMPS, amount=groups.ratio, names=names)
    yield from worth_flags(seconds)


def _reach(values: Sequence[float]) -> tuple[float, float]:
    """Where the median lies; of too few values somewhere between all of them."""
    found = robust.median_interval(values)
    return (found.low, found.high) if found else (min(values), max(values))
