"""The queueing model: formulas, picture and pace, each worked out by hand."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.pin_loader.bound import (
    Costs,
    Pace,
    Queue,
    Way,
    bound_of,
    costs_of,
    four_steps,
    schedule,
    step_s,
)
from gpumagic.pin_loader.loops import PacedLoader
from gpumagic.pin_loader.report import (
    CopyMode,
    Loading,
    Part,
    Rates,
    Remedy,
    Samples,
    Step,
)

MS = 1e-3
KINDS = tuple(Way)

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


def rates(*, load=1.0, pin=1.0, link=1.0, pageable=1.0, step=1.0):
    """Rates in milliseconds."""
    return Rates(
        load=Loading(samples(load * MS), workers=2),
        pin_copy=samples(pin * MS),
        copies=(
            CopyMode(False, True, samples(pageable * MS), samples(pageable * MS)),
            CopyMode(True, True, samples(link * MS), samples(link * MS)),
            CopyMode(True, False, samples(0.001 * MS), samples(link * MS)),
        ),
        step=Step("step", samples(step * MS)),
    )


def of_costs(costs):
    """The rates that these costs come from."""
    factor = 1 / MS
    return rates(
        load=costs.load_s * factor,
        pin=costs.pin_s * factor,
        link=costs.link_s * factor,
        pageable=costs.blocking_s * factor,
        step=costs.step_s * factor,
    )


# ------------------------------------------------------------------ examples


def test_a_loop_that_waits_for_its_link_gains_by_pinning():
    """6 ms pageable and 3 ms of compute add up; pinned and ahead 3 ms are left."""
    bound = bound_of(
        rates(load=1, pin=2, link=1, pageable=6, step=3),
        pinned=False,
        workers=2,
        most_workers=4,
    )

    assert bound.now_s == pytest.approx(9 * MS)
    assert not bound.now_measured
    assert bound.best_s == pytest.approx(3 * MS)
    assert bound.binding is Part.STEP
    assert bound.most == pytest.approx(3)
    assert {gain.remedy: round(gain.step_s / MS) for gain in bound.gains} == {
        Remedy.PIN: 4,
        Remedy.PREFETCH: 3,
        Remedy.WORKERS: 9,
        Remedy.EVERYTHING: 3,
    }
    assert bound.best.remedy is Remedy.PREFETCH


def test_a_loop_that_loads_in_its_own_thread_gains_by_a_worker():
    """Without workers the pinning thread is the host itself, which loads as well."""
    bound = bound_of(
        rates(load=4, pin=2, link=1, pageable=3, step=3),
        pinned=False,
        workers=0,
        most_workers=1,
    )

    assert bound.now_s == pytest.approx(7 * MS)
    assert bound.binding is Part.LOAD
    assert {gain.remedy: round(gain.step_s / MS) for gain in bound.gains} == {
        Remedy.PIN: 6,
        Remedy.PREFETCH: 6,
        Remedy.WORKERS: 6,
        Remedy.EVERYTHING: 4,
    }
    assert bound.best.remedy is Remedy.EVERYTHING


def test_compute_that_takes_all_leaves_nothing_to_win():
    """A step of 100 ms beside 1 ms of everything else gains 1 % at most."""
    bound = bound_of(
        rates(load=1, pin=1, link=1, pageable=1, step=100), pinned=False, workers=2
    )

    assert bound.most == pytest.approx(1.01)
    assert bound.binding is Part.STEP


def test_a_measured_step_takes_the_place_of_the_sum():
    """What the loop was seen to take counts, also where it outdoes the parts."""
    slow = bound_of(rates(), pinned=False, workers=2, now_s=7 * MS)
    fast = bound_of(rates(), pinned=False, workers=2, now_s=0.5 * MS)

    assert (slow.now_s, slow.now_measured, slow.best_s) == (7 * MS, True, 1 * MS)
    assert fast.best_s == fast.now_s == 0.5 * MS


def test_a_loader_that_pins_already_has_no_pinning_to_gain():
    """Its time for loading has the pinning in it; only copying ahead is left."""
    bound = bound_of(rates(pin=50), pinned=True, workers=2)

    assert Part.PIN not in dict(bound.parts)
    assert Remedy.PIN not in [gain.remedy for gain in bound.gains]
    assert bound.best_s == pytest.approx(1 * MS)


def test_pageable_memory_may_be_the_faster_way():
    """Where pinning takes longer than a pageable copy, no step is bound by it."""
    bound = bound_of(rates(load=1, pin=9, link=1, pageable=2, step=1), pinned=False)

    assert dict(bound.parts)[Part.LINK] == pytest.approx(2 * MS)
    assert bound.best_s == pytest.approx(2 * MS)
    assert Part.PIN not in dict(bound.parts)


def test_faster_loading_that_was_measured_counts():
    """With a search for workers the bound knows how fast loading can be."""
    slow = rates(load=20)
    more = Loading(samples(5 * MS), workers=4)

    bound = bound_of(slow, pinned=False, workers=1, more_workers=more)

    assert bound.best_s == pytest.approx(5 * MS)
    gains = {gain.remedy: gain.step_s for gain in bound.gains}
    assert gains[Remedy.WORKERS] == pytest.approx(5 * MS)
    assert gains[Remedy.PREFETCH] == pytest.approx(20 * MS)


def standing_in(found):
    """The same rates with a step that stands in for the user's."""
    step = dataclasses.replace(found.step, synthetic=True)
    return dataclasses.replace(found, step=step)


