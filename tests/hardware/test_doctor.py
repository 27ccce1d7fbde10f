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


@pytest.fixture(scope="module")
def failed():
    """What is said before, of and after a cell whose kernel fails."""
    return machines.run("""
typed("import time, torch; x = torch.ones(4, device='cuda')")
before = typed("%gpu_doctor")
cell = "x[torch.tensor([9], device='cuda')]; time.sleep(0.2)"
cell = typed("%%gpu_doctor\\n" + cell)
again = [typed("%gpu_doctor") for _ in range(2)]
show(before=before, cell=cell, again=again)
""")


def test_after_a_failed_kernel_the_doctor_says_so(failed):
    """An index out of bounds breaks CUDA: that is the first line, not "Ready"."""
    assert failed["before"].startswith("Ready: ")
    for said in failed["again"]:
        first, *rest = said.splitlines()
        assert first.startswith("CUDA in this process: broken: CUDA error: device-side")
        assert "restart the kernel" in "\n".join(rest)


def test_the_cell_whose_kernel_fails_is_told_to_have_broken_cuda(failed):
    """What it changed is the state of CUDA: from started to broken."""
    assert "CUDA in this process went from started to broken" in failed["cell"]


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
