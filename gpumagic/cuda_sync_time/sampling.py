"""Runs code again and again until its median is known well or the budget is spent.

A body is code that is called with how often it is to run. Three stages follow each
other: the first run alone, warming up, and the samples. What has to be done besides is
done between samples, where nothing is timed. A stretch is some rounds in a row, each of
one sample of every code.

Two clocks run. Where a device is simulated, the measured one is the model's, and this
machine, which works its values out, is slower: people wait for both.
"""

from __future__ import annotations

import contextlib
import gc
import math
from time import perf_counter
from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time.instruments import (
    Environment,
    compilations,
    flags_between,
)
from gpumagic.cuda_sync_time.records import Flag, FlagKind, Mode, Samples
from gpumagic.errors import DeviceError
from gpumagic.report import robust
from gpumagic.report.robust import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from random import Random

    from gpumagic.cuda_sync_time.records import Options
    from gpumagic.devices.protocols import Runtime
    from gpumagic.report.robust import Comparison, Pair

    Body = Callable[[int], object]
    Stretch = list[tuple[float, ...]]  # of rounds
    Progress = Callable[[float], object]

FEWEST_SAMPLES, MOST_SAMPLES, _MOST_PAIRS = 10, 1000, 500
_FEWEST_FOR_AN_INTERVAL = 6  # of 95 % confidence
_PATIENCE = 10  # budgets, where it is this machine that simulates slowly
_NARROW = 0.01  # half the interval, as a share of the median
# An interval can be narrow by luck, and then it misses the median more often than it
# says. So it is looked at now and then, and must be found narrow twice in a row.
_GROWTH = 1.1  # of the samples, between two looks
# Nor is a slow movement seen in a moment: clocks and caches settle within 0.3 s.
_SHORTEST_S, _SHORTEST_SHARE = 0.5, 0.5  # of the budget
_UNLIKELY = 2.576  # standard deviations that chance exceeds once in a hundred times
_STEADY = 0.02  # of the time: less than this between two medians is no movement

# The budget counts from the end of the first run, which may compile for minutes.
# Half of it is for warming up, which ends much earlier if all is steady soon.
_WARMUP_SHARE, _LONGEST_WARMUP_S = 0.5, 1.0
_SHORTEST_WARMUP_S = 0.05
_STRETCH_SHARE = 0.025  # of the longest warm-up; long enough to see a clock rise
_FEWEST_ROUNDS = 5  # in a stretch
_PROBES = 2  # rounds that tell how many calls a sample has to have
_MOST_CALLS = 1 << 20  # where no number of calls takes any time
_SHORT_CALL_S = 1e-3  # below it, waiting for each call would be much of the time
_FLOORS = 100  # a sample is at least so many times as long as an empty one
_TICK_S = 1e-9  # what the clocks count in


def untold(_: float) -> None:
    """Tell nobody how far it is."""


def take(
    body: Body,
    runtime: Runtime,
    options: Options,
    *,
    floor_s: float,
    progress: Progress = untold,
) -> tuple[Samples, tuple[Flag, ...]]:
    """Sample code until its median is known well, or the budget is spent.

    However long it takes, the code runs at least twice: the first run, and a sample.
    Progress is called between samples with the share that is done. Beside the samples
    stands what has to be known of them.
    """
    sampler = Sampler((body,), runtime, options, floor_s=floor_s, progress=progress)
    with sampler.undisturbed():
        seconds = [each for (each,) in sampler.warm_up()]
        moving: list[float] = []
        in_time = _fill(seconds, moving, sampler, options)
        flags = sampler.changes()
    samples = Samples(
        mode=sampler.mode,
        seconds=tuple(seconds),
        calls=sampler.calls,
        first_s=sampler.firsts_s[0],
        warmup_calls=sampler.warmup_runs + sampler.calls * len(moving),
        warmup_s=sampler.warmup_s + sampler.calls * sum(moving),
    )
    if not sampler.steady or (moving and not _seen_long(seconds, sampler, options)):
        flags += (Flag(FlagKind.UNSTEADY),)
    return samples, flags if in_time else (*flags, Flag(FlagKind.OUT_OF_TIME))


