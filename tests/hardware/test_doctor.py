"""`%gpu_doctor` on a real GPU: right, and without having started it."""

from __future__ import annotations

import pytest

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
