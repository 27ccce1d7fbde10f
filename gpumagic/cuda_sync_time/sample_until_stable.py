"""Warms code up, and samples it until its median is known well or the budget is spent.

A stretch is some rounds in a row, each of one sample of every code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time import samples_shape
from gpumagic.cuda_sync_time.environment_changes import flags_between
from gpumagic.cuda_sync_time.report import Flag, FlagKind, Mode, Samples
from gpumagic.cuda_sync_time.sampling import Elapsed, Sampler
from gpumagic.report import robust

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpumagic.cuda_sync_time.environment_changes import Environment
    from gpumagic.cuda_sync_time.options import Options
    from gpumagic.devices.protocols import Runtime

    Stretch = list[tuple[float, ...]]  # of rounds

FEWEST_SAMPLES = 10
_MOST_SAMPLES = 1000
_NARROW = 0.01  # half the interval, as a share of the median
# An interval can be narrow by luck, and then it misses the median more often than it
# says. So it is looked at now and then, and must be found narrow twice in a row.
_GROWTH = 1.1  # of the samples, between two looks
# Nor is a slow movement seen in a moment: clocks and caches settle within 0.3 s.
_SHORTEST_S, _SHORTEST_SHARE = 0.5, 0.5  # of the budget

# The budget counts from the end of the first run, which may compile for minutes.
# Half of it is for warming up, which ends much earlier if all is steady soon.
_WARMUP_SHARE = 0.5
_LONGEST_WARMUP_S = 1.0
_SHORTEST_WARMUP_S = 0.05
_STRETCH_SHARE = 0.025  # of the longest warm-up; long enough to see a clock rise
_FEWEST_ROUNDS = 5  # in a stretch
_PROBES = 2  # rounds that tell how many calls a sample has to have
_MOST_CALLS = 1 << 20  # where no number of calls takes any time

_SHORT_CALL_S = 1e-3  # below it, waiting for each call would be much of the time
_FLOORS = 100  # a sample is at least so many times as long as an empty one

_TICK_S = 1e-9  # what the clocks count in


def take(
    body: Callable[[int], object],
    runtime: Runtime,
    options: Options,
    *,
    floor_s: float,
    progress: Callable[[float], object] | None = None,
) -> tuple[Samples, tuple[Flag, ...]]:
    """Sample code until its median is known well, or the budget is spent.

    However long it takes, the code runs at least twice: the first run, and a sample.
    Code that leaves no time for warming up within the budget is not warmed up further.

    A body is called with how often it is to run, and progress, between samples, with
    the share that is done. Beside the samples stands what has to be known of them.
    """
    sampler = Sampler((body,), runtime, options, progress=progress)
    with sampler.undisturbed():
        warm = warm_up(sampler, runtime, options, floor_s=floor_s)
        seconds = [each for (each,) in warm.kept]
        moving: list[float] = []
        in_time = _fill(seconds, moving, sampler, options)
        flags = flags_between(warm.environment, sampler.environment())
    samples = Samples(
        mode=sampler.mode,
        seconds=tuple(seconds),
        calls=sampler.calls,
        first_s=warm.firsts_s[0],
        warmup_calls=warm.runs + sampler.calls * len(moving),
        warmup_s=warm.seconds + sampler.calls * sum(moving),
        cold=options.cold,
    )
    steady = warm.steady and (not moving or _seen_long(seconds, sampler, options))
    known = (
        (() if steady else (Flag(FlagKind.UNSTEADY),))
        + samples_shape.flags_of(seconds)
        + (() if in_time else (sampler.budget.out_of_time(),))
    )
    return samples, flags + known


def _fill(
    seconds: list[float], moving: list[float], sampler: Sampler, options: Options
) -> bool:
    """Sample until there are enough; whether they are so before the budget is spent.

    While samples still move, the older half of them was warming up, and goes there.
    """
    if options.samples is not None:
        while len(seconds) < options.samples:
            seconds.append(sampler.sample(0))
        return True
    look_at, was_narrow = FEWEST_SAMPLES, False
    while not sampler.budget.has_to_end(len(seconds)):
        seconds.append(sampler.sample(0))
        if len(seconds) < look_at:
            continue
        is_narrow, is_full = _is_narrow(seconds), len(seconds) >= _MOST_SAMPLES
        seen_long = _seen_long(seconds, sampler, options)
        if (is_full and not seen_long) or _still_moves(seconds):
            _move_half(seconds, moving)
            is_narrow = False
        elif is_full or (is_narrow and was_narrow and (seen_long or _equal(seconds))):
            return True
        look_at = min(math.ceil(len(seconds) * _GROWTH), _MOST_SAMPLES)
        was_narrow = is_narrow
    while len(seconds) >= 2 * FEWEST_SAMPLES and _still_moves(seconds):
        _move_half(seconds, moving)
    return _is_narrow(seconds)


def _seen_long(seconds: Sequence[float], sampler: Sampler, options: Options) -> bool:
    """Whether they go over so much time that a slow movement would be seen."""
    shortest_s = min(_SHORTEST_S, _SHORTEST_SHARE * options.budget_s)
    return sampler.calls * sum(seconds) >= shortest_s


def _move_half(seconds: list[float], moving: list[float]) -> None:
    half = len(seconds) // 2
    moving += seconds[:half]
    del seconds[:half]


def _still_moves(seconds: Sequence[float]) -> bool:
    """Whether the newer half differs from the older one, by a part that matters."""
    older, newer = seconds[: len(seconds) // 2], seconds[len(seconds) // 2 :]
    before, now = robust.median(older), robust.median(newer)
    clear = abs(robust.rank_shift(older, newer)) > samples_shape.UNLIKELY
    return clear and abs(now - before) > _NARROW / 4 * before


def _equal(seconds: Sequence[float]) -> bool:
    """Whether they hardly differ at all, as on a model's clock."""
    return max(seconds) - min(seconds) <= 2 * _TICK_S