def test_a_stand_in_for_compute_neither_binds_nor_hides_what_workers_give():
    """It is as long as loading takes, and loading is what more workers shorten."""
    found = standing_in(rates(load=12, pin=0.1, link=0.1, pageable=0.2, step=12))

    bound = bound_of(found, pinned=False, workers=0, most_workers=2)

    assert bound.binding is Part.LOAD
    assert bound.most < 1.05
    times = {gain.remedy: bound.times(gain) for gain in bound.gains}
    assert times[Remedy.WORKERS] == pytest.approx(12.2 / 6)
    assert times[Remedy.PREFETCH] == pytest.approx(12.3 / 12.1)


@given(all_costs, st.integers(1, 16))
@settings(max_examples=200, deadline=None)
def test_workers_load_so_many_times_as_fast_as_they_are_more(costs, most):
    """Two processors never promise a hundred times, whatever the step."""
    bound = bound_of(
        standing_in(of_costs(costs)),
        pinned=False,
        workers=costs.workers,
        most_workers=most,
    )

    # One worker loads beside the loop, which by itself is twice as fast at most.
    limit = 2 * most / max(costs.workers, 1) if most > costs.workers else 1
    times = [bound.times(gain) for gain in bound.gains if gain.remedy is Remedy.WORKERS]
    assert all(each <= limit * (1 + 1e-9) for each in times)
    assert bool(times) == (most > costs.workers)


@given(all_costs, st.booleans(), st.floats(0, 3), st.integers(1, 16))
@settings(max_examples=200, deadline=None)
def test_no_step_gains_more_than_is_told_of_a_stand_in(costs, pinned, step, most):
    """Whatever the user's own step takes, what a remedy gives with it is less."""

    def times(rates_):
        bound = bound_of(
            rates_, pinned=pinned, workers=costs.workers, most_workers=most
        )
        return {gain.remedy: bound.times(gain) for gain in bound.gains}

    found = of_costs(dataclasses.replace(costs, step_s=step))

    most_of_all, own = times(standing_in(found)), times(found)
    # What makes each step longer is next to nothing in a long one.
    assert all(own[each] <= max(most_of_all[each], 1) * (1 + 1e-9) for each in own)


@given(all_costs, st.integers(1, 16))
@settings(max_examples=100, deadline=None)
def test_what_a_step_shows_comes_to_the_step(costs, most):
    """Exposed parts add up, of the loop as it is and of each remedy."""
    bound = bound_of(
        of_costs(costs), pinned=False, workers=costs.workers, most_workers=most
    )

    assert sum(dict(bound.exposed).values()) == pytest.approx(bound.now_s)
    for gain in bound.gains:
        assert min(dict(gain.exposed).values()) >= 0
        if gain.workers is not None:
            assert sum(dict(gain.exposed).values()) == pytest.approx(gain.step_s)


