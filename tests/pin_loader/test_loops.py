"""Both loops in turn: how many steps, in which order; and how they are worked out."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpumagic.pin_loader.bound import Costs
from gpumagic.pin_loader.loops import _affordable, _pairs, worked_out
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
    loop = SimpleNamespace(round=workers, ahead=3)

    assert _affordable([loop, loop], 0.010, budget_s + 1e-6) == steps


def test_the_order_of_runs_is_a_b_b_a():
    """What drifts is shared out among both; without time there is one pair."""
    ran = []

    def loop(name):
        return SimpleNamespace(run=lambda steps: ran.append(name) or steps)

    loops = [loop("A"), loop("B")]
    pairs = _pairs(loops, 4, 1000.0, lambda _: None)

    assert "".join(ran[2:10]) == "ABBAABBA"
    assert set(pairs) == {(4, 4)}
    assert len(_pairs(loops, 4, 0.0, lambda _: None)) == 1


def test_a_verdict_is_worth_twice_the_time(monkeypatch):
    """Six pairs are taken where they fit into that, and else none beyond the time."""
    now_s = [0.0]
    monkeypatch.setattr("gpumagic.pin_loader.loops.perf_counter", lambda: now_s[0])

    def run(_):
        now_s[0] += 1

    loops = [SimpleNamespace(run=run)] * 2
    assert len(_pairs(loops, 4, 7.0, lambda _: None)) == 6
    assert len(_pairs(loops, 4, 4.0, lambda _: None)) == 4


@pytest.mark.parametrize("known", [True, False])
def test_what_is_worked_out_is_as_sure_as_its_parts(known):
    """The formulas of a step decide, but not where loading may be noise."""
    old = Costs(load_s=3.0, link_s=1.0, blocking_s=2.0, step_s=4.0, workers=2)

    found = worked_out(old, old, known=known)

    assert set(found.result.pairs) == {(6.0, 4.0)}
    assert (found.result.verdict is Verdict.FASTER) is known
    assert (found.result.interval is None) is not known
