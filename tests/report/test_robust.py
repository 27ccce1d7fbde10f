"""Medians, quartiles and intervals, held to numpy and to counting."""

# ruff: noqa: S311 -- noise, no secrets

from __future__ import annotations

import itertools
import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.report import robust

VALUES = st.lists(st.floats(0, 1e3, allow_subnormal=False), min_size=1, max_size=60)
modest = settings(deadline=None, max_examples=80)


@modest
@given(VALUES)
def test_quantiles_agree_with_numpy(values):
    """Median and quartiles are those that numpy gives by default."""
    numpy = pytest.importorskip("numpy")

    low, high = robust.quartiles(values)

    assert robust.median(values) == pytest.approx(statistics.median(values))
    assert low == pytest.approx(numpy.quantile(values, 0.25))
    assert high == pytest.approx(numpy.quantile(values, 0.75))


@pytest.mark.parametrize("of", [robust.median, robust.quartiles])
def test_no_values_are_refused(of):
    """Of nothing there is no median and there are no quartiles."""
    with pytest.raises(ValueError, match="of no values"):
        of([])


@pytest.mark.parametrize(
    ("count", "rank", "coverage"),
    [(6, 1, 0.96875), (10, 2, 0.978516), (20, 6, 0.958611), (100, 40, 0.9648)],
)
def test_ranks_are_the_published_ones(count, rank, coverage):
    """Six values give the smallest to the largest, ten the second to the ninth."""
    found = robust.symmetric_rank(count, 0.95)

    assert found == (rank, pytest.approx(coverage, abs=1e-5))


@pytest.mark.parametrize("count", range(6))
def test_fewer_than_six_values_have_no_interval(count):
    """Even from smallest to largest would be less than 95 % sure."""
    assert robust.honest_interval([1.0] * count) is None


@pytest.mark.parametrize("count", range(1, 13))
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99])
def test_coverage_is_that_of_counting_all_coins(count, confidence):
    """The rank is the greatest sure enough one, by counting each way of falling."""
    heads = [sum(coins) for coins in itertools.product((0, 1), repeat=count)]

    def covered(rank):
        return sum(rank <= each <= count - rank for each in heads) / len(heads)

    wanted = [r for r in range(1, count // 2 + 1) if covered(r) >= confidence]
    found = robust.symmetric_rank(count, confidence)

    assert found == ((max(wanted), covered(max(wanted))) if wanted else None)


@modest
@given(VALUES)
def test_the_interval_holds_the_median_of_its_own_values(values):
    """Both ends are values that were measured, on either side of their median."""
    interval = robust.honest_interval(values)

    if interval is not None:
        assert interval.low <= robust.median(values) <= interval.high
        assert {interval.low, interval.high} <= set(values)


def naive_interval(values):
    """What holds the median of values that do not depend on each other."""
    rank, coverage = robust.symmetric_rank(len(values), 0.95)
    ordered = sorted(values)
    return robust.Interval(ordered[rank - 1], ordered[-rank], coverage)


def remembering(noise, count, memory):
    """Values each of which is partly the one before; their true median is 1."""
    state = noise.gauss(0, 1)
    for _ in range(count):
        yield math.exp(0.05 * state)
        state = memory * state + math.sqrt(1 - memory**2) * noise.gauss(0, 1)


@pytest.mark.parametrize("memory", [0.3, 0.5, 0.7])
def test_an_honest_interval_holds_where_values_remember(memory):
    """Values that resemble the one before give an interval wide enough to hold."""
    noise, honest, naive, repeats = random.Random(7), 0, 0, 400

    for _ in range(repeats):
        values = list(remembering(noise, 100, memory))
        interval, simple = robust.honest_interval(values), naive_interval(values)
        honest += interval is None or interval.low <= 1.0 <= interval.high
        naive += simple.low <= 1.0 <= simple.high

    assert honest / repeats > 0.93
    assert naive < honest - 0.02 * repeats  # why it is needed


def test_independent_values_lose_nothing_by_honesty():
    """Where chance alone makes neighbours alike, the interval is the exact one."""
    noise = random.Random(1)
    several = [[noise.random() for _ in range(40)] for _ in range(200)]

    same = sum(robust.honest_interval(each) == naive_interval(each) for each in several)

    assert same > 0.75 * len(several)
    assert robust.honest_interval([3.0] * 9) == naive_interval([3.0] * 9)


@pytest.mark.parametrize("value", [0.1, 1e-9, 5.032609375e-06, 0.0])
def test_equal_values_resemble_nothing(value):
    """A clock that always says the same gives no correlation."""
    values = [value] * 57

    assert robust.autocorrelation(values) == 0.0
    assert robust.honest_interval(values)[:2] == (value, value)


@modest
@given(VALUES)
def test_ranks_keep_order_and_sum(values):
    """Places add up as 1 to n do, a smaller value never has the higher place."""
    places = robust.ranks_of(values)

    assert sum(places) == pytest.approx(len(values) * (len(values) + 1) / 2)
    for one, other in itertools.pairwise(range(len(values))):
        if values[one] < values[other]:
            assert places[one] < places[other]
        if values[one] == values[other]:
            assert places[one] == places[other]


def test_ranks_shift_as_wilcoxon_counts_them():
    """Two groups of five, one entirely above, are 2.61 standard errors apart."""
    low, high = [1.0, 2.0, 3.0, 4.0, 5.0], [6.0, 7.0, 8.0, 9.0, 10.0]

    assert robust.rank_shift(low, high) == pytest.approx(2.6112, abs=1e-4)
    assert robust.rank_shift(high, low) == -robust.rank_shift(low, high)
    assert robust.rank_shift(low, low) == 0.0


def test_what_wanders_by_less_than_a_tenth_of_the_effect_is_told():
    """Three times as long is slower, though each pair resembles the one before."""
    wandering = [(0.008, 0.024 + 0.00001 * at) for at in range(15)]
    turning = [(0.008, 0.008 + 0.0002 * at) for at in range(15)]

    found = robust.verdict_of(wandering)

    assert robust.honest_interval(robust.logs_of(wandering)) is None
    assert found.verdict is robust.Verdict.SLOWER
    assert found.interval.low < found.ratio < found.interval.high
    assert robust.verdict_of(turning).verdict is robust.Verdict.CANNOT_TELL
