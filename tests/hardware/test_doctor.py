"""`%gpu_doctor` on a real GPU: right, and without having started it."""

from __future__ import annotations

import pytest

from gpumagic.gpu_doctor import examine
from tests.hardware import machines
from tests.notebook.shells import see_in_kernel, see_in_terminal

CELLS = [
    "%load_ext gpumagic",
    "first = %gpu_doctor -o",
    "first.facts.cuda.state.name, len(first.facts.inventory.gpus)",
    "%%gpu_doctor\nimport torch\ntorch.zeros(1, device='cuda').device.type",
    "second = %gpu_doctor -o -q",
    "second.facts.cuda.state.name, second.facts.cuda.device_count",
    "torch.cuda.device_count()",
]


@pytest.mark.parametrize("see", [see_in_terminal, see_in_kernel])
def test_the_doctor_sees_the_gpu_and_what_started_it(see):
    """Ready before, nothing started by looking; then the cell that starts CUDA."""
    _, first, before, starting, _, after, count = see(CELLS)

    assert first.shown[0]["text/plain"].startswith("Ready: ")
    state, gpus = before.result.strip("()").split(", ")
    assert state in ("'NOT_LOADED'", "'UNTOUCHED'")
    assert int(gpus) >= 1
    assert starting.result == "'cuda'"
    assert starting.shown[0]["text/plain"].startswith("CUDA was started: ")
    assert after.result == f"('INITIALISED', {count.result})"


_FAILS = """
typed("import time, torch; x = torch.ones(4, device='cuda')")
before = typed("%gpu_doctor")
cell = "x[torch.tensor([9], device='cuda')]; time.sleep(0.2)"
show(before=before, cell=typed("%%gpu_doctor\\n" + cell), after=typed("%gpu_doctor"))
"""


def test_after_a_failed_kernel_the_doctor_says_so():
    """An index out of bounds breaks CUDA: that is the first line, not "Ready"."""
    found = machines.run(_FAILS)

    assert found["before"].startswith("Ready: ")
    assert "CUDA in this process went from started to broken" in found["cell"]
    first, *rest = found["after"].splitlines()
    assert first.startswith("CUDA in this process: broken: CUDA error: device-side")
    assert "restart the kernel" in "\n".join(rest)


def test_a_graph_that_is_captured_is_left_in_peace(torch):
    """The doctor asks no stream while a graph is captured: the graph works after it."""
    x, graph = torch.zeros(4, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x += 1
        report = examine()
        x += 1
    graph.replay()

    assert report.facts.failure is None
    assert x.tolist() == [2.0] * 4


_MACHINE = """
import torch

def started():
    torch.ones(2, device="cuda")
    said = [typed("%gpu_doctor")]
    os.environ["CUDA_VISIBLE_DEVICES"] = "1"
    return [*said, typed("%gpu_doctor")]

def hidden():
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    return typed("%gpu_doctor")

def lost():
    torch.ones(2, device="cuda")
    return forked(lambda: typed("%gpu_doctor"))

before = typed("%gpu_doctor")
cell = forked(
    lambda: typed("%%gpu_doctor\\nimport torch; torch.ones(2, device='cuda')")
)
show(before=before, cell=cell, started=forked(started), hidden=forked(hidden),
     lost=forked(lost), untouched=not torch.cuda.is_initialized())
"""


@pytest.mark.parametrize("count", [1, 4])
def test_the_doctor_knows_every_state_of_a_machine(count, tmp_path):
    """Before the start and after it, masked, masked too late, and lost in a fork."""
    found = machines.run(_MACHINE, machines.h100s(count, tmp_path))
    gpus = f"{count} GPU{'s' * (count > 1)} (NVIDIA H100 80GB HBM3)"
    first, late = found["started"]

    assert found["before"].startswith(f"Ready: {gpus}. CUDA has not started: you can")
    assert first.startswith(f"Ready: {gpus}. CUDA has started: the choice of GPUs is")
    assert "CUDA_VISIBLE_DEVICES came too late" in " ".join(late.split())
    assert found["cell"].startswith("CUDA was started: the choice of GPUs is fixed")
    assert found["hidden"].startswith(f"{gpus}, all hidden by CUDA_VISIBLE_DEVICES")
    assert found["lost"].startswith("CUDA in this process: lost: this process was")
    assert found["untouched"]
