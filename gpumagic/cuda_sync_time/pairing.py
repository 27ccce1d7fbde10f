"""Compares two codes that run in turn, so that what the machine does meets both.

Pairs are taken until the budget is spent, and nobody looks at a result before: whoever
stops when a difference shows finds one in noise as well. When sampling ends is decided
by the time of both codes together, which does not tell which of them is faster; the
chance of a verdict on two equal codes stays that of the interval, at most 5 %.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpumagic.cuda_sync_time import samples_shape
from gpumagic.cuda_sync_time.environment_changes import flags_between
from gpumagic.cuda_sync_time.report import Flag, FlagKind
from gpumagic.cuda_sync_time.sample_until_stable import warm_up
from gpumagic.cuda_sync_time.sampling import Sampler
from gpumagic.report.robust import Comparison, Pair, Verdict, logs_of, verdict_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

    from gpumagic.cuda_sync_time.options import Options
    from gpumagic.cuda_sync_time.report import Mode
    from gpumagic.devices.protocols import Runtime

_MOST_PAIRS = 500


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
    options: Options,
    *,
    floor_s: float,
    random: Random,
    progress: Callable[[float], object] | None = None,
) -> Compared:
    """Sample two codes in turn, and say which one is faster, if that can be told.

    Both are warmed up, and both samples of a pair have the same calls. Pairs come as
    base, newer, newer, base or the other way round, by chance: what gets faster or
    slower all the time, and what it means to be the second, then cancels.

    A body is called with how often it is to run; `samples` is the number of pairs. Who
    goes first is decided by `random`, never by Python's own generator, which is the
    user's.
    """
    sampler = Sampler((base, newer), runtime, options, progress=progress)
    with sampler.undisturbed():
        warm = warm_up(sampler, runtime, options, floor_s=floor_s)
        pairs: list[Pair] = [(base_s, newer_s) for base_s, newer_s in warm.kept]
        for newer_first in _orders(random):
            if _is_enough(len(pairs), sampler, options):
                break
            pairs.append(_pair(sampler, newer_first=newer_first))
        flags = flags_between(warm.environment, sampler.environment())
    result = verdict_of(pairs)
    if not warm.steady:
        flags += (Flag(FlagKind.UNSTEADY),)
    flags += tuple(samples_shape.worth_flags(logs_of(pairs)))
    wants_more = result.verdict is Verdict.CANNOT_TELL and options.samples is None
    if wants_more and sampler.budget.spent:
        flags += (sampler.budget.out_of_time(),)
    return Compared(result, sampler.mode, sampler.calls, sampler.runs, flags)


def _is_enough(count: int, sampler: Sampler, options: Options) -> bool:
    if options.samples is not None:
        return count >= options.samples
    return count >= _MOST_PAIRS or sampler.budget.has_to_end(count)


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
