"""How much copying a loop hides, estimated from its times."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.pin_loader.bound import Costs, Way, step_s
from gpumagic.pin_loader.loops import _affordable, _Pair, estimated
from gpumagic.pin_loader.report import Rates
from tests.pin_loader import samples

times = st.floats(1e-4, 1.0)


@given(times, times, times, st.integers(0, 4))
@settings(max_examples=100, deadline=None)
def test_a_blocking_loop_is_estimated_to_hide_nothing(
    load_s, copy_s, compute_s, workers
):
    """A copy that blocks on the stream of compute overlaps nothing by construction."""
    costs = Costs(load_s=load_s, blocking_s=copy_s, step_s=compute_s, workers=workers)
    whole_s = step_s(costs, Way.BLOCKING)
    # With workers the loop waits for what is left of the load after copy and compute.
    wait_s = load_s if workers == 0 else max(load_s - copy_s, 0.0)

    share = estimated(wait_s, copy_s, compute_s, whole_s)

    assert share == pytest.approx(0.0, abs=1e-9)


@given(times, times, times)
@settings(max_examples=100, deadline=None)
def test_copying_ahead_is_estimated_to_hide_the_shorter_one(load_s, copy_s, compute_s):
    """Copy and compute on streams of their own overlap as far as that is possible."""
    costs = Costs(load_s=load_s, link_s=copy_s, step_s=compute_s, workers=2)
    whole_s = step_s(costs, Way.AHEAD)
    wait_s = load_s if load_s >= max(copy_s, compute_s) else 0.0

    share = estimated(wait_s, copy_s, compute_s, whole_s)

    assert share == pytest.approx(1.0, abs=1e-9)


def test_the_estimate_stays_a_share():
    """Noise does not lead below nothing or above all; without a copy there is none."""
    assert estimated(0.0, 1.0, 1.0, 5.0) == 0.0
    assert estimated(9.0, 1.0, 1.0, 1.0) == 1.0
    assert estimated(0.0, 0.0, 1.0, 1.0) is None


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
    rates = Rates(load=samples.loading(0.010))
    loop = SimpleNamespace(is_modelled=False, round=workers)

    assert _affordable(rates, _Pair(loop, loop), budget_s + 1e-6) == steps
