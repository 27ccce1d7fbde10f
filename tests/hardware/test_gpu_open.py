"""What a real GPU and today's torch write down is read as what it was."""

from __future__ import annotations

import gzip
import json

import pytest

from gpumagic import gpu_open
from tests.hardware import machines

_MIB = 1 << 20


@pytest.fixture(scope="module")
def trained(torch):
    """A small model with its optimizer, and a function that does one step."""
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)])
    model = model.to("cuda")
    optimizer = torch.optim.Adam(model.parameters())
    batch = torch.randn(256, 1024, device="cuda")

    def step():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    step()
    torch.cuda.synchronize()
    return step


@pytest.fixture(scope="module")
def trace(torch, trained, tmp_path_factory):
    """The file that torch's profiler writes of four steps."""
    from torch.profiler import ProfilerActivity, profile, schedule

    file = tmp_path_factory.mktemp("trace") / "trace.json.gz"
    kinds = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(
        activities=kinds,
        with_stack=True,
        # Without a schedule no step is marked.
        schedule=schedule(wait=0, warmup=0, active=4, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(file)),
    ) as profiler:
        for _ in range(4):
            trained()
            torch.cuda.synchronize()
            profiler.step()
    return file


def test_a_trace_is_read_as_a_plain_reader_adds_it_up(trace):
    """Kernels by name, their count and their time: as the file's own figures say."""
    (rank,) = gpu_open.read(trace).ranks
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    kernels = [each for each in events if each.get("cat") == "kernel"]

    assert sum(each.count for each in rank.kernels) == len(kernels)
    total_s = sum(each.total_s for each in rank.kernels)
    assert total_s == pytest.approx(sum(each["dur"] for each in kernels) / 1e6)
    assert 0 < rank.busy_s <= rank.length_s
    assert rank.file.missing is None
    assert rank.file.unknown == ()


def test_a_trace_knows_the_device_the_steps_and_their_parts(trace, torch):
    """What the first screen is made of is all in the file of today's torch."""
    (rank,) = gpu_open.read(trace).ranks
    idle = rank.idle

    assert rank.device_name == torch.cuda.get_device_name()
    assert len(rank.steps) >= 3
    assert {"forward", "backward", "optimizer"} <= {name for name, _ in rank.phases}
    assert rank.launches >= sum(each.count for each in rank.kernels) / 4
    assert idle.host_late_s + idle.other_stream_s + idle.unknown_s == pytest.approx(
        rank.idle_s
    )


def test_a_snapshot_is_read_and_served_again(torch, trained, tmp_path):
    """Peak and lines are the allocator's own."""
    file = tmp_path / "snapshot.pickle"
    torch.cuda.memory._record_memory_history(stacks="python")
    try:
        torch.cuda.reset_peak_memory_stats()
        kept = [torch.ones(_MIB, device="cuda") for _ in range(5)]
        trained()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.memory._dump_snapshot(str(file))
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)

    (device,) = gpu_open.read(file).devices

    assert device.fits_together
    assert device.has_stacks
    assert device.peak_bytes == pytest.approx(peak, abs=2 * _MIB)
    assert device.allocated_bytes >= len(kept) * 4 * _MIB
    (replay,) = gpu_open.read(file, replay=True).replays
    assert replay.replays[0].peak_reserved_bytes == device.peak_reserved_bytes


_PROFILED = """
import torch
from torch.profiler import ProfilerActivity, profile
CPU, CUDA = ProfilerActivity.CPU, ProfilerActivity.CUDA
x, y = torch.ones(8, device="cuda"), torch.ones(8)

def opened(activities, code):
    with profile(activities=activities) as recorded:
        exec(code)
    recorded.export_chrome_trace(path)
    return typed(f"%gpu_open {path}")
"""


def test_a_cycle_without_gpu_work_is_not_taken_for_one_of_the_host(tmp_path):
    """The GPU was listened to, as a call of CUDA's tells: it had nothing to do."""
    code = f"""{_PROFILED}
path = {str(tmp_path / "trace.json")!r}
show(empty=opened([CPU, CUDA], "y + 1"), works=opened([CPU, CUDA], "x + 1"))
"""
    found = machines.run(code)

    assert "the GPU was given nothing to do meanwhile" in found["empty"]
    assert "only the host was recorded" not in found["empty"]
    assert "no GPU work" not in found["works"]


def test_a_gpu_that_is_only_named_may_not_have_been_recorded(tmp_path):
    """A file may name the GPU of the machine also where the host alone was recorded."""
    code = f"""{_PROFILED}
path = {str(tmp_path / "trace.json")!r}
show(host=opened([CPU], "x + 1"))
"""
    found = machines.run(code)

    assert "no GPU work is in this trace" in found["host"]
    assert "activities=[CPU, CUDA]" in found["host"]
