"""The picture of four steps: worked out by hand."""

from __future__ import annotations

import pytest

from gpumagic.pin_loader.bound import Costs, Way, four_steps, schedule
from gpumagic.pin_loader.report import Rates
from tests.pin_loader.test_bounds import MS, rates


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


def test_before_and_after_come_from_the_same_rates():
    """Before it is the blocking pageable copy, after the pinned one, one ahead."""
    found = four_steps(
        rates(load=1, pin=1, link=2, pageable=6, step=3), workers=2, pinned=False
    )

    assert spans_of(found.before, "copy")[0] == (1, 7)
    assert spans_of(found.after, "copy")[0] == (1, 3)
    assert max(span.end_s for span in found.after) == pytest.approx(15 * MS)
    assert max(span.end_s for span in found.before) == pytest.approx(37 * MS)


def test_there_is_no_picture_of_nothing():
    """Without rates there is nothing to draw."""
    assert four_steps(Rates(), workers=0, pinned=False) is None
