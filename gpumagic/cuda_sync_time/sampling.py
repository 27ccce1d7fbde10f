"""Takes samples of code that runs again and again, from all idle to all idle.

A body is code that is called with how often it is to run. Three stages follow each
other: the first run alone, warming up until two stretches of time look the same, and
the samples. Time between samples is nobody's: what has to be done is done there.
"""

from __future__ import annotations

import contextlib
import gc
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic import ranks
from gpumagic.cuda_sync_time import samples_shape
from gpumagic.cuda_sync_time.cold_caches import nothing_to_flush, preparation
from gpumagic.cuda_sync_time.instruments import loaded_torch
from gpumagic.cuda_sync_time.plan import FEWEST_SAMPLES
from gpumagic.cuda_sync_time.records.flags import Flag, FlagKind
from gpumagic.cuda_sync_time.records.samples import Mode
from gpumagic.cuda_sync_time.stopwatch import Elapsed, Stopwatch
from gpumagic.cuda_sync_time.surroundings import Surroundings
from gpumagic.devices import torch_private
from gpumagic.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.cuda_sync_time.plan import Plan
    from gpumagic.devices.protocols import Runtime

Stretch = list[tuple[float, ...]]  # rounds of one sample of each body

_SHORTEST_WARMUP_S = 0.05
_STRETCH_SHARE = 0.025  # of the longest warm-up; long enough to see a clock rise
_FEWEST_ROUNDS = 5  # in a stretch
_PROBES = 2  # rounds that tell how many calls a sample has to have
_MOST_CALLS = 1 << 20  # where no number of calls takes any time

_SHORT_CALL_S = 1e-3  # below it, waiting for each call would be much of the time
_FEWEST_FOR_AN_INTERVAL = 6  # of 95 % confidence
_PATIENCE = 10  # budgets, where it is this machine that simulates slowly
_FLOORS = 100  # a sample is at least so many times as long as an empty one

_TICK_S = 1e-9  # what the clocks count in


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

        progress: Called between samples with the share that is done.

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
        self._sampled = 0  # since warming up ended
        self._watch = Stopwatch(runtime, preparation(plan, runtime))
        self._passed = Elapsed(runtime)
        self._round_s = self._round_here_s = 0.0
        self._collects = False

    @property
    def spent(self) -> bool:
        """Whether the budget is."""
        return self._passed.seconds >= self._plan.budget_s

    @property
    def spent_on_values(self) -> bool:
        """Whether it is this machine, computing simulated values, that has spent it."""
        return self._runtime.simulated and self.spent and not self._is_spent_by_model

    def has_to_end(self, count: int) -> bool:
        """Whether so many samples have to do, as the budget is spent.

        A model's times are few before its values have cost this machine the budget.
        So that they say anything at all, its patience is longer then.
        """
        if not self.spent or count < 1:
            return False
        patient_s = _PATIENCE * self._plan.budget_s
        waits = self.spent_on_values and self._passed.here_s < patient_s
        return count >= _FEWEST_FOR_AN_INTERVAL or not waits

    def out_of_time(self) -> Flag:
        """What has spent the budget, for those who wanted more samples."""
        if self.spent_on_values:
            return Flag(FlagKind.VALUES_TOOK, amount=self._passed.here_s)
        return Flag(FlagKind.OUT_OF_TIME)

    @property
    def _is_spent_by_model(self) -> bool:
        return self._passed.measured_s >= self._plan.budget_s

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

        Raises:
            DeviceError: The clock that is to time the code does not see it.
        """
        begun = Elapsed(self._runtime)
        firsts_s = tuple(self._watch.time(body, 1) for body in self._bodies)
        self.runs = runs = len(self._bodies)
        if self._plan.cold and not self._runtime.devices_in_use():
            raise nothing_to_flush("this code has used no device")
        if self._runtime.simulated:
            self._require_work(firsts_s)
        gc.collect()
        gc.disable()
        self._passed = Elapsed(self._runtime)
        seconds, surroundings = begun.measured_s, self.surroundings()
        stretch = self._stretch(min(_PROBES, self._plan.samples or _PROBES))
        grown = self._fit(stretch)
        if self._is_late and not grown:
            self._sampled = len(stretch) * len(self._bodies)
            return WarmUp(firsts_s, runs, seconds, True, surroundings, stretch)
        steady = self._settle(stretch, grown=grown)
        seconds, surroundings = begun.measured_s, self.surroundings()
        return WarmUp(firsts_s, self.runs, seconds, steady, surroundings, [])

    def sample(self, index: int) -> float:
        """Time one sample of one body.

        Returns:
            The seconds for one call.
        """
        self._sampled += 1
        return self._sample(index)

    @property
    def share(self) -> float:
        """How much of all that has to be done before the last sample is done."""
        plan, rounds = self._plan, self._sampled / len(self._bodies)
        if plan.samples is not None:
            return min(rounds / plan.samples, 1.0)
        share = self._passed.seconds / plan.budget_s
        if self._runtime.simulated:
            enough = rounds / _FEWEST_FOR_AN_INTERVAL
            patience = self._passed.here_s / (_PATIENCE * plan.budget_s)
            by_values = min(share, max(enough, patience))
            share = max(self._passed.measured_s / plan.budget_s, by_values)
        return min(share, 1.0)

    def surroundings(self) -> Surroundings:
        """What must not move while samples are taken."""
        torch, devices = loaded_torch(), self._runtime.devices_in_use()
        return Surroundings(
            counters={each: self._runtime.memory_stats(each) for each in devices},
            compilations=0 if torch is None else torch_private.compilations(torch),
            collections=gc.get_stats()[-1]["collections"],
        )

    def _sample(self, index: int) -> float:
        one_by_one = self.mode is Mode.LATENCY
        take = self._watch.time_waiting if one_by_one else self._watch.time
        seconds = take(self._bodies[index], self.calls) / self.calls
        self.runs += self.calls
        self._tidy()
        if self._progress is not None:
            self._progress(self.share)
        return seconds

    def _require_work(self, firsts_s: Sequence[float]) -> None:
        if min(firsts_s) <= Stopwatch(self._runtime).time(_nothing, 1):
            raise DeviceError(
                "the code leaves the simulated GPU alone, whose clock does not count "
                "what Python does by itself",
                "box.off() first: then this machine's own clock times it",
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
            rounds.append(tuple(map(self._sample, range(len(self._bodies)))))
            self._round_s, self._round_here_s = this.measured_s, this.here_s
        return rounds

    @property
    def _is_late(self) -> bool:
        """Whether warming up has to end, for its own limit or for what is to come."""
        passed_s, plan = self._passed.seconds, self._plan
        rest_s = FEWEST_SAMPLES * max(self._round_s, self._round_here_s)
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


def _nothing(calls: int) -> None:
    """In the place of code, to see what a sample of nothing takes."""


def _columns(stretch: Stretch) -> list[tuple[float, ...]]:
    return list(zip(*stretch, strict=True))
