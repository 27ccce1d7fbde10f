"""Sampling, alone and in turn, on a clock that moves only by what codes take."""

# ruff: noqa: S311 -- noise, no secrets

from __future__ import annotations

import gc
import math
import random
import weakref
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.cuda_sync_time import sampling
from gpumagic.cuda_sync_time.records import FlagKind, Mode, Options
from gpumagic.cuda_sync_time.sampling import in_turn, take
from gpumagic.report.robust import Verdict, verdict_of

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


def test_short_calls_are_measured_many_at_once(runtime):
    """A sample of short calls is a hundred floors long, by a power of two."""
    samples, _ = take(
        runtime.code(lambda _: 20e-6), runtime, Options(), floor_s=FLOOR_S
    )

    assert samples.mode is Mode.THROUGHPUT
    assert samples.calls == 128  # 128 * 20 us: the first above 2 ms
    assert samples.median_s == pytest.approx(20e-6 + 5e-6 / 128, rel=1e-4)


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


def test_noise_is_not_taken_for_movement():
    """Stretches that differ by chance alone are no warning."""
    unsteady = 0

    for seed in range(50):
        runtime = NoisyRuntime()
        body = runtime.code(noise(seed, 0.1, middle=20e-3))
        _, flags = take(body, runtime, Options(), floor_s=FLOOR_S)
        unsteady += FlagKind.UNSTEADY in kinds(flags)

    assert unsteady <= 3


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


def test_a_slow_simulation_is_waited_for_until_it_says_something(monkeypatch):
    """Values that take this machine long leave enough samples for an interval."""
    here_s = [0.0]
    monkeypatch.setattr(sampling, "perf_counter", lambda: here_s[0])

    def where_each_takes(seconds):
        def call(_):
            here_s[0] += seconds
            return 0.002

        runtime, plan = NoisyRuntime(sync_s=5e-6), Options(budget_s=1.0)
        samples, _ = take(runtime.code(call), runtime, plan, floor_s=FLOOR_S)
        return len(samples.seconds), *compared(call, call, plan)

    alone, patient, _ = where_each_takes(0.5)
    one, hopeless, flags = where_each_takes(19.0)

    assert alone >= 6
    assert len(patient.pairs) == 6
    assert patient.verdict is Verdict.SAME
    assert one == len(hopeless.pairs) == 1
    assert FlagKind.OUT_OF_TIME in kinds(flags)


# -------------------------------------------------------------------- two in turn

RUNS = 400


def compared(base, newer, plan=None, *, seed=0, runtime=None):
    """What two codes in turn came to, each given by the seconds of its calls."""
    runtime = runtime or NoisyRuntime(sync_s=5e-6)
    bodies = runtime.code(base), runtime.code(newer)
    plan = plan or Options(budget_s=0.3)
    chance = random.Random(seed)
    return in_turn(bodies, runtime, plan, floor_s=FLOOR_S, random=chance)[1:]


def calm(seed):
    """Noise much smaller than what counts as an effect."""
    return noise(seed, 0.004), noise(seed + RUNS, 0.004)


def wild(seed):
    """Noise that hides effects many times the limit."""
    return noise(seed, 0.3), noise(seed + RUNS, 0.3)


def drifting(seed):
    """A machine that slows down, and wanders about, while it is measured."""
    chance, state = random.Random(seed), [1.0, 0.0]

    def seconds(_):
        state[0] *= 1.002
        state[1] = 0.95 * state[1] + chance.gauss(0, 0.05)
        return 2e-3 * state[0] * math.exp(state[1])

    return seconds, seconds


@pytest.mark.parametrize("shape", [calm, wild, drifting])
def test_a_code_is_rarely_faster_than_itself(shape):
    """Of four hundred comparisons of equal codes less than 5 % see a difference.

    Each is whole: warming up, calls, the end by the budget.
    """
    verdicts = Counter()

    for seed in range(RUNS):
        found, _ = compared(*shape(seed), seed=seed)
        verdicts[found.verdict] += 1

    assert verdicts[Verdict.FASTER] + verdicts[Verdict.SLOWER] < 0.05 * RUNS
    if shape is calm:
        assert verdicts[Verdict.SAME] > 0.95 * RUNS


@pytest.mark.parametrize(
    ("ratio", "verdict"), [(1.03, Verdict.SLOWER), (0.97, Verdict.FASTER)]
)
def test_three_percent_are_found_at_two_percent_noise(ratio, verdict):
    """In half a second of samples of two milliseconds."""
    found = Counter(
        compared(
            noise(seed, 0.02),
            noise(seed + RUNS, 0.02, middle=ratio * 2e-3),
            Options(budget_s=0.5),
            seed=seed,
        )[0].verdict
        for seed in range(50)
    )

    assert found[verdict] == 50


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.floats(0, 1e3), st.floats(0, 1e3)), min_size=1))
def test_swapping_the_codes_turns_the_verdict(pairs):
    """Faster becomes slower and a ratio its inverse; zeros break nothing."""
    turned = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}

    one = verdict_of(pairs)
    other = verdict_of([(newer, base) for base, newer in pairs])

    assert other.verdict is turned.get(one.verdict, one.verdict)
    assert math.log(other.ratio) == pytest.approx(-math.log(one.ratio), abs=1e-9)
    assert other.more_pairs == pytest.approx(one.more_pairs, abs=1)


def test_pairs_come_in_balanced_blocks_of_random_order():
    """Each code goes first as often as the other, and nobody can tell when."""
    order = []

    compared(
        lambda _: order.append("b") or 2e-3,
        lambda _: order.append("n") or 2e-3,
        Options(samples=40),
        seed=3,
    )
    sampled = "".join(order)[-80:]
    blocks = [sampled[start : start + 4] for start in range(0, 80, 4)]

    assert set(blocks) == {"bnnb", "nbbn"}
    assert 4 <= blocks.count("bnnb") <= 16


def test_no_result_ends_it_early():
    """A clear difference takes the budget as an unclear one does."""
    runtimes = [NoisyRuntime(), NoisyRuntime()]

    clear, flags = compared(lambda _: 2e-3, lambda _: 6e-3, runtime=runtimes[0])
    unclear, unclear_flags = compared(noise(1, 0.3), noise(2, 0.3), runtime=runtimes[1])

    assert clear.verdict is Verdict.SLOWER
    assert unclear.verdict is Verdict.CANNOT_TELL
    assert all(each.now_s == pytest.approx(0.3, rel=0.2) for each in runtimes)
    assert kinds(flags) == set()
    assert kinds(unclear_flags) == {FlagKind.OUT_OF_TIME}
