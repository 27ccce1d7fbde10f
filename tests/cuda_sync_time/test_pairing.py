"""Verdicts on two codes: how rarely they are wrong, and what they do not miss."""

# ruff: noqa: S311 -- noise, no secrets

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.cuda_sync_time import sampling
from gpumagic.cuda_sync_time.options import Options
from gpumagic.cuda_sync_time.pairing import compare
from gpumagic.cuda_sync_time.records import FlagKind
from gpumagic.report.robust import Verdict, verdict_of
from tests.cuda_sync_time.test_sampling import (
    FLOOR_S,
    NoisyRuntime,
    kinds,
    noise,
    standing_still,
)

__all__ = ["standing_still"]  # fixtures, used by their names

RUNS = 400


def compared(base, newer, plan=None, *, seed=0, runtime=None):
    """A comparison of two codes, each given by the seconds of its calls."""
    runtime = runtime or NoisyRuntime(sync_s=5e-6)
    return compare(
        runtime.code(base),
        runtime.code(newer),
        runtime,
        plan or Options(budget_s=0.3),
        floor_s=FLOOR_S,
        random=random.Random(seed),
    )


# ---------------------------------------------------------- how rarely wrong


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


def humped(seed):
    """Two ways of running, by chance, one and a half times apart."""
    chance, steps = random.Random(seed), noise(seed, 0.05)

    def seconds(number):
        return steps(number) * (1.5 if chance.random() < 0.4 else 1.0)

    return seconds, seconds


def tailed(seed):
    """A tail so long that a mean would be anything."""
    chance = random.Random(seed)

    def seconds(_):
        return 2e-3 * (1 + 0.1 * chance.paretovariate(1))

    return seconds, seconds


@pytest.mark.parametrize("shape", [calm, wild, drifting, humped, tailed])
def test_a_code_is_rarely_faster_than_itself(shape):
    """Of four hundred comparisons of equal codes less than 5 % see a difference.

    Each is whole: warming up, calls, the end by the budget.
    """
    verdicts = Counter()

    for seed in range(RUNS):
        found = compared(*shape(seed), seed=seed)
        verdicts[found.result.verdict] += 1

    assert verdicts[Verdict.FASTER] + verdicts[Verdict.SLOWER] < 0.05 * RUNS
    if shape is calm:
        assert verdicts[Verdict.SAME] > 0.95 * RUNS


# ---------------------------------------------------------- what is not missed


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
        ).result.verdict
        for seed in range(50)
    )

    assert found[verdict] == 50


def test_who_goes_second_is_not_what_is_measured():
    """A code that finds the caches of the other one warm gains nothing by it."""
    runtime, last = NoisyRuntime(), [None]

    def code(name):
        def body(calls):
            warm = last[0] is not None and last[0] is not name
            runtime.busy_s += calls * (1.9e-3 if warm else 2e-3)
            last[0] = None if warm else name

        return body

    found = compare(
        code("base"),
        code("newer"),
        runtime,
        Options(budget_s=0.3),
        floor_s=FLOOR_S,
        random=random.Random(0),
    )

    assert found.result.verdict is Verdict.CANNOT_TELL
    newer_second = [newer < base for base, newer in found.result.pairs]
    assert abs(sum(newer_second) / len(newer_second) - 0.5) < 0.05


# ------------------------------------------------------------------- verdicts


@pytest.mark.parametrize(
    ("newer_s", "verdict"),
    [
        (0.5e-3, Verdict.FASTER),
        (2e-3, Verdict.SLOWER),
        (1.008e-3, Verdict.SAME),
        (0.992e-3, Verdict.SAME),
        (1.012e-3, Verdict.SLOWER),
        (0.988e-3, Verdict.FASTER),
    ],
)
def test_one_percent_is_the_limit(newer_s, verdict):
    """However sure it is: less is the same, more is a difference."""
    assert verdict_of([(1e-3, newer_s)] * 12).verdict is verdict


def test_pairs_that_remember_are_worth_less():
    """An effect that wanders slowly round none is not found to be one."""
    wandering = [1.3 + 0.4 * math.sin(index / 12) for index in range(60)]

    together = verdict_of([(1e-3, 1e-3 * each) for each in wandering])
    random.Random(1).shuffle(wandering)
    apart = verdict_of([(1e-3, 1e-3 * each) for each in wandering])

    assert together.verdict is Verdict.CANNOT_TELL
    assert apart.verdict is Verdict.SLOWER


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


# ---------------------------------------------------------------- how it is run


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

    clear = compared(lambda _: 2e-3, lambda _: 6e-3, runtime=runtimes[0])
    unclear = compared(noise(1, 0.3), noise(2, 0.3), runtime=runtimes[1])

    assert clear.result.verdict is Verdict.SLOWER
    assert unclear.result.verdict is Verdict.CANNOT_TELL
    assert all(each.now_s == pytest.approx(0.3, rel=0.2) for each in runtimes)
    assert kinds(clear.flags) == set()
    assert kinds(unclear.flags) == {FlagKind.OUT_OF_TIME}


def test_a_slow_simulation_is_waited_for_until_it_says_something(monkeypatch):
    """Values that take this machine long leave pairs enough for an interval."""
    here_s = [0.0]
    monkeypatch.setattr(sampling, "perf_counter", lambda: here_s[0])

    def takes_here(seconds):
        def call(_):
            here_s[0] += seconds
            return 0.002

        return compared(call, call, Options(budget_s=1.0))

    patient, hopeless = takes_here(0.5), takes_here(9.0)

    assert len(patient.result.pairs) == 6
    assert patient.result.verdict is Verdict.SAME
    assert len(hopeless.result.pairs) == 1
    assert FlagKind.OUT_OF_TIME in kinds(hopeless.flags)
