"""Takes samples of code that runs again and again, from all idle to all idle.

A body is code that is called with how often it is to run. Three stages follow each
other: the first run alone, warming up until two stretches of time look the same, and
the samples. Time between samples is nobody's: what has to be done is done there.
"""

from __future__ import annotations

import contextlib
import gc
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic import ranks
from gpumagic.cuda_sync_time import samples_shape
from gpumagic.cuda_sync_time.cold_caches import nothing_to_flush, preparation
from gpumagic.cuda_sync_time.instruments import loaded_torch
from gpumagic.cuda_sync_time.report import Flag, FlagKind, Mode, Samples
from gpumagic.cuda_sync_time.stopwatch import Elapsed, Stopwatch
from gpumagic.cuda_sync_time.surroundings import Surroundings, flags_between
from gpumagic.devices import torch_private

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.devices.protocols import Runtime

Stretch = list[tuple[float, ...]]  # rounds of one sample of each body

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
_FEWEST_SAMPLES = 10
_MOST_SAMPLES = 1000
_NARROW = 0.01  # half the interval, as a share of the median
# An interval can be narrow by luck, and then it misses the median more often than it
# says. So it is looked at now and then, and must be found narrow twice in a row.
_GROWTH = 1.1  # of the samples, between two looks

_TICK_S = 1e-9  # what the clocks count in


@dataclass(frozen=True)
class Plan:
    """How code is to be sampled.

    Attributes:
        samples: How many; None until the interval is narrow or the budget is spent.

        calls: Calls in each sample; None as many as the clock needs.

        budget_s: How long all of it may take, after the first run.

        mode: What a sample is; None throughput for short calls, latency for others.

        cold: Whether the caches of the devices are flushed before each sample.

        before: Called before each sample, untimed and waited for.
    """

    samples: int | None = None
    calls: int | None = None
    budget_s: float = 1.0
    mode: Mode | None = None
    cold: bool = False
    before: Callable[[], object] | None = None

    @property
    def longest_warmup_s(self) -> float:
        """When warming up ends even if it has not become steady."""
        return min(_LONGEST_WARMUP_S, _WARMUP_SHARE * self.budget_s)

    @property
    def longest_sample_s(self) -> float:
        """What leaves room for the fewest samples in the rest of the budget."""
        return (1 - _WARMUP_SHARE) * self.budget_s / _FEWEST_SAMPLES


# ------------------------------------------------------- warming up, sampling


@dataclass(frozen=True)
class WarmUp:
    """What came before the first sample.

    Attributes:
        firsts_s: The first run of each body.

        runs: How often the bodies ran, all together.

        seconds: How long all of it took, on the measured clock.

        steady: Whether nothing was seen to be moving still when it ended.

        surroundings: As they were when it ended.

        kept: What was sampled of slow codes, which leave no time for warming up:
            whoever has to wait so long for a run wants it to count.
    """

    firsts_s: tuple[float, ...]
    runs: int
    seconds: float
    steady: bool
    surroundings: Surroundings
    kept: Stretch