def _is_narrow(seconds: Sequence[float]) -> bool:
    interval = robust.honest_interval(seconds)
    if interval is None:
        return False
    half = (interval.high - interval.low) / 2
    return half <= _NARROW * robust.median(seconds)


@dataclass(frozen=True)
class WarmUp:
    """What came before the first sample."""

    firsts_s: tuple[float, ...]  # the first run of each body
    runs: int  # how often the bodies ran, all together
    seconds: float  # how long all of it took, on the measured clock
    steady: bool  # whether nothing was seen to be moving still when it ended
    environment: Environment  # as it was when it ended
    # what was sampled of slow codes, which leave no time for warming up: whoever has
    # to wait so long for a run wants it to count
    kept: Stretch


def warm_up(
    sampler: Sampler, runtime: Runtime, options: Options, *, floor_s: float
) -> WarmUp:
    """Run each body alone; then all of them in turn, until they are steady.

    Mode and calls of the sampler are final afterwards.
    """
    begun = Elapsed(runtime)
    firsts_s = sampler.first_runs()
    seconds, environment = begun.measured_s, sampler.environment()
    runs = sampler.runs
    warming = _Warming(sampler, runtime, options, floor_s)
    stretch = warming.stretch(min(_PROBES, options.samples or _PROBES))
    grown = warming.fit(stretch)
    if warming.is_late and not grown:
        sampler.keep(len(stretch))
        return WarmUp(firsts_s, runs, seconds, True, environment, stretch)
    steady = warming.settle(stretch, grown=grown)
    seconds, environment = begun.measured_s, sampler.environment()
    return WarmUp(firsts_s, sampler.runs, seconds, steady, environment, [])


