"""Models and values on a device: a look starts nothing there, and a reading little."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gpumagic
from gpumagic.tensor_info import aliases, compare, describe, overview

MIB = 1 << 20


@pytest.fixture(params=["sim", "cuda"])
def device(request):
    """The name of the device, on a machine with two H100."""
    with gpumagic.simulate("2xh100", as_cuda=request.param == "cuda"):
        yield request.param


def test_a_model_on_two_devices_is_told_where_each_part_lies(device):
    """What lies elsewhere than the most is named, with the line that mends it."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8)).to(f"{device}:0")
    model[1].to(f"{device}:1")

    report = overview(model)

    assert report.simulated
    assert report.root.devices == (f"{device}:0", f"{device}:1")
    assert report.odd[0].names == ("[1].weight", "[1].bias")
    assert f"model.to('{device}:0')" in str(report)


def test_looking_allocates_nothing_and_sees_where_tensors_lie(device):
    """The allocator's counters and the use counts stay; addresses are made up."""
    model, words = nn.Linear(64, 64).to(device), getattr(torch, device)
    x = torch.zeros(4, 6, device=device)
    view, storage = x[1:], x.untyped_storage()
    before = words.memory_stats(), torch._C._storage_Use_Count(storage._cdata)

    overview(model)
    found, (pair,) = describe(view), compare(x, view).pairs
    (group,) = aliases({"x": x, "view": view}).groups

    after = words.memory_stats(), torch._C._storage_Use_Count(storage._cdata)
    assert after == before
    assert (found.on_accelerator, found.simulated) == (True, True)
    assert found.address == storage._gpumagic.life.block.address + 24
    assert (pair.storage, pair.relation) == ("same", "contains")
    assert len(group.names) == 2
    assert "waited for it" in str(describe(x, values=True).show("how"))


def test_reading_values_copies_no_large_tensor(device):
    """A tensor of 64 MiB, of which no piece is a view, costs a few pieces more."""
    x = torch.ones(4096, 4096, device=device).t()
    x[5, 7] = float("nan")
    words = getattr(torch, device)
    words.reset_peak_memory_stats()
    before = words.memory_allocated()

    found = describe(x, values=True).values

    assert (found.nan_count, found.first_nan, found.mean) == (1, (5, 7), 1.0)
    assert words.max_memory_allocated() - before < 40 * MIB
    assert words.memory_allocated() == before


def test_values_of_a_model_are_counted_where_they_lie(device):
    """An infinity in a buffer on the device is found, and named."""
    model = nn.BatchNorm1d(4).to(device)
    model.running_mean[2] = float("inf")

    report = overview(model, values=True)

    assert report.root.inf_count == 1
    assert report.odd[0].names == (".running_mean",)


def test_a_device_tensor_is_drawn_as_on_the_cpu_unless_values_are_asked_for(device):
    """First each index with its place; then a NaN, with the place of the first."""
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "gpumagic")
    x = torch.arange(24.0, device=device).reshape(4, 6)
    x[1, 2] = float("nan")
    shell.user_ns["x"] = x

    placed = str(shell.run_line_magic("tensor_info", "-o -q x"))
    read = str(shell.run_line_magic("tensor_info", "-o -q --values x"))

    assert "Each index with its place in memory" in placed
    assert read.startswith("x: 1 NaN in 24 values, the first at [1, 2]")
    assert "\nThe values" in read
