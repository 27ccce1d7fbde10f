"""torch's own profiler, asked for CUDA while the simulator stands in for it."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import gpumagic


@pytest.fixture(autouse=True)
def x():
    """A tensor on a simulated GPU that answers to "cuda"."""
    with gpumagic.simulate("h100", as_cuda=True):
        yield torch.ones(64, 64, device="cuda")


ACTIVITIES = {
    "both": {"activities": [ProfilerActivity.CPU, ProfilerActivity.CUDA]},
    "all there are": {},
}


@pytest.mark.parametrize("activities", ACTIVITIES.values(), ids=ACTIVITIES)
def test_it_is_silent_and_lists_the_operations(activities, x, capfd):
    """Nothing fails at each operation: C++ has no traceback to write to stderr."""
    with profile(**activities) as found:
        for _ in range(20):
            x.sin()

    calls = {each.key: each.count for each in found.key_averages()}
    assert calls["aten::sin"] == 20
    assert found.key_averages().table(sort_by="cuda_time_total")
    assert "Exception" not in capfd.readouterr().err


def test_the_end_waits_for_the_device(x):
    """As on CUDA: what was launched under it is done."""
    with profile(**ACTIVITIES["both"]):
        x @ x

    assert torch.cuda.current_stream().query()
