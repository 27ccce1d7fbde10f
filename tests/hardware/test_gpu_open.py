"""What a real GPU and today's torch write down is read as what it was."""

from __future__ import annotations

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


def test_a_trace_knows_the_device_the_steps_and_their_parts(trace, torch):
    """What the first screen is made of is all in the file of today's torch."""
    (rank,) = gpu_open.read(trace).ranks
    idle = rank.idle

    assert rank.file.missing == ""
    assert rank.file.unknown == ()
    assert 0 < rank.busy_s <= rank.length_s
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


def test_the_kernels_of_a_graph_belong_to_its_launch(torch, tmp_path):
    """A replay has one launch and as many kernels as were captured."""
    file, kinds = tmp_path / "graph.json", torch.profiler.ProfilerActivity
    x, graph = torch.ones(64, 64, device="cuda"), torch.cuda.CUDAGraph()
    x @ x
    with torch.cuda.graph(graph):
        (x @ x).relu()
    with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) as profiler:
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
    profiler.export_chrome_trace(str(file))

    (rank,) = gpu_open.read(file).ranks

    assert rank.file.missing == ""
    assert rank.kernels
    assert all(each.count % 3 == 0 for each in rank.kernels)


@pytest.mark.parametrize("stacks", ["python", "all"])
def test_a_history_has_lines_of_python_and_what_was_asked_for(shell, tmp_path, stacks):
    """With frames of C++ as well, which torch records unless it is told not to."""
    file = tmp_path / "history.pickle"
    done = shell.run_cell(
        f"torch.cuda.memory._record_memory_history(stacks='{stacks}')\n"
        "kept = [torch.ones(1 << 20, device='cuda') for _ in range(4)]\n"
        "try:\n"
        "    torch.empty(1 << 42, dtype=torch.uint8, device='cuda')\n"
        "except torch.OutOfMemoryError:\n"
        "    pass\n"
        f"torch.cuda.memory._dump_snapshot({str(file)!r})\n"
        "torch.cuda.memory._record_memory_history(enabled=None)",
        store_history=True,
    )
    assert done.success

    report = gpu_open.read(file)

    (device,) = report.devices
    lines = {each.line.where: each for each in device.lines if each.line is not None}
    (kept,) = (each for each in lines.values() if each.taken == 4 and each.now_bytes)
    assert kept.now_bytes == 16 * _MIB
    assert [each for each in lines if not each.startswith("In [")] == []
    assert "4.00 TiB asked for" in " ".join(str(report).split())


_PROFILED = """
import torch
from torch.profiler import ProfilerActivity, profile
CPU, CUDA = ProfilerActivity.CPU, ProfilerActivity.CUDA
x, y = torch.ones(8, device="cuda"), torch.ones(8)

def opened(activities, code):
    with profile(activities=activities) as recorded:
        exec(code)
    recorded.export_chrome_trace({path!r})
    return typed("%gpu_open {path}")

show(empty=opened([CPU, CUDA], "y + 1"), works=opened([CPU, CUDA], "x + 1"),
     host=opened([CPU], "x + 1"))
"""


def test_a_trace_without_gpu_work_says_what_may_have_been(tmp_path):
    """The GPU had nothing to do; or only its launches were recorded, by the host."""
    found = machines.run(_PROFILED.format(path=str(tmp_path / "trace.json")))

    assert "no GPU work" not in found["works"]
    assert found["empty"].startswith("no GPU work is in this trace")
    assert "the GPU was given nothing to do meanwhile" in found["empty"]
    assert found["host"].startswith("no GPU work is in this trace")
    assert "was CUDA among the activities?" in found["host"]
