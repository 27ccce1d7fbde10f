"""What pairs of measurements say: which of two is faster, if that can be told."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic import ranks
from gpumagic.ranks import Interval
from gpumagic.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

Pair = tuple[float, float]

_SAME = math.log(1.01)  # a smaller effect is none: it is within what is worth knowing
_NEAREST = _SAME / 10  # an effect this near to the limit is taken to be so far from it
_FEWEST_PAIRS = 10
_SHORTEST_S = 1e-12  # no clock tells less from nothing, and nothing has no logarithm


class Verdict(enum.Enum):
    """What a comparison comes to; said of the newer code."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "the same"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True)
class Comparison(Record):
    """Pairs taken in turn, each of one sample of either code.

    Attributes:
        pairs: Seconds for one call of the base, and of the newer code.

        ratio: The median of newer over base.

        interval: Where the true ratio lies with 95 % confidence.

        more_pairs: About how many more pairs would settle it.
    """

    pairs: tuple[tuple[float, float], ...]
    ratio: float
    interval: Interval | None
    verdict: Verdict
    more_pairs: int | None = None


def verdict_of(pairs: Sequence[Pair]) -> Comparison:
    """What pairs of samples come to, by the ranks of their ratios.

    *Faster* and *slower* need an interval without 1 and an effect above one percent;
    *the same* an interval within one percent of 1. All else cannot be told.

    Args:
        pairs: Seconds of the base and of the newer code, in the order of taking them.

    Raises:
        ValueError: There are no pairs.
    """
    logs = logs_of(pairs)
    effect, found = ranks.median(logs), ranks.honest_interval(logs)
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