def _fill(
    seconds: list[float], moving: list[float], sampler: Sampler, options: Options
) -> bool:
    """Sample until there are enough; whether they are so before the budget is spent."""
    if options.samples:
        while len(seconds) < options.samples:
            seconds.append(sampler.sample(0))
        return True
    look_at, was_narrow = FEWEST_SAMPLES, False
    while not sampler.has_to_end(len(seconds)):
        seconds.append(sampler.sample(0))
        if len(seconds) < look_at:
            continue
        is_narrow, is_full = _is_narrow(seconds), len(seconds) >= MOST_SAMPLES
        # Or they hardly differ at all, as on a model's clock.
        seen_long = _seen_long(seconds, sampler, options)
        is_equal = max(seconds) - min(seconds) <= 2 * _TICK_S
        if (is_full and not seen_long) or _still_moves(seconds):
            _move_half(seconds, moving)
            is_narrow = False
        elif is_full or (is_narrow and was_narrow and (seen_long or is_equal)):
            return True
        look_at = min(math.ceil(len(seconds) * _GROWTH), MOST_SAMPLES)
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
    half = len(seconds) // 2
    return _differ(seconds[:half], seconds[half:], _NARROW / 4)


def _differ(before: Sequence[float], now: Sequence[float], share: float) -> bool:
    """Whether medians differ by more than a share, and by more than chance does."""
    clear = abs(robust.rank_shift(before, now)) > _UNLIKELY
    return clear and not _are_alike(before, now, share)


def _are_alike(before: Sequence[float], now: Sequence[float], share: float) -> bool:
    was = robust.median(before)
    return abs(robust.median(now) - was) <= share * was


def _is_narrow(seconds: Sequence[float]) -> bool:
    interval = robust.honest_interval(seconds)
    if not interval:
        return False
    half = (interval.high - interval.low) / 2
    return half <= _NARROW * robust.median(seconds)


# ------------------------------------------------------------------- two in turn


def in_turn(  # noqa: PLR0913 -- two codes, and all that one code needs
    bodies: tuple[Body, Body],
    runtime: Runtime,
    options: Options,
    *,
    floor_s: float,
    random: Random,
    progress: Progress = untold,
) -> tuple[Sampler, Comparison, tuple[Flag, ...]]:
    """Sample two codes in turn, so that what the machine does meets both.

    Both are warmed up, and both samples of a pair have the same calls. Pairs come as
    base, newer, newer, base or the other way round, by chance: what gets faster or
    slower all the time, and what it means to be the second, then cancels. Who goes
    first is decided by `random`, never by Python's own generator, which is the user's.

    Pairs are taken until the budget is spent, and nobody looks at a result before:
    whoever stops when a difference shows finds one in noise as well. The end is decided
    by the time of both together, which does not tell which is faster; the chance of a
    verdict on two equal codes stays that of the interval, at most 5 %.
    """
    sampler = Sampler(bodies, runtime, options, floor_s=floor_s, progress=progress)
    with sampler.undisturbed():
        pairs: list[Pair] = [(base_s, newer_s) for base_s, newer_s in sampler.warm_up()]
        _take_pairs(pairs, sampler, options, random)
        flags = sampler.changes()
    result = robust.verdict_of(pairs)
    if not sampler.steady:
        flags += (Flag(FlagKind.UNSTEADY),)
    wants_more = result.verdict is Verdict.CANNOT_TELL and not options.samples
    if wants_more and sampler.budget_is_spent:
        flags += (Flag(FlagKind.OUT_OF_TIME),)
    return sampler, result, flags


def _take_pairs(
    pairs: list[Pair], sampler: Sampler, options: Options, random: Random
) -> None:
    """Take pairs until there are enough."""
    orders = _orders(random)
    asked = options.samples or _MOST_PAIRS
    while len(pairs) < asked and (
        options.samples or not sampler.has_to_end(len(pairs))
    ):
        seconds = {index: sampler.sample(index) for index in next(orders)}
        pairs.append((seconds[0], seconds[1]))


def _orders(random: Random) -> Iterator[tuple[int, int]]:
    """Which code goes first, pair by pair, in balanced blocks of two."""
    while True:
        first = int(random.random() < 0.5)
        yield first, 1 - first
        yield 1 - first, first