class _Warming:
    """Finds out how a sampler is to sample, by stretches of it."""

    def __init__(
        self, sampler: Sampler, runtime: Runtime, options: Options, floor_s: float
    ) -> None:
        self._sampler, self._runtime, self._options = sampler, runtime, options
        self._floor_s = floor_s
        self._round_s = self._round_here_s = 0.0  # how long the latest round took

    def settle(self, stretch: Stretch, *, grown: bool) -> bool:
        """Find mode and calls, and go on until the medians stay where they are."""
        shortest_s = min(_SHORTEST_WARMUP_S, _longest_warmup_s(self._options) / 10)
        before: Stretch = []
        steady = True
        while True:
            if grown and not self._sampler.budget.spent:
                before, stretch = [], self.stretch(_PROBES)
                grown = self.fit(stretch)
                continue
            is_full = len(stretch) >= _FEWEST_ROUNDS
            if before and is_full:
                pairs = tuple(zip(_columns(before), _columns(stretch), strict=True))
                steady = not any(samples_shape.moved(*each) for each in pairs)
                alike = all(samples_shape.are_alike(*each) for each in pairs)
                if alike and self._sampler.budget.passed_s >= shortest_s:
                    return True
            if self.is_late:
                return steady
            before = stretch if is_full else []
            stretch = self.stretch(_FEWEST_ROUNDS)
            grown = self.fit(stretch)

    def stretch(self, fewest: int) -> Stretch:
        """Sample all bodies in turn for a while, within the time of warming up."""
        begun, shortest_s = Elapsed(self._runtime), 0.0
        budget = self._sampler.budget
        if fewest > _PROBES:
            shortest_s = _STRETCH_SHARE * _longest_warmup_s(self._options)
        rounds: Stretch = []
        while len(rounds) < fewest or begun.seconds < shortest_s:
            if rounds and (budget.spent or (self.is_late and len(rounds) >= _PROBES)):
                break
            this = Elapsed(self._runtime)
            rounds.append(self._sampler.round())
            self._round_s, self._round_here_s = this.measured_s, this.here_s
        return rounds

    @property
    def is_late(self) -> bool:
        """Whether warming up has to end, for its own limit or for what is to come."""
        passed_s, options = self._sampler.budget.passed_s, self._options
        rest_s = FEWEST_SAMPLES * max(self._round_s, self._round_here_s)
        return (
            passed_s >= _longest_warmup_s(options)
            or passed_s + rest_s > options.budget_s
        )

    def fit(self, stretch: Stretch) -> bool:
        """Choose mode and calls by the quickest calls of each body."""
        sampler, options = self._sampler, self._options
        before = sampler.mode, sampler.calls
        # Of two calls one may have compiled something; of five the middle is right.
        usual = min if len(stretch) < _FEWEST_ROUNDS else robust.median
        quickest_s = min(map(usual, _columns(stretch)))
        # What is done before a sample is done before its first call only.
        alone = options.cold or options.before is not None
        if options.mode is None and not alone and quickest_s < _SHORT_CALL_S:
            sampler.mode = Mode.THROUGHPUT
        if options.calls is None and not alone and sampler.mode is Mode.THROUGHPUT:
            sampler.calls *= self._growth(quickest_s)
        return (sampler.mode, sampler.calls) != before

    def _growth(self, quickest_s: float) -> int:
        """How many times the calls of a sample have to be what they are."""
        options, calls = self._options, self._sampler.calls
        wanted_s = _FLOORS * self._floor_s
        # Under a simulated clock the calls must not depend on how fast this machine
        # happens to be, as far as anybody can wait: the figures would, too.
        here_s = (
            options.budget_s if self._runtime.simulated else _longest_sample_s(options)
        )
        most = min(
            _MOST_CALLS // calls,
            _longest_sample_s(options) / max(self._round_s, _TICK_S),
            here_s / max(self._round_here_s, _TICK_S),
        )
        times = 1
        while quickest_s * calls * times < wanted_s and 2 * times <= most:
            times *= 2
        return times


def _longest_warmup_s(options: Options) -> float:
    """When warming up ends even if it has not become steady."""
    return min(_LONGEST_WARMUP_S, _WARMUP_SHARE * options.budget_s)


def _longest_sample_s(options: Options) -> float:
    """What leaves room for the fewest samples in the rest of the budget."""
    return (1 - _WARMUP_SHARE) * options.budget_s / FEWEST_SAMPLES


def _columns(stretch: Stretch) -> list[tuple[float, ...]]:
    return list(zip(*stretch, strict=True))