class Sampler:
    """Samples one or several codes, with the same mode and calls for all of them.

    Args:
        bodies: Each is called with how often its code is to run.

        runtime: Whose devices and whose clock.

        plan: How it is to be done.

        floor_s: What an empty cell is measured as.

        progress: Called between samples with the share of the budget that is spent.

    Attributes:
        mode: What a sample is; final after `warm_up`.

        calls: Calls of a body in each sample; final after `warm_up`.

        runs: How often the bodies have run so far, all together.
    """

    def __init__(
        self,
        bodies: Sequence[Callable[[int], object]],
        runtime: Runtime,
        plan: Plan,
        *,
        floor_s: float,
        progress: Callable[[float], object] | None = None,
    ) -> None:
        self.mode = plan.mode or Mode.LATENCY
        self.calls = plan.calls or 1
        self.runs = 0
        self._bodies, self._runtime, self._plan = bodies, runtime, plan
        self._floor_s, self._progress = floor_s, progress
        self._watch = Stopwatch(runtime, preparation(plan, runtime))
        self._passed = Elapsed(runtime)
        self._round_s = self._round_here_s = 0.0
        self._collects = False

    @property
    def spent(self) -> bool:
        """Whether the budget is."""
        return self._passed.seconds >= self._plan.budget_s

    @contextlib.contextmanager
    def undisturbed(self) -> Iterator[None]:
        """What sampling takes: Python's collector is as it was afterwards.

        An error or an interrupt goes through; the devices are idle then, and what was
        sampled is lost.
        """
        self._collects = gc.isenabled()
        try:
            yield
        except BaseException:
            with contextlib.suppress(Exception):  # the first one is what matters
                self._runtime.synchronize()
            raise
        finally:
            if self._collects:
                gc.enable()

    def warm_up(self) -> WarmUp:
        """Run each body alone; then all of them in turn, until they are steady.

        Python collects no garbage from the end of the first runs on.
        """
        begun = Elapsed(self._runtime)
        firsts_s = tuple(self._watch.time(body, 1) for body in self._bodies)
        self.runs = runs = len(self._bodies)
        if self._plan.cold and not self._runtime.devices_in_use():
            raise nothing_to_flush("this code has used no device")
        gc.collect()
        gc.disable()
        self._passed = Elapsed(self._runtime)
        seconds, surroundings = begun.measured_s, self.surroundings()
        stretch = self._stretch(min(_PROBES, self._plan.samples or _PROBES))
        grown = self._fit(stretch)
        if self._is_late and not grown:
            return WarmUp(firsts_s, runs, seconds, True, surroundings, stretch)
        steady = self._settle(stretch, grown=grown)
        seconds, surroundings = begun.measured_s, self.surroundings()
        return WarmUp(firsts_s, self.runs, seconds, steady, surroundings, [])

    def sample(self, index: int) -> float:
        """Time one sample of one body.

        Returns:
            The seconds for one call.
        """
        one_by_one = self.mode is Mode.LATENCY
        take = self._watch.time_waiting if one_by_one else self._watch.time
        seconds = take(self._bodies[index], self.calls) / self.calls
        self.runs += self.calls
        self._tidy()
        if self._progress is not None:
            self._progress(min(self._passed.seconds / self._plan.budget_s, 1.0))
        return seconds

    def surroundings(self) -> Surroundings:
        """What must not move while samples are taken."""
        torch, devices = loaded_torch(), self._runtime.devices_in_use()
        return Surroundings(
            counters={each: self._runtime.memory_stats(each) for each in devices},
            compilations=0 if torch is None else torch_private.compilations(torch),
            collections=gc.get_stats()[-1]["collections"],
        )

    def _settle(self, stretch: Stretch, *, grown: bool) -> bool:
        """Find mode and calls, and go on until the medians stay where they are.

        Returns:
            Whether nothing was seen to be moving still at the end.
        """
        shortest_s = min(_SHORTEST_WARMUP_S, self._plan.longest_warmup_s / 10)
        before: Stretch = []
        steady = True
        while True:
            if grown and not self.spent:
                before, stretch = [], self._stretch(_PROBES)
                grown = self._fit(stretch)
                continue
            is_full = len(stretch) >= _FEWEST_ROUNDS
            if before and is_full:
                pairs = tuple(zip(_columns(before), _columns(stretch), strict=True))
                steady = not any(samples_shape.moved(*each) for each in pairs)
                alike = all(samples_shape.are_alike(*each) for each in pairs)
                if alike and self._passed.seconds >= shortest_s:
                    return True
            if self._is_late:
                return steady
            before = stretch if is_full else []
            stretch = self._stretch(_FEWEST_ROUNDS)
            grown = self._fit(stretch)

    def _stretch(self, fewest: int) -> Stretch:
        """Sample all bodies in turn for a while, within the time of warming up."""
        begun, shortest_s = Elapsed(self._runtime), 0.0
        if fewest > _PROBES:
            shortest_s = _STRETCH_SHARE * self._plan.longest_warmup_s
        rounds: Stretch = []
        while len(rounds) < fewest or begun.seconds < shortest_s:
            if rounds and (self.spent or (self._is_late and len(rounds) >= _PROBES)):
                break
            this = Elapsed(self._runtime)
            rounds.append(tuple(map(self.sample, range(len(self._bodies)))))
            self._round_s, self._round_here_s = this.measured_s, this.here_s
        return rounds

    @property
    def _is_late(self) -> bool:
        """Whether warming up has to end, for its own limit or for what is to come."""
        passed_s, plan = self._passed.seconds, self._plan
        rest_s = _FEWEST_SAMPLES * max(self._round_s, self._round_here_s)
        return passed_s >= plan.longest_warmup_s or passed_s + rest_s > plan.budget_s

    def _fit(self, stretch: Stretch) -> bool:
        """Choose mode and calls by the quickest calls of each body.

        Returns:
            Whether samples are something else from now on.
        """
        plan, before = self._plan, (self.mode, self.calls)
        # Of two calls one may have compiled something; of five the middle is right.
        usual = min if len(stretch) < _FEWEST_ROUNDS else ranks.median
        quickest_s = min(map(usual, _columns(stretch)))
        # What is done before a sample is done before its first call only.
        alone = plan.cold or plan.before is not None
        if plan.mode is None and not alone and quickest_s < _SHORT_CALL_S:
            self.mode = Mode.THROUGHPUT
        if plan.calls is None and not alone and self.mode is Mode.THROUGHPUT:
            self.calls *= self._growth(quickest_s)
        return (self.mode, self.calls) != before

    def _growth(self, quickest_s: float) -> int:
        """How many times the calls of a sample have to be what they are."""
        plan, wanted_s = self._plan, _FLOORS * self._floor_s
        # Under a simulated clock the calls must not depend on how fast this machine
        # happens to be, as far as anybody can wait: the figures would, too.
        here_s = plan.budget_s if self._runtime.simulated else plan.longest_sample_s
        most = min(
            _MOST_CALLS // self.calls,
            plan.longest_sample_s / max(self._round_s, _TICK_S),
            here_s / max(self._round_here_s, _TICK_S),
        )
        times = 1
        while quickest_s * self.calls * times < wanted_s and 2 * times <= most:
            times *= 2
        return times

    def _tidy(self) -> None:
        """Collect young garbage when Python would have: it may hold device memory."""
        if self._collects and 0 < gc.get_threshold()[0] < gc.get_count()[0]:
            gc.collect(0)