class Sampler:
    """Samples one or several codes, with the same mode and calls for all of them."""

    def __init__(
        self,
        bodies: Sequence[Body],
        runtime: Runtime,
        options: Options,
        *,
        floor_s: float,
        progress: Progress = untold,
    ) -> None:
        self.mode, self.calls = Mode(options.mode or "latency"), 1
        self.runs = 0  # of the bodies so far, all together
        # What warming up came to: the very first run of each body, alone; all runs
        # until the samples, and how long they took on the measured clock; whether the
        # medians stayed where they were.
        self.firsts_s: tuple[float, ...] = ()
        self.warmup_runs, self.warmup_s, self.steady = 0, 0.0, True
        self._bodies, self._runtime, self._options = bodies, runtime, options
        self._floor_s, self._progress = floor_s, progress
        self._longest_warmup_s = min(
            _LONGEST_WARMUP_S, _WARMUP_SHARE * options.budget_s
        )
        self._passed = Elapsed(runtime)  # of the budget
        self._before = Environment()
        self._sampled = 0  # what counts, of all bodies together
        self._collects = False
        self._round_s = self._round_here_s = 0.0  # how long the latest round took

    @contextlib.contextmanager
    def undisturbed(self) -> Iterator[None]:
        """What sampling takes: Python's collector is as it was afterwards.

        An error or an interrupt goes through; the devices are idle then.
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

    def sample(self, index: int) -> float:
        """Time one sample of one body; the seconds for one call."""
        self._sampled += 1
        return self._sample(index)

    def changes(self) -> tuple[Flag, ...]:
        """What has moved since warming up, and must not while samples are taken."""
        return flags_between(self._before, self._environment())

    @property
    def budget_is_spent(self) -> bool:
        """Whether all of it is."""
        return self._passed.seconds >= self._options.budget_s

    def has_to_end(self, count: int) -> bool:
        """Whether so many samples have to do, as the budget is spent.

        A model's times are few before its values have cost this machine the budget.
        So that they say anything at all, its patience is longer then.
        """
        budget_s, passed = self._options.budget_s, self._passed
        if not self.budget_is_spent or count < 1:
            return False
        on_values = self._runtime.simulated and passed.measured_s < budget_s
        waits = on_values and passed.here_s < _PATIENCE * budget_s
        return count >= _FEWEST_FOR_AN_INTERVAL or not waits

    def _environment(self) -> Environment:
        devices = self._runtime.devices_in_use()
        counters = {each: self._runtime.memory_stats(each) for each in devices}
        return Environment(counters, compilations())

    def _sample(self, index: int) -> float:
        body, one_by_one = self._bodies[index], self.mode is Mode.LATENCY
        seconds = self._timed(body, self.calls, one_by_one=one_by_one) / self.calls
        self.runs += self.calls
        # Young garbage goes when it would have gone: it may hold device memory.
        if self._collects and 0 < gc.get_threshold()[0] < gc.get_count()[0]:
            gc.collect(0)
        done = self._passed.seconds / self._options.budget_s
        if asked := self._options.samples:
            done = self._sampled / len(self._bodies) / asked
        self._progress(min(done, 1.0))
        return seconds

    def _timed(self, body: Body, calls: int, *, one_by_one: bool = False) -> float:
        """The seconds that so many calls take together, from idle to idle."""
        synchronize, now_ns = self._runtime.synchronize, self._runtime.now_ns
        synchronize()
        start_ns = now_ns()
        if one_by_one and calls > 1:
            for _ in range(calls):
                body(1)
                synchronize()
        else:
            body(calls)
            synchronize()
        return (now_ns() - start_ns) / 1e9

    # ------------------------------------------------------------------ warming up

    def warm_up(self) -> Stretch:
        """Run until mode and calls are found and the medians stay where they are.

        Code that leaves no time for it within the budget is not warmed up further:
        the rounds that were taken to find out have to do as samples, and are returned.
        """
        begun = Elapsed(self._runtime)
        self._first_runs()
        self._warmed_up(begun)
        stretch = self._stretch(min(_PROBES, self._options.samples or _PROBES))
        grown = self._fit(stretch)
        if self._is_late and not grown:
            self._sampled = len(stretch) * len(self._bodies)
            return stretch
        self.steady = self._settle(stretch, grown=grown)
        self._warmed_up(begun)
        return []

    def _warmed_up(self, begun: Elapsed) -> None:
        self.warmup_runs, self.warmup_s = self.runs, begun.measured_s
        self._before = self._environment()

    def _first_runs(self) -> None:
        """Time each body alone; then the budget begins, and nothing is collected."""
        self.firsts_s = tuple(self._timed(body, 1) for body in self._bodies)
        self.runs = len(self._bodies)
        nothing_s = self._timed(lambda _: None, 1) if self._runtime.simulated else -1
        if min(self.firsts_s) <= nothing_s:
            raise DeviceError(
                "the code leaves the simulated GPU alone, whose clock does not count "
                "what Python does by itself",
                "box.off() first: then this machine's own clock times it",
            )
        gc.collect()
        gc.disable()
        self._passed = Elapsed(self._runtime)

    def _settle(self, stretch: Stretch, *, grown: bool) -> bool:
        """Find mode and calls, and go on until the medians stay where they are."""
        shortest_s = min(_SHORTEST_WARMUP_S, self._longest_warmup_s / 10)
        before: Stretch = []
        steady = True
        while True:
            if grown and not self.budget_is_spent:
                before, stretch = [], self._stretch(_PROBES)
                grown = self._fit(stretch)
                continue
            is_full = len(stretch) >= _FEWEST_ROUNDS
            if before and is_full:
                pairs = tuple(zip(_columns(before), _columns(stretch), strict=True))
                alike = all(_are_alike(*each, _STEADY) for each in pairs)
                steady = not any(_differ(*each, _STEADY) for each in pairs)
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
            shortest_s = _STRETCH_SHARE * self._longest_warmup_s
        rounds: Stretch = []
        while len(rounds) < fewest or begun.seconds < shortest_s:
            late = self._is_late and len(rounds) >= _PROBES
            if rounds and (self.budget_is_spent or late):
                break
            this = Elapsed(self._runtime)
            rounds.append(tuple(map(self._sample, range(len(self._bodies)))))
            self._round_s, self._round_here_s = this.measured_s, this.here_s
        return rounds

    @property
    def _is_late(self) -> bool:
        """Whether warming up has to end, for its own limit or for what is to come."""
        passed_s = self._passed.seconds
        rest_s = FEWEST_SAMPLES * max(self._round_s, self._round_here_s)
        is_long = passed_s >= self._longest_warmup_s
        return is_long or passed_s + rest_s > self._options.budget_s

    def _fit(self, stretch: Stretch) -> bool:
        """Choose mode and calls by the quickest calls of each body."""
        before = self.mode, self.calls
        # Of two calls one may have compiled something; of five the middle is right.
        usual = min if len(stretch) < _FEWEST_ROUNDS else robust.median
        quickest_s = min(map(usual, _columns(stretch)))
        if not self._options.mode and quickest_s < _SHORT_CALL_S:
            self.mode = Mode.THROUGHPUT
        if self.mode is Mode.THROUGHPUT:
            self.calls *= self._growth(quickest_s)
        return (self.mode, self.calls) != before

    def _growth(self, quickest_s: float) -> int:
        """How many times the calls of a sample have to be what they are."""
        budget_s = self._options.budget_s
        longest_s = (1 - _WARMUP_SHARE) * budget_s / FEWEST_SAMPLES
        # Under a simulated clock the calls must not depend on how fast this machine
        # happens to be, as far as anybody can wait: the figures would, too.
        here_s = budget_s if self._runtime.simulated else longest_s
        most = min(
            _MOST_CALLS // self.calls,
            longest_s / max(self._round_s, _TICK_S),
            here_s / max(self._round_here_s, _TICK_S),
        )
        times = 1
        while quickest_s * self.calls * times < _FLOORS * self._floor_s:
            if 2 * times > most:
                break
            times *= 2
        return times


def _columns(stretch: Stretch) -> list[tuple[float, ...]]:
    return list(zip(*stretch, strict=True))


class Elapsed:
    """Time since now, on the measured clock or on this machine's: whichever is more.

    A simulated clock stands still while Python works, and people wait for both.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._now_ns = runtime.now_ns
        self._start_ns, self._start_s = runtime.now_ns(), perf_counter()

    @property
    def seconds(self) -> float:
        """How long ago that was."""
        return max(self.measured_s, self.here_s)

    @property
    def measured_s(self) -> float:
        """How long ago that was on the measured clock."""
        return (self._now_ns() - self._start_ns) / 1e9

    @property
    def here_s(self) -> float:
        """How long ago that was on the clock of this machine."""
        return perf_counter() - self._start_s
