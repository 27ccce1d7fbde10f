"""Both loops in turn: how many steps, in which order, at which pace in a model."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.pin_loader.bound import Costs
from gpumagic.pin_loader.loops import (
    Lead,
    Pace,
    PacedLoader,
    Queue,
    _affordable,
    _pairs,
    _verdict,
)
from gpumagic.report.robust import Verdict


@pytest.mark.parametrize(
    ("budget_s", "workers", "steps"),
    [
        (1.32, 1, 10),  # twelve runs of 10 steps of 10 ms, and one that is dropped
        (1.68, 1, 13),
        (60.0, 1, 20),  # more than so many tell nothing more
        (1.32, 4, 12),  # whole rounds of four workers
    ],
)
def test_six_pairs_of_runs_fit_into_the_budget(budget_s, workers, steps):
    """As many steps as there is time for, in whole rounds of the workers."""
    costs = Costs(load_s=0.010)
    loop = SimpleNamespace(round=workers, ahead=3)
    pace = Pace(costs, costs)

    assert _affordable([loop, loop], pace, budget_s + 1e-6, modelled=False) == steps


def test_the_order_of_runs_is_a_b_b_a():
    """What drifts is shared out among both."""
    ran = []

    def loop(name):
        return SimpleNamespace(run=lambda steps: ran.append(name) or steps)

    pairs = _pairs(
        [loop("A"), loop("B")], 4, 1000.0, modelled=False, progress=lambda _: None
    )

    assert "".join(ran[2:10]) == "ABBAABBA"
    assert set(pairs) == {(4, 4)}


def fetched(lead, asked):
    """When each batch is in hand, if it is asked for so long after the one before."""
    queue, now_s, found = Queue(lead), 0.0, []
    for wait_s in asked:
        now_s = queue.fetch(now_s + wait_s)
        found.append(now_s)
    return found


@given(st.floats(0.01, 1.0), st.integers(1, 4), st.integers(2, 4), st.floats(0.01, 3.0))
@settings(max_examples=60, deadline=None)
def test_in_the_long_run_the_slower_one_sets_the_pace(load_s, workers, factor, use_s):
    """A loop that uses each batch for a while takes the longer of using and loading."""
    found = fetched(Lead(load_s, workers, factor), [use_s] * 200)

    steps = [after - before for before, after in pairwise(found[100:])]
    assert sum(steps) / len(steps) == pytest.approx(max(load_s, use_s), rel=0.02)
    assert all(step >= use_s * (1 - 1e-9) for step in steps)


class Box:
    """A simulated machine's clock."""

    time_s = 100.0

    def pass_time(self, seconds):
        """Move it on."""
        self.time_s += seconds


def test_a_modelled_loader_lets_time_pass_and_gives_its_batches_in_turn():
    """Two real batches make an epoch of five, and each epoch begins anew."""
    box = Box()
    loader = PacedLoader("ab", Lead(2.0), box, length=5)

    assert list(loader) == ["a", "b", "a", "b", "a"]
    assert len(loader) == 5
    assert box.time_s == 110.0
    list(loader)
    assert box.time_s == 120.0


@pytest.mark.parametrize("known", [True, False])
def test_a_model_is_as_sure_as_the_pace_that_it_was_given(known):
    """Two pairs that are alike decide, but not where loading may be noise."""
    result = _verdict([(2.0, 1.0)] * 2, known=known)

    assert (result.verdict is Verdict.FASTER) is known
    assert (result.interval is None) is not known
    assert len(result.pairs) == 2


def test_a_model_has_both_orders_of_its_runs_however_late_it_is():
    """A budget that is spent ends real runs after one pair, and a model's after two."""
    loops = [SimpleNamespace(run=lambda _: 1.0)] * 2

    def count(*, modelled):
        return len(_pairs(loops, 4, 0.0, modelled=modelled, progress=lambda _: None))

    assert (count(modelled=True), count(modelled=False)) == (2, 1)
