"""Which shapes of samples a reader is told of, and how rarely without need."""

# ruff: noqa: S311 -- noise, no secrets

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.cuda_sync_time import samples_shape
from gpumagic.cuda_sync_time.report import FlagKind


def kinds(seconds):
    """What is said of these samples."""
    return {flag.kind for flag in samples_shape.flags_of(seconds)}


def flag(seconds, kind):
    """The flag of this kind."""
    return next(f for f in samples_shape.flags_of(seconds) if f.kind is kind)


def noisy(count, *, share=0.01, seed=0, middle=1e-3):
    """Samples with a long tail, none of which knows of another."""
    noise = random.Random(seed)
    return [middle * math.exp(noise.gauss(0, share)) for _ in range(count)]


def test_steady_samples_are_told_nothing_of():
    """A little noise is no news."""
    assert kinds(noisy(60)) == set()


@pytest.mark.parametrize("value", [1e-3, 5.032609375e-06, 0.0])
def test_equal_samples_are_told_nothing_of(value):
    """A simulated clock always says the same, and 0 divides nothing."""
    assert kinds([value] * 20) == set()


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_samples_are_counted(count):
    """Less than six have no interval."""
    assert flag([1e-3] * count, FlagKind.FEW).amount == count
    assert FlagKind.FEW not in kinds([1e-3] * 6)


def test_wide_samples_are_told_with_their_spread():
    """An interquartile range above a tenth of the median, and no narrower one."""
    wide = [1.0, 1.1, 1.2, 1.3, 1.4] * 4  # 0.2 of 1.2
    narrow = [1.0, 1.02, 1.04, 1.06, 1.08] * 4  # 0.04 of 1.04

    assert flag(wide, FlagKind.SPREAD).amount == pytest.approx(0.2 / 1.2)
    assert FlagKind.SPREAD not in kinds(narrow)


@pytest.mark.parametrize("change", [0.2, -0.2])
@pytest.mark.parametrize("count", [10, 30, 200])
def test_a_drift_is_told_with_its_size(count, change):
    """The last third over the first one, in either direction."""
    steps = [1 + change * index / (count - 1) for index in range(count)]
    seconds = [a * b for a, b in zip(steps, noisy(count), strict=True)]

    amount = flag(seconds, FlagKind.DRIFT).amount

    assert math.copysign(1, amount) == math.copysign(1, change)
    assert 0.4 * abs(change) < abs(amount) < abs(change)


def test_a_drift_of_less_than_a_percent_is_none():
    """However clear it is: nobody would want to know."""
    assert FlagKind.DRIFT not in kinds([1 + 0.005 * i / 99 for i in range(100)])


def test_a_rise_is_no_drift_while_first_and_last_overlap():
    """Most samples rise, and yet the last third could be what the first one is."""
    rising = [1.01, 1.02, 1.06, 1.03, 1.04, 1.07, 1.08, 1.05, 1.09, 1.10]

    assert FlagKind.DRIFT not in kinds(rising)
    assert FlagKind.DRIFT in kinds(sorted(rising))


def test_two_humps_are_told_with_both_medians():
    """Two groups with a gap between them, and how far apart they are."""
    low, high = noisy(12, middle=2e-3), noisy(8, middle=3e-3, seed=1)
    seconds = low + high
    random.Random(5).shuffle(seconds)

    found = flag(seconds, FlagKind.TWO_HUMPS)

    assert found.amount == pytest.approx(1.5, rel=0.02)
    assert [name.split()[1] for name in found.names] == ["ms", "ms"]


def test_some_far_samples_are_no_hump():
    """A group has at least fifteen percent of the samples."""
    assert FlagKind.TWO_HUMPS not in kinds([*noisy(38), 2e-3, 2e-3])
    assert FlagKind.TWO_HUMPS not in kinds([*noisy(36), *[2e-3] * 4])
    assert FlagKind.TWO_HUMPS in kinds([*noisy(34), *[2e-3] * 6])


def test_exact_groups_are_two_humps():
    """Groups without any width of their own, as on a simulated clock."""
    found = flag([1e-3, 2e-3] * 10, FlagKind.TWO_HUMPS)

    assert found.amount == 2.0
    assert FlagKind.TWO_HUMPS not in kinds([1e-3, 1.001e-3] * 10)  # too near


def test_samples_that_remember_are_told_of():
    """Each one resembles the one before; few of them are then worth an interval."""
    noise, seconds = random.Random(2), [1.0]
    for _ in range(99):
        seconds.append(1 + 0.9 * (seconds[-1] - 1) + noise.gauss(0, 0.01))

    assert flag(seconds, FlagKind.CORRELATED).amount > 0.5
    assert FlagKind.CORRELATED not in kinds(noisy(100))


@pytest.mark.parametrize(("count", "most"), [(10, 0.03), (20, 0.015), (60, 0.015)])
def test_chance_alone_is_rarely_a_shape(count, most):
    """Of a thousand steady measurements, hardly any is given a shape it has not."""
    seen = Counter()
    for seed in range(1000):
        seen.update(kinds(noisy(count, share=0.02, seed=seed)))

    for kind in (FlagKind.DRIFT, FlagKind.TWO_HUMPS, FlagKind.CORRELATED):
        assert seen[kind] / 1000 <= most, kind


@settings(deadline=None, max_examples=100)
@given(st.lists(st.just(0.0) | st.floats(1e-12, 10), max_size=40))
def test_no_samples_break_it(seconds):
    """Zeros, equal ones, one, none: every list has its flags."""
    for each in samples_shape.flags_of(seconds):
        assert each.amount is None or math.isfinite(each.amount)


def test_a_stretch_has_moved_only_if_chance_would_not_do_it():
    """Stretches of noise are not the same, and yet nothing moves."""
    before, now = [1.0, 1.1, 0.9, 1.05, 0.95], [1.1, 1.0, 1.2, 1.15, 0.97]

    assert not samples_shape.are_alike(before, now)
    assert not samples_shape.moved(before, now)
    assert samples_shape.moved(before, [2 * each for each in before])
    assert samples_shape.are_alike(before, [1.015 * each for each in before])
