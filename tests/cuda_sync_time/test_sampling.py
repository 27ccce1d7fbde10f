"""Sampling on a clock that moves only by what codes are said to take."""

# ruff: noqa: S311 -- noise, no secrets

from __future__ import annotations

import gc
import math
import random
import weakref

import pytest

from gpumagic.cuda_sync_time import sampling
from gpumagic.cuda_sync_time.options import Options
from gpumagic.cuda_sync_time.records import FlagKind, Mode
from gpumagic.cuda_sync_time.sampling import take

FLOOR_S = 20e-6


class NoisyRuntime:
    """One device; what is launched on it is waited for by `synchronize`.

    Attributes:
        done: What happened, in order: "wait", or what a code has noted.
    """

    kind = "noisy"
    simulated = True

    def __init__(self, sync_s=0.0, devices=(0,)):
        self.now_s = self.busy_s = 0.0
        self.sync_s = sync_s
        self.devices = devices
        self.counters = {"num_device_alloc": 3, "num_device_free": 0}
        self.done = []

    def now_ns(self):
        """The clock."""
        return round(self.now_s * 1e9)

    def synchronize(self):
        """Wait for what was launched."""
        self.done.append("wait")
        self.now_s += self.busy_s + self.sync_s
        self.busy_s = 0.0

    def devices_in_use(self):
        """Those with a context."""
        return self.devices

    def memory_stats(self, device):
        """The allocator's counters."""
        assert device in self.devices
        return dict(self.counters)

    def code(self, seconds):
        """A body whose n-th call takes what the function says of n."""
        number = iter(range(10**9))

        def body(calls):
            for _ in range(calls):
                self.busy_s += seconds(next(number))

        return body


@pytest.fixture
def runtime():
    """A device without noise, where waiting costs 5 us."""
    return NoisyRuntime(sync_s=5e-6)


@pytest.fixture(autouse=True)
def standing_still(monkeypatch):
    """No time passes but that of the model: a busy machine changes no result."""
    monkeypatch.setattr(sampling, "perf_counter", lambda: 0.0)


def noise(seed, share, middle=2e-3):
    """Times with a long tail around a median."""
    chance = random.Random(seed)
    return lambda _: middle * math.exp(chance.gauss(0, share))


def kinds(flags):
    """What is said."""
    return {flag.kind for flag in flags}


# --------------------------------------------------------------- mode, calls


def test_short_calls_are_measured_many_at_once(runtime):
    """A sample of short calls is a hundred floors long, by a power of two."""
    samples, _ = take(
        runtime.code(lambda _: 20e-6), runtime, Options(), floor_s=FLOOR_S
    )

    assert samples.mode is Mode.THROUGHPUT
    assert samples.calls == 128  # 128 * 20 us: the first above 2 ms
    assert samples.median_s == pytest.approx(20e-6 + 5e-6 / 128, rel=1e-4)


# ------------------------------------------------------------- first, warm-up


def test_the_first_run_stands_alone(runtime):
    """It is timed, waited for, and no sample."""
    body = runtime.code(lambda number: 0.7 if number == 0 else 2e-3)

    samples, flags = take(body, runtime, Options(), floor_s=FLOOR_S)

    assert samples.first_s == pytest.approx(0.7 + 5e-6)
    assert max(samples.seconds) < 3e-3
    assert kinds(flags) == set()


def test_warming_up_waits_for_a_clock_that_rises(runtime):
    """Code that gets faster for a quarter of a second is sampled after that."""
    body = runtime.code(lambda _: 2e-3 + max(2e-3 - runtime.now_s / 125, 0))

    samples, flags = take(body, runtime, Options(budget_s=2), floor_s=FLOOR_S)

    assert samples.warmup_s > 0.25
    assert max(samples.seconds) < 2.1e-3
    assert FlagKind.UNSTEADY not in kinds(flags)


def test_a_warm_up_that_never_becomes_steady_is_told(runtime):
    """Code that becomes slower with each call is not steady in any time."""
    body = runtime.code(lambda number: 2e-3 * 1.05**number)

    _, flags = take(body, runtime, Options(budget_s=2), floor_s=FLOOR_S)

    assert FlagKind.UNSTEADY in kinds(flags)


def test_noise_is_not_taken_for_movement():
    """Stretches that differ by chance alone are no warning."""
    unsteady = 0

    for seed in range(50):
        runtime = NoisyRuntime()
        body = runtime.code(noise(seed, 0.1, middle=20e-3))
        _, flags = take(body, runtime, Options(), floor_s=FLOOR_S)
        unsteady += FlagKind.UNSTEADY in kinds(flags)

    assert unsteady <= 3


# ---------------------------------------------------------------- when to stop


def test_steady_code_is_done_quickly(runtime):
    """Equal samples have an interval without width at the first looks."""
    samples, flags = take(
        runtime.code(lambda _: 2e-3), runtime, Options(), floor_s=FLOOR_S
    )

    assert 10 <= len(samples.seconds) <= 12
    assert samples.interval.low == samples.interval.high == samples.median_s
    assert flags == ()