def test_what_was_not_measured_takes_no_time():
    """Rates of loading alone give a bound by loading."""
    bound = bound_of(Rates(load=Loading(samples(2 * MS), 0)), pinned=False, workers=0)

    assert (bound.now_s, bound.best_s) == (2 * MS, 2 * MS)
    assert bound.binding is Part.LOAD


# ---------------------------------------------------------------- properties


@given(all_costs, st.booleans(), st.none() | times)
@settings(max_examples=200, deadline=None)
def test_nothing_is_better_than_the_best(costs, pinned, now_s):
    """The best is at most now, no measured gain is shorter, and the slowest binds."""
    found = of_costs(costs)

    bound = bound_of(found, pinned=pinned, workers=costs.workers, now_s=now_s)

    assert bound.best_s <= bound.now_s
    assert all(
        gain.step_s >= bound.best_s
        for gain in bound.gains
        if gain.remedy is not Remedy.WORKERS
    )
    assert dict(bound.parts)[bound.binding] == max(dict(bound.parts).values())
    assert bound.most >= 1


@given(all_costs, st.sampled_from(KINDS))
@settings(max_examples=100, deadline=None)
def test_the_picture_keeps_what_the_formula_promises(costs, way):
    """In the long run the schedule of steps comes to the step of the formula."""
    spans = schedule(costs, way, steps=400)
    ends = [span.end_s for span in spans if span.lane == "compute"]
    long_run_s = (ends[-1] - ends[200]) / (len(ends) - 201)

    assert long_run_s == pytest.approx(step_s(costs, way), rel=1e-6)


@given(all_costs, st.booleans(), st.floats(0.05, 20))
@settings(max_examples=200, deadline=None)
def test_a_synthetic_step_is_the_most_favourable_one(costs, pinned, factor):
    """No other step gains more than one that is as long as the slowest other part."""

    def most(seconds):
        found = of_costs(dataclasses.replace(costs, step_s=seconds))
        return bound_of(found, pinned=pinned, workers=costs.workers).most

    free = bound_of(
        of_costs(dataclasses.replace(costs, step_s=0.0)),
        pinned=pinned,
        workers=costs.workers,
    )
    slowest_s = max(seconds for _, seconds in free.parts)

    assert most(slowest_s * factor) <= most(slowest_s) * (1 + 1e-9)


@given(all_costs)
@settings(max_examples=50, deadline=None)
def test_no_lane_does_two_things_at_once(costs):
    """Spans of one lane follow each other, whatever the loop is."""
    for way in KINDS:
        spans = schedule(costs, way)
        for lane in ("load", "copy", "compute"):
            own = [span for span in spans if span.lane == lane]
            assert [span.step for span in own] == [0, 1, 2, 3]
            assert all(
                before.end_s <= after.start_s * (1 + 1e-9) + 1e-12
                for before, after in pairwise(own)
            )


def test_costs_are_read_by_how_the_batch_is_pinned():
    """A loader that pins is charged a pinned copy that blocks, and no pinning."""
    found = rates(pin=5, link=2, pageable=9)

    assert costs_of(found, workers=1, pinned=False).blocking_s == pytest.approx(9 * MS)
    assert costs_of(found, workers=1, pinned=True).blocking_s == pytest.approx(2 * MS)
    assert costs_of(found, workers=1, pinned=True).pin_s == 0


def spans_of(spans, lane):
    """Beginning and end of each span of a lane, in whole milliseconds."""
    return [
        (round(span.start_s / MS), round(span.end_s / MS))
        for span in spans
        if span.lane == lane
    ]


def test_a_blocking_loop_that_loads_by_itself():
    """It loads while the device computes, and copies when both are done."""
    costs = Costs(load_s=2 * MS, blocking_s=1 * MS, step_s=3 * MS)

    spans = schedule(costs, Way.BLOCKING)

    assert spans_of(spans, "load") == [(0, 2), (3, 5), (7, 9), (11, 13)]
    assert spans_of(spans, "copy") == [(2, 3), (6, 7), (10, 11), (14, 15)]
    assert spans_of(spans, "compute") == [(3, 6), (7, 10), (11, 14), (15, 18)]


