"""What a cell did to the memory of a real GPU: what a stand-in can only assert."""

from __future__ import annotations

import gc

import pytest

from gpumagic.devices.opening import open_runtime
from gpumagic.gpu_mem.cell import CellRun
from gpumagic.gpu_mem.counters import read, setting_of
from gpumagic.gpu_mem.records import PeakKind
from tests.hardware import machines

_MIB = 1 << 20


@pytest.fixture(scope="module")
def runtime(torch):
    """CUDA, started and idle, with cuBLAS's workspace in its place and no holes."""
    weight = torch.ones(64, 64, device="cuda", requires_grad=True)
    (weight @ weight).sum().backward()
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    return open_runtime("cuda", torch=torch)


@pytest.fixture
def run(runtime):
    """Runs a function as a cell, and hands the run back."""

    def run(function, **options):
        run = CellRun(lambda: runtime, in_cell=lambda file: file == __file__, **options)
        run.begin()
        function()
        run.end()
        return run

    return run


def by_offset(run, function):
    """The rows of a run by the line of the function."""
    start = function.__code__.co_firstlineno
    return {row.number - start: row for row in run.lines() if row.number}


def state(torch):
    """What the user could see change."""
    stats = torch.cuda.memory_stats()
    return (
        torch.cuda.current_device(),
        torch.cuda.current_stream(),
        torch.cuda.get_rng_state().tolist(),
        torch._C._cuda_isHistoryEnabled(),
        {key: value for key, value in stats.items() if "inactive" not in key},
    )


def test_the_counters_are_torchs_own(runtime, torch):
    """Every figure agrees with the words that torch has for it."""
    kept = torch.ones(3 * _MIB, dtype=torch.uint8, device="cuda")

    counters = read(runtime, 0)

    assert counters.allocated_bytes == torch.cuda.memory_allocated()
    assert counters.reserved_bytes == torch.cuda.memory_reserved()
    assert counters.peak_bytes == torch.cuda.max_memory_allocated()
    stats = torch.cuda.memory_stats()
    assert counters.taken == stats["allocation.all.allocated"]
    assert counters.driver_calls == (
        stats["num_device_alloc"] + stats["num_device_free"]
    )
    assert None not in vars(counters).values()
    assert setting_of(runtime).kind == "cuda"
    del kept


def test_looking_changes_nothing(run, torch):
    """Device, stream, random numbers, peaks, sums and history are as before."""
    before = state(torch)

    for options in ({}, {"lines": True}):
        run(lambda: None, **options)

    assert state(torch) == before


def test_a_new_record_is_exact(run, torch):
    """A cell that needs more than ever has the peak of a run that was reset for it."""
    torch.cuda.reset_peak_memory_stats()
    start = torch.cuda.memory_allocated()

    def cell():
        big = torch.empty(64 * _MIB, dtype=torch.uint8, device="cuda")
        del big
        torch.empty(8 * _MIB, dtype=torch.uint8, device="cuda")

    (change,) = run(cell).changes()

    assert change.peak.kind is PeakKind.EXACT
    assert (
        change.peak.low_bytes == start + 64 * _MIB == torch.cuda.max_memory_allocated()
    )
    assert change.allocated_delta == 0
    assert change.gross_bytes == 72 * _MIB


def test_bounds_and_replay_contain_the_true_peak(run, torch):
    """Without a record the bounds hold, and a replay is within the rounding."""
    high = torch.empty(512 * _MIB, dtype=torch.uint8, device="cuda")
    del high

    def cell():
        kept = [
            torch.empty(1000 * n + 1, dtype=torch.uint8, device="cuda")
            for n in range(1, 200)
        ]
        torch.empty(32 * _MIB, dtype=torch.uint8, device="cuda")
        del kept[::2]

    bound = run(cell).changes()[0].peak
    replayed = run(cell, lines=True).changes()[0].peak
    torch.cuda.reset_peak_memory_stats()
    cell()
    true = torch.cuda.max_memory_allocated()

    assert bound.kind is PeakKind.BOUND
    assert bound.low_bytes <= true <= bound.high_bytes
    assert replayed.kind is PeakKind.REPLAYED
    assert 0 <= true - replayed.low_bytes <= 512 * 200 + 2 * _MIB


def test_backward_is_of_the_line_that_called_it(run, torch):
    """Nearly all that the engine's threads take is found to be of `backward()`."""
    model = torch.nn.Sequential(
        *(torch.nn.Linear(1024, 1024, device="cuda") for _ in range(8))
    )
    x = torch.ones(256, 1024, device="cuda")

    def cell():
        loss = model(x).relu().sum()
        loss.backward()

    result = run(cell, lines=True)

    lines = by_offset(result, cell)
    unknown = [row for row in result.lines() if not row.place]
    gradients = sum(p.grad.nbytes for p in model.parameters())
    assert lines[2].backward
    assert not lines[1].backward
    assert lines[2].allocated_bytes >= gradients
    assert unknown == []


_STARTS = """
import torch
from gpumagic.devices.opening import runtime_now
from gpumagic.gpu_mem.cell import CellRun

run = CellRun(runtime_now, lines=True)
run.begin()
before = torch.cuda.is_initialized()
x = torch.ones(1 << 20, device="cuda")
run.end()
(change,) = run.changes()
show(before=before, moved=[change.allocated_delta, change.peak.low_bytes],
     lines=run.lines(), remarks=str(run.remarks))
"""


def test_a_cell_that_starts_cuda():
    """Looking does not start it; the cell's own start counts from zero."""
    found = machines.run(_STARTS)

    assert not found["before"]
    assert found["moved"] == [4 * _MIB, 4 * _MIB]
    assert found["lines"] == []
    assert "no GPU was in use as the cell began" in found["remarks"]