@pytest.mark.parametrize("settles_in_s", [0.02, 0.1, 0.2])
def test_the_budget_is_spent_where_samples_still_move(settles_in_s):
    """Code that settles late is measured when it has, and else is told not to have."""
    held = 0

    for seed in range(20):
        runtime, chance = NoisyRuntime(), random.Random(seed)

        def cost(_, runtime=runtime, chance=chance):
            moving = 0.3 * math.exp(-runtime.now_s / settles_in_s)
            return 2e-3 * (1 + moving) * math.exp(chance.gauss(0, 0.01))

        body = runtime.code(cost)
        samples, flags = take(body, runtime, Options(), floor_s=FLOOR_S)
        low, high, _ = samples.interval
        held += low <= 2e-3 <= high or FlagKind.UNSTEADY in kinds(flags)
        assert samples.median_s == pytest.approx(2e-3, rel=0.015)

    assert held >= 17


def test_noisy_code_is_sampled_until_the_interval_is_narrow(runtime):
    """Half of it is at most one percent of the median."""
    body = runtime.code(noise(1, 0.04))

    samples, flags = take(body, runtime, Options(budget_s=30), floor_s=FLOOR_S)

    low, high, _ = samples.interval
    assert (high - low) / 2 <= 0.01 * samples.median_s
    assert 30 < len(samples.seconds) < 1000
    assert FlagKind.OUT_OF_TIME not in kinds(flags)


@pytest.mark.parametrize(("takes_s", "fewest"), [(30.0, 1), (0.15, 6)])
def test_slow_code_is_not_run_to_waste(runtime, takes_s, fewest):
    """After the first run each one is a sample, if there is no time to warm up."""
    samples, flags = take(
        runtime.code(lambda _: takes_s), runtime, Options(), floor_s=FLOOR_S
    )

    assert samples.warmup_calls == 1
    assert fewest <= len(samples.seconds) <= fewest + 1
    assert samples.runs == len(samples.seconds) + 1
    assert FlagKind.OUT_OF_TIME in kinds(flags) or fewest > 1
    assert (samples.interval is None) == (fewest < 6)


def test_the_interval_holds_the_median_although_it_decides_when_to_stop():
    """Looking at it again and again does not make it a promise that is not kept."""
    inside, repeats = 0, 400

    for seed in range(repeats):
        runtime = NoisyRuntime()
        body = runtime.code(noise(seed, 0.02))
        samples, _ = take(body, runtime, Options(), floor_s=FLOOR_S)
        low, high, _ = samples.interval
        inside += low <= 2e-3 <= high

    assert inside / repeats > 0.925  # 0.95, less two standard errors


# ------------------------------------------------------------- what disturbs it


@pytest.mark.parametrize("was_on", [True, False])
def test_the_collector_is_off_and_then_as_it_was(runtime, was_on):
    """Python collects nothing during samples, whether it does so otherwise or not."""
    states = []
    body = runtime.code(lambda _: states.append(gc.isenabled()) or 2e-3)
    gc.enable() if was_on else gc.disable()
    try:
        take(body, runtime, Options(samples=3), floor_s=FLOOR_S)
        after = gc.isenabled()
    finally:
        gc.enable()

    assert states[0] is was_on
    assert not any(states[1:])
    assert after is was_on


class Knot:
    """Something that only the collector can free."""

    def __init__(self):
        self.me = self


def test_garbage_does_not_pile_up(runtime):
    """Cycles that each call leaves are freed between samples: they may hold memory."""
    alive = weakref.WeakSet()
    most = []

    def body(calls):
        runtime.busy_s += calls * 2e-3
        knots = [Knot() for _ in range(300)]
        alive.update(knots)
        most.append(len(alive))

    take(body, runtime, Options(samples=50), floor_s=FLOOR_S)

    assert max(most) < 50 * 300 / 4


def test_memory_from_the_driver_during_samples_is_told(runtime):
    """A sample in which the driver was asked for memory was not in a steady state."""
    body = runtime.code(lambda _: 2e-3)

    def taking(calls):
        runtime.counters["num_device_alloc"] += 1
        body(calls)

    samples, flags = take(taking, runtime, Options(samples=9), floor_s=FLOOR_S)

    assert len(samples.seconds) == 9
    assert [f.amount for f in flags if f.kind is FlagKind.DRIVER_CALLS] == [9]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("at", [0, 5, 60])
def test_an_interrupt_goes_through_and_leaves_all_idle(runtime, error, at):
    """In the first run, while warming up and later: nothing keeps running."""

    def fails(number):
        if number == at:
            runtime.busy_s += 9.0
            raise error
        return 2e-3

    with pytest.raises(error):
        take(runtime.code(fails), runtime, Options(samples=99), floor_s=FLOOR_S)

    assert runtime.busy_s == 0.0
    assert gc.isenabled()


def test_an_error_of_the_device_does_not_hide_that_of_the_code(runtime):
    """After a failed launch waiting fails as well, and says less."""

    def body(_):
        runtime.synchronize = lambda: 1 / 0
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        take(body, runtime, Options(), floor_s=FLOOR_S)


# ------------------------------------------------------------------- progress


def test_a_slow_simulation_is_sampled_until_it_says_something(monkeypatch):
    """Values that take this machine long leave samples enough for an interval."""
    here_s = [0.0]
    monkeypatch.setattr(sampling, "perf_counter", lambda: here_s[0])

    def samples_where_each_takes(seconds):
        def call(_):
            here_s[0] += seconds
            return 0.002

        runtime = NoisyRuntime(sync_s=5e-6)
        body = runtime.code(call)
        return take(body, runtime, Options(budget_s=1.0), floor_s=FLOOR_S)[0]

    assert len(samples_where_each_takes(1.2).seconds) == 6
    assert len(samples_where_each_takes(19.0).seconds) == 1