def test_a_blocking_loop_with_workers():
    """Workers load on; copy and compute follow each other without a gap."""
    costs = Costs(load_s=2 * MS, blocking_s=1 * MS, step_s=3 * MS, workers=2)

    spans = schedule(costs, Way.BLOCKING)

    assert spans_of(spans, "load") == [(0, 2), (2, 4), (4, 6), (6, 8)]
    assert spans_of(spans, "copy") == [(2, 3), (6, 7), (10, 11), (14, 15)]
    assert spans_of(spans, "compute") == [(3, 6), (7, 10), (11, 14), (15, 18)]


def test_copies_ahead_run_beside_compute():
    """Step 0 begins when batch 1 is there; from then on compute never waits."""
    costs = Costs(load_s=1 * MS, pin_s=1 * MS, link_s=2 * MS, step_s=3 * MS, workers=2)

    spans = schedule(costs, Way.AHEAD)

    assert spans_of(spans, "copy") == [(1, 3), (3, 5), (6, 8), (9, 11)]
    assert spans_of(spans, "compute") == [(3, 6), (6, 9), (9, 12), (12, 15)]


def test_a_step_waits_until_the_next_batch_is_fetched():
    """That is the price of looking ahead: the first step begins after two loads."""
    costs = Costs(load_s=5 * MS, link_s=1 * MS, step_s=1 * MS, workers=2)

    spans = schedule(costs, Way.AHEAD)

    assert spans_of(spans, "compute") == [(10, 11), (15, 16), (20, 21), (25, 26)]


def test_pinning_joins_loading_where_one_thread_does_both():
    """Without workers a batch takes loading and pinning; with them the longer one."""
    alone = Costs(load_s=2 * MS, pin_s=1 * MS, link_s=1 * MS, step_s=1 * MS)
    helped = Costs(load_s=2 * MS, pin_s=1 * MS, link_s=1 * MS, step_s=1 * MS, workers=1)

    assert spans_of(schedule(alone, Way.AHEAD), "load")[:2] == [(0, 3), (3, 6)]
    assert spans_of(schedule(helped, Way.AHEAD), "load")[:2] == [(0, 2), (2, 4)]


def picture(found, **more):
    """Four steps of these rates, and the bound that they belong to."""
    given = {"workers": 2, "pinned": False, **more}
    most = given.pop("most_workers", None)
    bound = bound_of(found, most_workers=most, **given)
    return four_steps(found, bound, **given)


def test_before_and_after_come_from_the_same_rates():
    """Before it is the blocking pageable copy, after the pinned one, one ahead."""
    found = picture(rates(load=1, pin=1, link=2, pageable=6, step=3))

    assert found.remedy is Remedy.PREFETCH
    assert spans_of(found.before, "copy") == [(0, 6), (9, 15), (18, 24), (27, 33)]
    assert spans_of(found.before, "compute") == [(6, 9), (15, 18), (24, 27), (33, 36)]
    assert spans_of(found.after, "compute") == [(0, 3), (3, 6), (6, 9), (9, 12)]


def end_of(spans):
    """When the last of some spans ends."""
    return max(span.end_s for span in spans)


@given(all_costs, st.booleans(), st.booleans(), st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_the_better_loop_never_ends_later_in_the_picture(
    costs, pinned, synthetic, most
):
    """Both begin under way, so that four steps take four times what one is to take."""
    found = of_costs(costs)
    found = standing_in(found) if synthetic else found
    bound = bound_of(found, pinned=pinned, workers=costs.workers, most_workers=most)

    steps = four_steps(found, bound, workers=costs.workers, pinned=pinned)

    assert end_of(steps.before) == pytest.approx(4 * sum(dict(bound.exposed).values()))
    best = sum(dict(bound.best.exposed).values())
    assert end_of(steps.after) == pytest.approx(4 * best, rel=1e-6)
    assert min(span.start_s for span in (*steps.before, *steps.after)) >= 0


def test_a_stand_in_is_not_drawn_as_a_part_of_a_step():
    """What it computes is nothing that the user's loop does."""
    found = picture(standing_in(rates(load=4, step=4)))

    computed = [span for span in found.before if span.lane == "compute"]
    assert sum(span.end_s - span.start_s for span in computed) == 0


def test_there_is_no_picture_of_nothing():
    """Without rates there is nothing to draw."""
    assert picture(Rates(), workers=0) is None


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self):
        self.now = 100.0

    def now_s(self):
        """What it shows."""
        return self.now

    def pass_time(self, seconds):
        """Move it on."""
        self.now += seconds


