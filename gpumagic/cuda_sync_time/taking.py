"""Samples one code until its median is known well, or the budget is spent."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time import samples_shape
from gpumagic.cuda_sync_time.plan import FEWEST_SAMPLES
from gpumagic.cuda_sync_time.records.flags import Flag, FlagKind
from gpumagic.cuda_sync_time.records.samples import Samples
from gpumagic.cuda_sync_time.sampling import Sampler
from gpumagic.cuda_sync_time.surroundings import flags_between
from gpumagic.cuda_sync_time.warming import warm_up
from gpumagic.report import robust

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpumagic.cuda_sync_time.plan import Plan
    from gpumagic.devices.protocols import Runtime

_MOST_SAMPLES = 1000
_NARROW = 0.01  # half the interval, as a share of the median
# An interval can be narrow by luck, and then it misses the median more often than it
# says. So it is looked at now and then, and must be found narrow twice in a row.
_GROWTH = 1.1  # of the samples, between two looks


def take(
    body: Callable[[int], object],
    runtime: Runtime,
    plan: Plan,
    *,
    floor_s: float,
    progress: Callable[[float], object] | None = None,
) -> tuple[Samples, tuple[Flag, ...]]:
    """Sample code until its median is known well, or the budget is spent.

    However long it takes, the code runs at least twice: the first run, and a sample.
    Code that leaves no time for warming up within the budget is not warmed up further.

    Args:
        body: Called with how often the code is to run.

        runtime: Whose devices are waited for, and whose clock is read.

        plan: How it is to be done.

        floor_s: What an empty cell is measured as.

        progress: Called between samples with the share that is done.

    Returns:
        The samples, and what has to be known besides.

    Raises:
        DeviceError: Caches are to be flushed, and no device is used.

        BaseException: What the code raises, or an interrupt; the devices are idle.
    """
    sampler = Sampler((body,), runtime, plan, progress=progress)
    with sampler.undisturbed():
        warm = warm_up(sampler, runtime, plan, floor_s=floor_s)
        seconds = [each for (each,) in warm.kept]
        in_time = _fill(seconds, sampler, plan)
        flags = flags_between(warm.surroundings, sampler.surroundings())
    samples = Samples(
        mode=sampler.mode,
        seconds=tuple(seconds),
        calls=sampler.calls,
        first_s=warm.firsts_s[0],
        warmup_calls=warm.runs,
        warmup_s=warm.seconds,
        cold=plan.cold,
    )
    known = (
        (() if warm.steady else (Flag(FlagKind.UNSTEADY),))
        + samples_shape.flags_of(seconds)
        + (() if in_time else (sampler.budget.out_of_time(),))
    )
    return samples, flags + known


def _fill(seconds: list[float], sampler: Sampler, plan: Plan) -> bool:
    """Sample until there are enough; whether they are so before the budget is spent."""
    if plan.samples is not None:
        while len(seconds) < plan.samples:
            seconds.append(sampler.sample(0))
        return True
    look_at, was_narrow = FEWEST_SAMPLES, False
    while len(seconds) < _MOST_SAMPLES:
        if sampler.budget.has_to_end(len(seconds)):
            return _is_narrow(seconds)
        seconds.append(sampler.sample(0))
        if len(seconds) >= look_at:
            is_narrow = _is_narrow(seconds)
            if is_narrow and was_narrow:
                return True
            look_at, was_narrow = math.ceil(len(seconds) * _GROWTH), is_narrow
    return True


def _is_narrow(seconds: Sequence[float]) -> bool:
    interval = robust.honest_interval(seconds)
    if interval is None:
        return False
    half = (interval.high - interval.low) / 2
    return half <= _NARROW * robust.median(seconds)
