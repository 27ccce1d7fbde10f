"""Old and new loop in turn on the simulated GPU: what pinning and prefetching gain."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from gpumagic.devices.opening import open_runtime
from gpumagic.errors import GpuMagicError
from gpumagic.pin_loader.bound import Way, bound_of, costs_of, step_s
from gpumagic.pin_loader.loops import Loop, end_to_end
from gpumagic.pin_loader.prefetcher import DevicePrefetcher
from gpumagic.pin_loader.report import CopyMode, Loading, Rates, Samples, Step
from gpumagic.report.robust import Verdict

torch.set_num_threads(1)

MS = 1e-3
ROWS, WIDTH = 8, 1 << 17  # a batch of 4 MiB: 0.69 ms pageable, 0.075 ms pinned


@pytest.fixture(autouse=True)
def clock(unhurried):
    """As many pairs are run as a machine has time for that has nothing else to do."""
    return unhurried


@pytest.fixture
def runtime(box):
    """The simulated GPU."""
    return open_runtime("sim")


def loader(*, pin_memory=False, count=64, **options):
    """Batches of 4 MiB."""
    dataset = TensorDataset(torch.zeros(count, 1).expand(count, WIDTH))
    return DataLoader(dataset, batch_size=ROWS, pin_memory=pin_memory, **options)


def same(seconds):
    """The same again and again."""
    return Samples((seconds,) * 3)


def rates(*, load, step, workers=1, pin=0.1):
    """What would have been measured, in milliseconds."""
    return Rates(
        load=Loading(same(load * MS), workers),
        pin_copy=same(pin * MS),
        copies=(
            CopyMode(False, True, same(0.69 * MS), same(0.69 * MS)),
            CopyMode(True, True, same(0.08 * MS), same(0.08 * MS)),
            CopyMode(True, False, same(0.01 * MS), same(0.075 * MS)),
        ),
        step=Step("stand-in", same(step * MS), synthetic=True),
    )


class WithWorkers:
    """A loader that says it has workers, and has none: a test needs no processes."""

    def __init__(self, inner, workers):
        self.inner, self.num_workers, self.prefetch_factor = inner, workers, 2
        self.pin_memory = inner.pin_memory

    def __iter__(self):
        return iter(self.inner)

    def __len__(self):
        return len(self.inner)


def compared(runtime, found, *, workers=1, **options):
    """Both loops over the same data, with so many workers."""
    old = WithWorkers(loader(), workers)
    new = DevicePrefetcher(WithWorkers(loader(pin_memory=True), workers), "sim:0")
    return end_to_end(old, new, runtime, device=0, rates=found, **options)


def test_a_loop_bound_by_its_link_gets_faster(runtime):
    """0.69 ms of copying before 0.6 ms of compute become 0.6 ms in all, hidden."""
    result = compared(runtime, rates(load=0.1, step=0.6), name="dl", out="fast")

    (before, after) = result.result.pairs[0]
    assert before == pytest.approx(1.29 * MS, rel=0.05)
    assert after == pytest.approx(0.6 * MS, rel=0.05)
    assert result.result.verdict is Verdict.FASTER
    assert len(result.result.pairs) == 6
    assert result.overlap[0] == 0
    assert result.overlap[1] > 0.9
    assert result.pageable_share == (1.0, 0.0)
    assert result.base == "for batch in dl: step(batch.to('sim:0'))"
    assert result.newer == "for batch in fast: step(batch)"


def test_the_estimate_agrees_with_the_trace(runtime):
    """Nothing is hidden in the old loop and all in the new one, by the times alone."""
    result = compared(runtime, rates(load=0.1, step=0.6), trace=False)

    before, after = result.estimated_overlap
    assert result.overlap == (None, None)
    assert before == pytest.approx(0.0, abs=0.1)
    assert after == pytest.approx(1.0, abs=0.2)


def test_a_loop_bound_by_compute_gains_nothing_worth_having(runtime):
    """Beside 100 ms of compute half a millisecond of copying makes no difference."""
    result = compared(runtime, rates(load=0.1, step=100.0), batches=6)

    assert result.result.verdict in (Verdict.SAME, Verdict.CANNOT_TELL)
    assert result.result.ratio == pytest.approx(1.0, abs=0.01)


def test_a_loop_bound_by_loading_is_as_slow_as_its_loader(runtime):
    """With workers that give a batch in 5 ms, both loops take 5 ms a step."""
    result = compared(runtime, rates(load=5.0, step=0.6))

    for seconds in result.result.pairs[0]:
        assert seconds == pytest.approx(5 * MS, rel=0.02)
    assert result.modelled


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize(("load", "step"), [(0.3, 2.0), (2.0, 0.3), (1.0, 1.0)])
def test_the_loops_keep_to_the_bound(runtime, workers, load, step):
    """What was run is what the formulas say, and no run is shorter than the best."""
    found = rates(load=load, step=step, workers=workers)
    costs = costs_of(found, workers=workers, pinned=False)

    result = compared(runtime, found, workers=workers, trace=False)

    before, after = result.result.pairs[0]
    best_s = bound_of(found, pinned=False, workers=workers).best_s
    assert before == pytest.approx(step_s(costs, Way.BLOCKING), rel=0.08)
    assert after == pytest.approx(step_s(costs, Way.AHEAD), rel=0.08)
    assert after >= best_s * 0.99


def test_the_step_of_the_user_runs_in_both_loops(runtime, box):
    """Each batch comes to it on the device; nothing stands in for it then."""
    seen = []

    def train(batch):
        seen.append(batch[0].device.type)
        box.pass_time(1 * MS)

    result = compared(runtime, rates(load=0.1, step=9.0), step=train, batches=4)

    assert set(seen) == {"sim"}
    assert result.batches == 4
    assert result.result.pairs[0][1] == pytest.approx(1 * MS, rel=0.1)


def test_too_short_a_budget_cannot_tell(box):
    """One pair is run in any case; it is no verdict, and the report says so."""
    runtime = open_runtime("cpu")
    plain = loader()

    result = end_to_end(
        plain,
        DevicePrefetcher(loader(), "cpu", depth=0),
        runtime,
        device=None,
        rates=Rates(),
        batches=2,
        budget_s=0.0,
    )

    assert len(result.result.pairs) == 1
    assert result.result.verdict is Verdict.CANNOT_TELL
    assert "1 of the 6 pairs" in result.remarks[0].text
    assert not result.modelled


def test_an_empty_loader_is_told(runtime):
    """It gives no batches, so there is nothing to compare."""
    empty = loader(count=0, sampler=[])

    with pytest.raises(GpuMagicError, match="gives no batches"):
        end_to_end(
            empty,
            DevicePrefetcher(empty, "sim:0"),
            runtime,
            device=0,
            rates=rates(load=1, step=1),
        )


def test_the_order_of_runs_is_a_b_b_a():
    """Both loops come first as often, and each run has the same steps."""
    order = []
    cpu = open_runtime("cpu")

    class Noted(list):
        """Batches that write down who asks for them."""

        def __init__(self, name):
            super().__init__([torch.zeros(1)] * 1000)
            self.name = name

    class Prefetched(Noted):
        """The new one."""

        loader = None

    def use(name):
        return lambda _: order.append(name) if order[-1:] != [name] else None

    from gpumagic.pin_loader import loops as module

    loops = module._Pair(
        Loop(Noted("A"), use("A"), cpu), Loop(Prefetched("B"), use("B"), cpu)
    )
    module._pairs(loops, 4, 60.0, shared=False, progress=None)

    # To warm up A B, then twenty pairs: A B, B A, A B, ...; equal neighbours are one.
    assert order[:4] == ["A", "B", "A", "B"]
    assert len(order) == 23


@pytest.mark.parametrize(
    ("rounds", "budget_s", "steps"),
    [
        ((3, 4), 0.001, 36),  # three rounds of both at least
        ((3, 4), 60.0, 36),
        ((3, 1), 0.001, 9),
        ((1, 3), 60.0, 21),  # twenty are wanted
        ((1, 1), 60.0, 20),
    ],
)
def test_runs_are_of_whole_rounds_of_the_workers_of_both(rounds, budget_s, steps):
    """Workers hand over in bursts, so that half a round would be taken for speed."""
    from gpumagic.pin_loader import loops as module

    old, new = (SimpleNamespace(round=each, is_modelled=False) for each in rounds)

    found = module._affordable(rates(load=1, step=1), module._Pair(old, new), budget_s)

    assert found == steps


def test_a_model_of_large_batches_keeps_to_its_time(monkeypatch):
    """What is worked out takes no time, but the bytes that are really moved do."""
    from gpumagic.pin_loader import loops as module

    now = [0.0]
    monkeypatch.setattr(module, "perf_counter", lambda: now[0])

    class Modelled:
        """A loop that really takes so long."""

        is_modelled = True

        def __init__(self, took_s):
            self.took_s = took_s

        def run(self, _):
            now[0] += self.took_s
            return 1.0

    quick = module._Pair(Modelled(0.01), Modelled(0.01))
    slow = module._Pair(Modelled(1.0), Modelled(1.0))

    assert len(module._pairs(quick, 4, 1.0, shared=False, progress=None)) == 6
    assert len(module._pairs(slow, 4, 1.0, shared=False, progress=None)) == 2


def test_a_run_begins_with_batches_that_do_not_count():
    """What was prepared ahead goes first; a new epoch begins before the clock does."""
    cpu = open_runtime("cpu")
    taken = []

    class Counted:
        """Ten batches an epoch."""

        def __len__(self):
            return 10

        def __iter__(self):
            taken.append("epoch")
            for number in range(10):
                taken.append(number)
                yield number

    loop = Loop(Counted(), lambda _: None, cpu)
    marks = []
    for _ in range(2):
        loop.run(
            4,
            begin=lambda: marks.append(len(taken)),
            end=lambda: marks.append(len(taken)),
        )

    assert loop.ahead == 3
    assert taken == ["epoch", 0, 1, 2, 3, 4, 5, 6, "epoch", 0, 1, 2, 3, 4, 5, 6]
    assert marks == [4, 8, 12, 16]
