"""Compares two codes that run in turn, so that what the machine does meets both.

Pairs are taken until the budget is spent, and nobody looks at a result before: whoever
stops when a difference shows finds one in noise as well. When sampling ends is decided
by the time of both codes together, which does not tell which of them is faster; the
chance of a verdict on two equal codes stays that of the interval, at most 5 %.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpumagic.cuda_sync_time.records import Flag, FlagKind
from gpumagic.cuda_sync_time.sampling import Sampler
from gpumagic.report.robust import Comparison, Pair, Verdict, verdict_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

    from gpumagic.cuda_sync_time.options import Options
    from gpumagic.cuda_sync_time.records import Mode
    from gpumagic.cuda_sync_time.sampling import Body
    from gpumagic.devices.protocols import Runtime

_MOST_PAIRS = 500


class Compared(NamedTuple):
    """What a comparison came to."""

    result: Comparison
    mode: Mode  # what a sample is
    calls: int  # of a code in each sample
    runs: int  # of both codes altogether
    flags: tuple[Flag, ...]


def compare(  # noqa: PLR0913 -- two codes, and all that one code needs
    base: Body,
    newer: Body,
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
    slower all the time, and what it means to be the second, then cancels. Who goes
    first is decided by `random`, never by Python's own generator, which is the user's.
    """
    sampler = Sampler(
        (base, newer), runtime, options, floor_s=floor_s, progress=progress
    )
    with sampler.undisturbed():
        pairs: list[Pair] = [(base_s, newer_s) for base_s, newer_s in sampler.warm_up()]
        _fill(pairs, sampler, options, random)
        flags = sampler.changes()
    result = verdict_of(pairs)
    if not sampler.steady:
        flags += (Flag(FlagKind.UNSTEADY),)
    wants_more = result.verdict is Verdict.CANNOT_TELL and options.samples is None
    if wants_more and sampler.budget_is_spent:
        flags += (Flag(FlagKind.OUT_OF_TIME),)
    return Compared(result, sampler.mode, sampler.calls, sampler.runs, flags)


def _fill(
    pairs: list[Pair], sampler: Sampler, options: Options, random: Random
) -> None:
    """Take pairs until there are enough."""
    orders = _orders(random)
    while not _is_enough(len(pairs), sampler, options):
        seconds = {index: sampler.sample(index) for index in next(orders)}
        pairs.append((seconds[0], seconds[1]))


def _is_enough(count: int, sampler: Sampler, options: Options) -> bool:
    if options.samples is not None:
        return count >= options.samples
    return count >= _MOST_PAIRS or sampler.has_to_end(count)


def _orders(random: Random) -> Iterator[tuple[int, int]]:
    """Which code goes first, pair by pair, in balanced blocks of two."""
    while True:
        first = int(random.random() < 0.5)
        yield first, 1 - first
        yield 1 - first, first
