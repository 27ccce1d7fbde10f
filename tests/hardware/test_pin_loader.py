"""What the loader magic measures and promises, on a real GPU."""

from __future__ import annotations

import multiprocessing
import os
import time

import pytest

from gpumagic.devices.opening import open_runtime
from gpumagic.pin_loader import bound as bounds
from gpumagic.pin_loader import improve
from gpumagic.pin_loader.feed import StandIn, measure_feed, measure_step
from gpumagic.pin_loader.load import measure_loading
from gpumagic.pin_loader.prefetcher import DevicePrefetcher
from gpumagic.pin_loader.prove import end_to_end
from gpumagic.pin_loader.records import Remedy, State
from gpumagic.report.robust import Verdict

MIB = 1 << 20
ROWS = 64


class Ready:
    """A dataset of rows that are there already, or that take a while to come."""

    def __init__(self, torch, row_bytes, *, count=64 * ROWS, sleep_s=0.0):
        self.rows = torch.ones(8, row_bytes // 4)
        self.count, self.sleep_s = count, sleep_s

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if self.sleep_s:
            time.sleep(self.sleep_s)
        return self.rows[index % 8]

    def __getitems__(self, indices):
        return [self[index] for index in indices]


def loader(torch, dataset, **options):
    """Batches of 64 rows."""
    return torch.utils.data.DataLoader(dataset, batch_size=ROWS, **options)


def require_shared_memory(nbytes):
    """Workers of both loops put their batches there; a full one kills them."""
    found = os.statvfs("/dev/shm")  # noqa: S108 -- it is only asked how full it is
    if found.f_bavail * found.f_frsize < nbytes:
        pytest.skip(f"less than {nbytes >> 30} GiB of shared memory are left")


def products(milliseconds):
    """A step that keeps the GPU busy for about so long."""
    return StandIn(open_runtime("cuda"), 0, milliseconds / 1e3)


def proof(torch, runtime, dataset, step, *, workers=4):
    """The bound, and both loops."""
    old = loader(torch, dataset, num_workers=workers)
    new = loader(torch, dataset, num_workers=workers, pin_memory=True)
    load = measure_loading(loader(torch, dataset, num_workers=workers), budget_s=2.0)
    batch = next(iter(loader(torch, dataset)))
    found = measure_feed(batch, runtime, 0, load=load, step=step, budget_s=3.0)
    bound = bounds.bound_of(found, pinned=False, workers=workers)
    result = end_to_end(
        old,
        DevicePrefetcher(new, "cuda:0"),
        runtime,
        device=0,
        step=step,
        about_s=bound.now_s,
        budget_s=15.0,
    )
    return bound, result


def most_of(bound):
    """How many times as fast pinning and copying ahead can make a step."""
    return bound.times(Remedy.PREFETCH)


# ---------------------------------------------------------------------- rates


def test_measuring_gives_its_memory_back(torch, runtime):
    """The device holds no more, and pinned memory that was cached for it is gone."""
    kept_tensor = torch.ones(1, device="cuda")
    square = torch.ones(256, 256, device="cuda")
    square @ square  # cuBLAS takes its workspace, which stays
    before = torch.cuda.memory_reserved()

    measure_feed(torch.ones(64 * MIB // 4), runtime, 0, budget_s=1.0)

    assert torch.cuda.memory_reserved() <= before
    assert kept_tensor.item() == 1
    counters = getattr(torch.cuda, "host_memory_stats", dict)()
    if "allocated_bytes.current" in counters:
        assert counters["allocated_bytes.current"] < 64 * MIB


def test_what_stands_in_takes_as_long_as_asked_for(runtime, spin):
    """A stand-in of 5 ms takes 5 ms, within a fifth."""
    spin(200)  # an idle GPU has a slower clock, by which it would be made
    runtime.synchronize()

    found = measure_step(products(5.0), None, runtime, budget_s=2.0)

    assert found.samples.median_s == pytest.approx(0.005, rel=0.2)


# ----------------------------------------------------------------- end to end


@pytest.mark.times
def test_a_loop_bound_by_its_link_gains(torch, runtime):
    """64 MiB a batch, ready at once in 8 workers; never more than was said."""
    require_shared_memory(4 << 30)
    dataset = Ready(torch, MIB)

    bound, result = proof(torch, runtime, dataset, products(8.0), workers=8)

    assert result.result.verdict is not Verdict.SLOWER
    assert 0.9 / most_of(bound) <= result.result.ratio < 1.0


@pytest.mark.times
def test_a_loop_bound_by_loading_stays_as_slow(torch, runtime):
    """A loader that sleeps 20 ms for a batch is as slow with pinning as without."""
    dataset = Ready(torch, 16 << 10, sleep_s=0.02 / ROWS)

    bound, result = proof(torch, runtime, dataset, products(1.0), workers=1)

    assert result.result.ratio == pytest.approx(1.0, abs=0.1)
    assert bound.binding.name == "LOAD"


@pytest.mark.times
def test_the_loop_as_added_up_is_the_loop_as_run(torch, runtime):
    """Formula and stopwatch agree within a quarter for the blocking loop."""
    require_shared_memory(4 << 30)
    dataset = Ready(torch, MIB)

    bound, result = proof(torch, runtime, dataset, products(20.0), workers=8)

    seconds = [old for old, _ in result.result.pairs]
    assert bound.now_s == pytest.approx(sorted(seconds)[len(seconds) // 2], rel=0.25)


# ----------------------------------------------------------------- all of it


@pytest.mark.times
@pytest.mark.usefixtures("runtime")
def test_a_loader_is_improved_from_beginning_to_end(torch):
    """Diagnosis, proof and verdict with workers; no process, no memory is left."""
    dataset = Ready(torch, 128 << 10)
    plain = loader(torch, dataset, num_workers=2, shuffle=True)
    state = torch.get_rng_state()
    square = torch.ones(256, 256, device="cuda")
    square @ square
    reserved = torch.cuda.memory_reserved()

    feeding, report = improve(plain, name="plain", budget_s=20.0, force=True)

    assert report.sameness.same
    assert report.end_to_end.result.verdict is not Verdict.SLOWER
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.cuda.memory_reserved() <= reserved
    assert not multiprocessing.active_children()
    assert next(iter(feeding)).device.type == "cuda"


@pytest.mark.usefixtures("runtime")
def test_a_step_that_takes_all_leaves_nothing_to_win(torch):
    """A compute-bound loop is let alone, with the figure that says why."""
    dataset = Ready(torch, 4 << 10)

    feeding, report = improve(
        loader(torch, dataset, num_workers=2), step=products(50.0), budget_s=15.0
    )

    assert feeding is None
    assert report.state is State.NOTHING
    assert report.bound.binding.name == "STEP"
