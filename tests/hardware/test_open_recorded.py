"""What today's torch records on CUDA is opened in a real shell as what it was."""

from __future__ import annotations

import pytest

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _trained(shell, tmp_path, monkeypatch):
    """A shell in an empty folder, with a model that has been trained for a step."""
    monkeypatch.chdir(tmp_path)
    done = shell.run_cell(
        "from torch.profiler import profile, schedule, ProfilerActivity as A\n"
        "model = torch.nn.Linear(512, 512).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "batch = torch.ones(64, 512, device='cuda')\n"
        "def step():\n"
        "    optimizer.zero_grad()\n"
        "    model(batch).square().mean().backward()\n"
        "    optimizer.step()\n"
        "step(); torch.cuda.synchronize()\n",
        store_history=True,
    )
    assert done.success


@pytest.fixture
def opened(shell):
    """Runs a cell that writes a file, and opens that."""

    def opened(code, line):
        assert shell.run_cell(code, store_history=True).success
        return shell.run_line_magic("gpu_open", f"-o -q {line}")

    return opened


def text(report):
    """All that it says, in one line."""
    return " ".join(str(report).split())


# ------------------------------------------------------------------------- traces


def test_a_graphs_kernels_belong_to_its_launch(opened):
    """A replay has one launch and as many kernels as were captured."""
    report = opened(
        "graph = torch.cuda.CUDAGraph()\n"
        "with torch.cuda.graph(graph):\n"
        "    out = model(batch).relu()\n"
        "with profile(activities=[A.CPU, A.CUDA]) as p:\n"
        "    for _ in range(3):\n"
        "        graph.replay()\n"
        "    torch.cuda.synchronize()\n"
        "p.export_chrome_trace('graph.json')",
        "graph.json",
    )

    (rank,) = report.ranks
    assert all(each.count % 3 == 0 for each in rank.kernels)
    assert rank.file.missing is None


# ---------------------------------------------------------------------- snapshots

TRAINED = (
    "torch.cuda.memory._record_memory_history({how})\n"
    "kept = [torch.ones(1 << 20, device='cuda') for _ in range(4)]\n"
    "step(); torch.cuda.synchronize()\n"
    "torch.cuda.memory._dump_snapshot('{file}')\n"
    "torch.cuda.memory._record_memory_history(enabled=None)"
)


@pytest.mark.parametrize("stacks", ["python", "all"])
def test_every_line_of_a_history_is_one_of_python(opened, stacks):
    """With frames of C++ as well, which torch records unless it is told not to."""
    report = opened(
        TRAINED.format(how=f"stacks='{stacks}'", file="a.pickle"), "a.pickle"
    )

    (device,) = report.devices
    lines = {each.line.where: each for each in device.lines if each.line is not None}
    (kept,) = (each for each in lines.values() if each.taken == 4 and each.now_bytes)
    assert kept.now_bytes == 16 * MIB
    assert [each for each in lines if not each.startswith(("In [", "the back"))] == []


def test_two_snapshots_are_held_against_each_other(shell, opened):
    """What grew between them is told by its line."""
    shell.run_cell(TRAINED.format(how="stacks='python'", file="a.pickle"))

    report = opened(
        TRAINED.format(how="stacks='python'", file="b.pickle")
        .replace("kept", "more")
        .replace("range(4)", "range(6)"),
        "a.pickle b.pickle",
    )

    assert "+24.0 MiB" in text(report)


def test_a_failure_is_told_with_what_was_asked_for(opened):
    """The history knows the request that failed, and what was free."""
    report = opened(
        "torch.cuda.memory._record_memory_history(stacks='python')\n"
        "try:\n"
        "    torch.empty(1 << 42, dtype=torch.uint8, device='cuda')\n"
        "except torch.OutOfMemoryError:\n"
        "    pass\n"
        "torch.cuda.memory._dump_snapshot('oom.pickle')\n"
        "torch.cuda.memory._record_memory_history(enabled=None)",
        "oom.pickle",
    )

    assert "4.00 TiB asked for" in text(report)


def test_a_history_is_served_again_with_other_settings(opened):
    """Expandable segments are tried on what was recorded."""
    report = opened(
        TRAINED.format(how="stacks='python'", file="a.pickle"),
        "a.pickle --replay expandable_segments:True",
    )

    recorded, other = report.replays[0].replays
    assert recorded.peak_reserved_bytes > 0
    assert other.setting == "expandable_segments:True"
    assert other.failed_event is None
