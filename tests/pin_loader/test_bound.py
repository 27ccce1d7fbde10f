"""The model of a step: formulas and bounds, each worked out by hand."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.pin_loader.bound import (
    Costs,
    Way,
    after_proof,
    bound_of,
    step_s,
)
from gpumagic.pin_loader.records import (
    CopyMode,
    EndToEnd,
    Loading,
    Rates,
    Remedy,
    Samples,
    Step,
    Stopped,
    WorkerSearch,
)
from gpumagic.report.robust import verdict_of

MS = 1e-3

times = st.floats(1e-6, 1.0)
all_costs = st.builds(
    Costs,
    load_s=times,
    pin_s=times,
    link_s=times,
    blocking_s=times,
    step_s=times,
    workers=st.integers(0, 8),
)


def samples(seconds):
    """The same again and again."""
    return Samples((seconds,) * 3)


def of_costs(costs, *, stands_in=False):
    """The rates that these costs come from."""
    link = samples(costs.link_s)
    pageable = samples(costs.blocking_s)
    return Rates(
        load=Loading(samples(costs.load_s), workers=2),
        pin_copy=samples(costs.pin_s),
        copies=(
            CopyMode(False, True, pageable, pageable),
            CopyMode(True, True, link, link),
            CopyMode(True, False, samples(1e-6), link),
        ),
        step=Step("step", samples(costs.step_s), synthetic=stands_in),
    )


def searched(now_ms, other_ms, *, now=2, other=4):
    """What a search has measured, and what it chose."""
    trials = (
        Loading(samples(now_ms * MS), workers=now),
        Loading(samples(other_ms * MS), workers=other),
    )
    return WorkerSearch(trials, other, Stopped.FOUND, now)


def steps_of(bound):
    """What each remedy leaves of a step, in milliseconds."""
    return {gain.remedy: round(gain.step_s / MS, 2) for gain in bound.gains}


def test_workers_are_judged_by_what_was_measured():
    """More of them, fewer, and none; what was not tried is no remedy."""
    slow = of_costs(Costs(20 * MS, MS, MS, MS, MS))

    more = bound_of(slow, pinned=False, workers=2, search=searched(20, 5))
    none = bound_of(slow, pinned=False, workers=2, search=searched(20, 5, other=0))
    same = bound_of(slow, pinned=False, workers=2, search=searched(20, 19.5))

    assert steps_of(more)[Remedy.WORKERS] == 5
    assert more.gain(Remedy.WORKERS).workers == 4
    assert none.gain(Remedy.WORKERS).workers == 0
    assert steps_of(none)[Remedy.WORKERS] == 6  # one thread loads, then copies
    assert same.gain(Remedy.WORKERS).times == 1
    assert steps_of(more)[Remedy.PREFETCH] == 20


def test_what_was_measured_is_never_above_what_was_said_to_be_the_most():
    """Both loops outdo the parts: then the parts were too slow."""
    costs = Costs(MS, 2 * MS, MS, 6 * MS, 3 * MS)
    bound = bound_of(of_costs(costs), pinned=False, workers=2)
    quicker = EndToEnd(verdict_of([(9 * MS, 2 * MS)] * 6))
    slower = EndToEnd(verdict_of([(9 * MS, 5 * MS)] * 6))

    raised = after_proof(bound, quicker, Remedy.PREFETCH)

    assert raised.gain(Remedy.PREFETCH).times == pytest.approx(4.5)
    assert after_proof(bound, slower, Remedy.PREFETCH) == bound


@given(all_costs, st.booleans(), st.floats(0, 3), st.floats(0.01, 1000))
@settings(max_examples=200, deadline=None)
def test_no_step_gains_more_than_is_told_of_a_stand_in(costs, pinned, step, other):
    """Whatever the user's own step takes, what a remedy gives with it is less."""
    now_ms = costs.load_s / MS
    search = searched(now_ms, other, now=costs.workers, other=costs.workers + 3)

    def times_of(found):
        bound = bound_of(found, pinned=pinned, workers=costs.workers, search=search)
        return {gain.remedy: gain.times for gain in bound.gains}

    costs = dataclasses.replace(costs, step_s=step)
    own, most_of_all = (
        times_of(of_costs(costs)),
        times_of(of_costs(costs, stands_in=True)),
    )
    # What makes each step longer is next to nothing in a long one.
    assert all(own[each] <= max(most_of_all[each], 1) * (1 + 1e-9) for each in own)


@given(all_costs, st.booleans(), st.floats(0.01, 1000))
@settings(max_examples=200, deadline=None)
def test_what_a_step_shows_comes_to_the_step(costs, pinned, other):
    """Exposed parts add up, of the loop as it is and of each remedy."""
    now_ms = costs.load_s / MS
    search = searched(now_ms, other, now=costs.workers, other=costs.workers + 3)

    bound = bound_of(
        of_costs(costs), pinned=pinned, workers=costs.workers, search=search
    )

    assert sum(dict(bound.exposed).values()) == pytest.approx(bound.now_s)
    assert dict(bound.parts)[bound.binding] == max(dict(bound.parts).values())
    for gain in bound.gains:
        assert min(dict(gain.exposed).values()) >= 0
        assert sum(dict(gain.exposed).values()) == pytest.approx(gain.step_s)


@given(all_costs, st.sampled_from(list(Way)))
@settings(max_examples=100, deadline=None)
def test_a_step_is_never_shorter_than_its_slowest_part(costs, way):
    """And never longer than all parts one after the other."""
    copied_s = costs.blocking_s if way is Way.BLOCKING else costs.link_s
    loaded_s = costs.load_s if way is Way.BLOCKING else costs.interval_s

    assert step_s(costs, way) >= max(loaded_s, copied_s, costs.step_s)
    assert step_s(costs, way) <= loaded_s + copied_s + costs.step_s + 1e-12