def fetched(pace, asked):
    """When each batch is in hand, if it is asked for so long after the one before."""
    arrivals, now_s, found = Queue(pace), 0.0, []
    for wait_s in asked:
        now_s = arrivals.fetch(now_s + wait_s)
        found.append(now_s)
    return found


def test_without_workers_each_fetch_loads_and_pins():
    """Loading begins when somebody asks: 2 s and 1 s after each question."""
    assert fetched(Pace(2.0, 1.0), [0, 5, 0]) == [3.0, 11.0, 14.0]


def test_a_worker_loads_while_nobody_asks():
    """Asked late, a batch is there; asked at once, it takes what is left."""
    assert fetched(Pace(2.0, workers=1), [0, 1, 5, 0]) == [2.0, 4.0, 9.0, 9.0]


def test_a_thread_pins_beside_the_workers():
    """The slower of both sets the pace."""
    assert fetched(Pace(2.0, 3.0, workers=1), [0, 0, 0]) == [3.0, 6.0, 9.0]


def test_full_slots_stop_the_workers():
    """Of two slots both are full by 2 s; taking at 10 s lets the next one begin."""
    pace = Pace(1.0, workers=1, prefetch_factor=2)

    # Batch 1 waits since 2 s. Batch 2 has had its slot since 1 s, batch 3 since 10 s.
    assert fetched(pace, [0, 9, 0, 0, 0]) == [1.0, 10.0, 10.0, 11.0, 12.0]


@given(st.floats(0.01, 1.0), st.integers(1, 4), st.integers(2, 4), st.floats(0.01, 3.0))
@settings(max_examples=60, deadline=None)
def test_in_the_long_run_the_slower_one_sets_the_pace(load_s, workers, factor, use_s):
    """A loop that uses each batch for a while takes the longer of using and loading."""
    pace = Pace(load_s, workers=workers, prefetch_factor=factor)

    found = fetched(pace, [use_s] * 200)

    steps = [after - before for before, after in pairwise(found[100:])]
    assert sum(steps) / len(steps) == pytest.approx(max(load_s, use_s), rel=0.02)
    assert all(step >= use_s * (1 - 1e-9) for step in steps)


def test_the_loader_lets_time_pass_and_gives_its_batches_in_turn():
    """Two real batches make an epoch of five, on a clock that only it moves."""
    clock = Clock()
    loader = PacedLoader(
        "ab", Pace(2.0), now_s=clock.now_s, pass_time=clock.pass_time, length=5
    )

    given = list(loader)

    assert given == ["a", "b", "a", "b", "a"]
    assert len(loader) == 5
    assert clock.now == 110.0


def test_two_epochs_begin_anew_each():
    """Workers of a new epoch have prepared nothing."""
    clock = Clock()
    loader = PacedLoader(
        "a",
        Pace(2.0, workers=1),
        now_s=clock.now_s,
        pass_time=clock.pass_time,
        length=1,
    )

    list(loader)
    clock.pass_time(50)
    list(loader)

    assert clock.now == 154.0


@pytest.mark.parametrize(
    ("synthetic", "binding"), [(True, Part.LOAD), (False, Part.STEP)]
)
def test_a_stand_in_for_compute_never_binds(synthetic, binding):
    """A synthetic step that came out longer than meant is not what slows the loop."""
    copied = Samples((0.001,) * 3)
    rates = Rates(
        load=Loading(Samples((0.010,) * 3), workers=2),
        pin_copy=copied,
        copies=(
            CopyMode(False, True, copied, copied),
            CopyMode(True, True, copied, copied),
            CopyMode(True, False, copied, copied),
        ),
        step=Step("step", Samples((0.012,) * 3), synthetic=synthetic),
    )

    assert bound_of(rates, pinned=False, workers=2).binding is binding
