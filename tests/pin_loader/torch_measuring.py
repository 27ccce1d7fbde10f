"""A simulated GPU's rates, and both loops in turn."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from gpumagic.devices.opening import open_runtime
from gpumagic.pin_loader.bound import Costs, Way, step_s
from gpumagic.pin_loader.feed import StandIn, measure_feed
from gpumagic.pin_loader.loops import Pace, end_to_end
from gpumagic.pin_loader.prefetcher import DevicePrefetcher
from gpumagic.pin_loader.records import Loading, Samples

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


class WithWorkers:
    """A loader that says it has workers, and has none: a test needs no processes."""

    def __init__(self, inner, workers):
        self.inner, self.num_workers, self.prefetch_factor = inner, workers, 2
        self.pin_memory = inner.pin_memory

    def __iter__(self):
        return iter(self.inner)

    def __len__(self):
        return len(self.inner)


def compared(runtime, *, load, step, workers=1, function=None, **options):
    """Both loops over the same data, with so many workers; times in milliseconds."""
    costs = Costs(load * MS, 0.1 * MS, 0.075 * MS, 0.69 * MS, step * MS, workers)
    old = WithWorkers(loader(), workers)
    new = DevicePrefetcher(WithWorkers(loader(pin_memory=True), workers), "sim:0")
    found = end_to_end(
        old,
        new,
        runtime,
        device=0,
        step=function or StandIn(runtime, 0, step * MS),
        pace=Pace(costs, costs),
        **{"budget_s": 1000.0, **options},
    )
    return found, costs


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize(("load", "step"), [(0.3, 2.0), (2.0, 0.3), (1.0, 1.0)])
def test_the_loops_keep_to_the_formulas(runtime, workers, load, step):
    """What was run is what the model of a step says."""
    found, costs = compared(runtime, load=load, step=step, workers=workers)

    before, after = found.result.pairs[0]
    assert before == pytest.approx(step_s(costs, Way.BLOCKING), rel=0.08)
    assert after == pytest.approx(step_s(costs, Way.AHEAD), rel=0.08)
    assert found.modelled


def test_the_step_of_the_user_runs_in_both_loops(runtime, box):
    """Each batch comes to it on the device; nothing stands in for it then."""
    seen = []

    def train(batch):
        seen.append(batch[0].device.type)
        box.pass_time(1 * MS)

    found, _ = compared(runtime, load=0.1, step=9.0, function=train)

    assert set(seen) == {"sim"}
    assert found.result.pairs[0][1] == pytest.approx(1 * MS, rel=0.1)


# ----------------------------------------------------------------- what is measured


def test_each_part_is_measured_as_the_model_has_it(runtime):
    """Three ways to copy, and a stand-in as long as the slowest part."""
    batch = next(iter(loader()))
    known = Loading(Samples((2 * MS,) * 3), 0)

    found = measure_feed(batch, runtime, 0, load=known, budget_s=1.0)

    pageable = found.copy(pinned=False, blocking=True)
    pinned = found.copy(pinned=True, blocking=False)
    assert len(found.copies) == 3
    assert pageable.host.median_s > 5 * pinned.device.median_s
    assert pinned.host.median_s < pinned.device.median_s
    assert found.step.synthetic
    assert found.step.samples.median_s == pytest.approx(2 * MS, rel=0.05)


def test_nothing_is_left_behind(runtime):
    """Random numbers go on, and memory of the device is given back."""
    small, mine = torch.zeros(1, device="sim"), torch.zeros(1 << 20, device="sim")
    batch = next(iter(loader()))
    state = torch.get_rng_state()
    before = torch.sim.memory_reserved()

    measure_feed(batch, runtime, 0, budget_s=1.0)

    assert torch.sim.memory_reserved() == before
    assert torch.equal(torch.get_rng_state(), state)
    assert mine.sum() + small == 0
