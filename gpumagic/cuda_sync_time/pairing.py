"""Compares two codes that run in turn, so that what the machine does meets both.

Pairs are taken until the budget is spent, and nobody looks at a result before: whoever
stops when a difference shows finds one in noise as well. When sampling ends is decided
by the time of both codes together, which does not tell which of them is faster; the
chance of a verdict on two equal codes stays that of the interval, at most 5 %.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.cuda_sync_time import ranks, samples_shape
from gpumagic.cuda_sync_time.ranks import Interval
from gpumagic.cuda_sync_time.report import (
    Comparison,
    Flag,
    FlagKind,
    Mode,
    Verdict,
)
from gpumagic.cuda_sync_time.sampling import Plan, Sampler
from gpumagic.cuda_sync_time.surroundings import flags_between

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from random import Random

    from gpumagic.devices.protocols import Runtime

Pair = tuple[float, float]

_SAME = math.log(1.01)  # a smaller effect is none: it is within what is worth knowing
_NEAREST = _SAME / 10  # an effect this near to the limit is taken to be so far from it
_FEWEST_PAIRS = 10
_MOST_PAIRS = 500
_SHORTEST_S = 1e-12  # no clock tells less from nothing, and nothing has no logarithm


class Compared(NamedTuple):
    """What a comparison came to.

    `mode` is what a sample is, and `calls` is how many calls of a code it has; `runs`
    is how often both codes ran altogether; `flags` is what has to be known besides.
    """

    result: Comparison
    mode: Mode
    calls: int
    runs: int
    flags: tuple[Flag, ...]


def compare(  # noqa: PLR0913 -- two codes, and all that one code needs
    base: Callable[[int], object],
    newer: Callable[[int], object],
    runtime: Runtime,
    plan: Plan,
    *,
    floor_s: float,
    random: Random,
    progress: Callable[[float], object] | None = None,
) -> Compared:
    """Sample two codes in turn, and say which one is faster, if that can be told.

    Both are warmed up, and both samples of a pair have the same calls. Pairs come as
    base, newer, newer, base or the other way round, by chance: what gets faster or
    slower all the time, and what it means to be the second, then cancels.

    Args:
        base: What the other one is compared with; called with how often to run.

        newer: The one that the verdict is about.

        runtime: Whose devices are waited for, and whose clock is read.

        plan: How it is to be done; `samples` is the number of pairs.

        floor_s: What an empty cell is measured as.

        random: Decides who goes first; never Python's own generator, which is the
            user's.

        progress: Called between samples with the share of the budget that is spent.

    Raises:
        DeviceError: Caches are to be flushed, and no device is used.

        BaseException: What a code raises, or an interrupt; the devices are idle.
    """
    sampler = Sampler((base, newer), runtime, plan, floor_s=floor_s, progress=progress)
    with sampler.undisturbed():
        warm = sampler.warm_up()
        pairs: list[Pair] = [(base_s, newer_s) for base_s, newer_s in warm.kept]
        for newer_first in _orders(random):
            if _is_enough(len(pairs), sampler, plan):
                break
            pairs.append(_pair(sampler, newer_first=newer_first))
        flags = flags_between(warm.surroundings, sampler.surroundings())
    result = verdict_of(pairs)
    if not warm.steady:
        flags += (Flag(FlagKind.UNSTEADY),)
    flags += tuple(samples_shape.worth_flags(_logs(pairs)))
    if result.verdict is Verdict.CANNOT_TELL and plan.samples is None and sampler.spent:
        flags += (Flag(FlagKind.OUT_OF_TIME),)
    return Compared(result, sampler.mode, sampler.calls, sampler.runs, flags)


def verdict_of(pairs: Sequence[Pair]) -> Comparison:
    """What pairs of samples come to, by the ranks of their ratios.

    *Faster* and *slower* need an interval without 1 and an effect above one percent;
    *the same* an interval within one percent of 1. All else cannot be told.

    Args:
        pairs: Seconds of the base and of the newer code, in the order of taking them.

    Raises:
        ValueError: There are no pairs.
    """
    logs = _logs(pairs)
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


def _is_enough(count: int, sampler: Sampler, plan: Plan) -> bool:
    if plan.samples is not None:
        return count >= plan.samples
    return count >= _MOST_PAIRS or (count > 0 and sampler.spent)


def _orders(random: Random) -> Iterator[bool]:
    """Whether the newer code goes first, pair by pair, in balanced blocks of two."""
    while True:
        newer_first = random.random() < 0.5
        yield newer_first
        yield not newer_first


def _pair(sampler: Sampler, *, newer_first: bool) -> Pair:
    if newer_first:
        newer = sampler.sample(1)
        return sampler.sample(0), newer
    base = sampler.sample(0)
    return base, sampler.sample(1)


def _as_ratios(logs: Interval) -> Interval:
    return Interval(math.exp(logs.low), math.exp(logs.high), logs.coverage)


def _logs(pairs: Sequence[Pair]) -> list[float]:
    return [
        math.log(max(newer, _SHORTEST_S) / max(base, _SHORTEST_S))
        for base, newer in pairs
    ]