def _columns(stretch: Stretch) -> list[tuple[float, ...]]:
    return list(zip(*stretch, strict=True))


# ----------------------------------------------------------- one code, enough


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

        progress: Called between samples with the share of the budget that is spent.

    Returns:
        The samples, and what has to be known besides.

    Raises:
        DeviceError: Caches are to be flushed, and no device is used.

        BaseException: What the code raises, or an interrupt; the devices are idle.
    """
    sampler = Sampler((body,), runtime, plan, floor_s=floor_s, progress=progress)
    with sampler.undisturbed():
        warm = sampler.warm_up()
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
        + (() if in_time else (Flag(FlagKind.OUT_OF_TIME),))
    )
    return samples, flags + known


def _fill(seconds: list[float], sampler: Sampler, plan: Plan) -> bool:
    """Sample until there are enough; whether they are so before the budget is spent."""
    if plan.samples is not None:
        while len(seconds) < plan.samples:
            seconds.append(sampler.sample(0))
        return True
    look_at, was_narrow = _FEWEST_SAMPLES, False
    while len(seconds) < _MOST_SAMPLES:
        if seconds and sampler.spent:
            return _is_narrow(seconds)
        seconds.append(sampler.sample(0))
        if len(seconds) >= look_at:
            is_narrow = _is_narrow(seconds)
            if is_narrow and was_narrow:
                return True
            look_at, was_narrow = math.ceil(len(seconds) * _GROWTH), is_narrow
    return True


def _is_narrow(seconds: Sequence[float]) -> bool:
    interval = ranks.honest_interval(seconds)
    if interval is None:
        return False
    half = (interval.high - interval.low) / 2
    return half <= _NARROW * ranks.median(seconds)
