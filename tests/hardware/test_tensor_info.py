"""`%tensor_info` says of a tensor on the GPU what it says of its twin on the CPU."""

from __future__ import annotations

import statistics

import pytest

from gpumagic.tensor_info import aliases, compare, describe, explain_view
from tests.hardware import machines
from tests.tensor_info import geometries

# What differs by right: where it lies, and what follows from that.
_OF_THE_DEVICE = {"device", "on_accelerator", "simulated", "address", "warp_along_dim"}
_DTYPES = ("float32", "float64", "float16", "bfloat16", "complex64", "complex128")
_DTYPES += ("bool", "uint8", "int8", "int16", "int32", "int64", "float8_e4m3fn")


def told(report):
    """All figures of a report but those of its device."""
    figures = report.to_dict()
    return {name: figures[name] for name in figures if name not in _OF_THE_DEVICE}


@pytest.fixture
def twins(torch):
    """A storage of bytes on either device, the same in both."""
    chance = torch.Generator().manual_seed(7)
    host = torch.randint(256, (1 << 16,), dtype=torch.uint8, generator=chance)
    return host, host.to("cuda")


def strided(storage, geometry):
    """A view of a storage, with the geometry's strides, as int8 to int64."""
    import torch

    dtype = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    whole = storage.view(dtype[geometry.itemsize])
    return whole.as_strided(geometry.size, geometry.stride, geometry.offset)


def test_views_of_any_strides_are_described_as_on_the_cpu(twins):
    """Two hundred random geometries: as the twin's, but where it lies."""
    for number, geometry in enumerate(geometries.some(200, 34)):
        here, there = (strided(each, geometry) for each in twins)

        assert told(describe(there)) == told(describe(here)), geometry
        if number < 30 and here.numel():
            mine, its = (describe(each, values=True).values for each in (here, there))
            assert its.to_dict() == mine.to_dict(), geometry
        assert describe(there).on_accelerator
        if there.numel():
            assert describe(there).address == there.data_ptr()
        flat = explain_view(there, (-1,)) if there.numel() else None
        assert flat is None or flat.view == (describe(here).view_flat is True)


@pytest.mark.parametrize("dtype", _DTYPES)
def test_values_of_every_dtype_are_those_of_the_cpu(torch, dtype):
    """Numbers, zeros, NaN and infinities of either sign, and where the first lies."""
    numbers = [[0.0, 1.0, 5.0], [3.0, 0.0, 1.0]]
    kind = getattr(torch, dtype)
    if kind.is_floating_point and "float8" not in dtype:
        numbers[1] = [float("nan"), float("-inf"), 2.0]
    here = torch.tensor(numbers).to(kind)
    found = [describe(each, values=True) for each in (here, here.to("cuda"))]

    mine, its = (each.values.to_dict() for each in found)
    assert its == mine
    assert found[1].remarks == ()


def test_a_nan_in_a_large_tensor_is_found_where_it_lies(torch):
    """Sixteen million values are read on the device; no copy of them is made."""
    x = torch.zeros(4096, 4096, device="cuda").t()
    x[5, 7] = float("nan")
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()

    found = describe(x, values=True).values

    assert (found.nan_count, found.first_nan, found.zero_count) == (
        1,
        (5, 7),
        2**24 - 1,
    )
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() - before < 40 << 20


_SEVERAL = """
import torch
from gpumagic.tensor_info import overview
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
for number in range(4):
    model[number].to(f"cuda:{number}")
other = torch.ones(8, device="cuda:3")
shell.user_ns.update(model=model, x=model[1].weight, other=other)
show(
    devices=overview(model).root.devices,
    model=typed("%tensor_info model"),
    pair=typed("%tensor_info x, x.t(), other"),
    alias=typed("%tensor_info --alias"),
    values=typed("%tensor_info --values x"),
    contexts=[torch._C._cuda_hasPrimaryContext(number) for number in range(5)],
    current=torch.cuda.current_device(),
)
"""


def test_a_model_on_four_gpus_is_told_where_each_part_lies(tmp_path):
    """Parts by device; looking makes no context elsewhere and changes no device."""
    found = machines.run(_SEVERAL, machines.h100s(5, tmp_path))

    assert found["devices"] == [f"cuda:{number}" for number in range(4)]
    assert "tensors lie on cuda:0, cuda:1" in " ".join(found["model"].split())
    assert "1 of 3 pairs of x, x.t() and other share elements" in found["pair"]
    assert "x" in found["alias"]
    assert found["values"].startswith("x: 4,096 values, no NaN, no inf")
    assert found["contexts"] == [True] * 4 + [False]
    assert found["current"] == 0


_BROKEN = """
typed("import time, torch; x = torch.ones(4, 6, device='cuda')")
typed("x[torch.tensor([9], device='cuda')]; time.sleep(0.2)")
lines = ("x", "x.t(), x", "--alias", "--view 24 x", "--gpu x", "--values x", "x + 1")
show(**{line: typed(f"%tensor_info {line}") for line in lines})
"""


def test_after_a_failed_kernel_a_tensor_is_still_described():
    """Looking needs no device; what would read the values says why it cannot."""
    found = machines.run(_BROKEN)

    assert found["x"].startswith("x: 4 x 6 float32 on cuda:0, a contiguous ")
    assert "Each index with its place in memory" in found["x"]
    assert "share elements" in found["x.t(), x"]
    assert found["--view 24 x"].startswith("x.view(24) works")
    assert "of what a warp fetches" in found["--gpu x"]
    assert "device-side assert triggered" in found["--values x"]
    assert "Traceback" not in found["--values x"]


def test_looking_runs_nothing_and_allocates_nothing(torch):
    """The allocator's counters stay, and a profiler sees no kernel and no copy."""
    x = torch.arange(4096.0, device="cuda").reshape(64, 64).t()
    torch.cuda.synchronize()
    before, version = torch.cuda.memory_stats(), x._version

    kinds = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) as trace:
        describe(x)
        compare(x, x[:, ::2])
        explain_view(x, (4096,))
        (group,) = aliases({"x": x, "y": x.t(), "z": 1}).groups

    kinds_of_devices = {each.device_type for each in trace.events()}
    assert kinds_of_devices <= {torch.autograd.DeviceType.CPU}
    assert torch.cuda.memory_stats() == before
    assert x._version == version
    assert [each.name for each in group.names] == ["x", "y"]


@pytest.mark.times
def test_lanes_that_step_wide_are_slower_as_predicted(torch):
    """Lanes that step by 8 fetch eight times the sectors: a multiple of the time."""
    count = 1 << 24  # 64 MiB at step 1: more than any cache that helps
    flags = torch.empty(count, dtype=torch.bool, device="cuda")
    sectors, times_ms = [], []
    for step in (1, 2, 4, 8):
        x = torch.zeros(count * step, device="cuda")[::step]
        (read,) = describe(x).warp_along_dim
        sectors.append(read.sectors)
        took = []
        for _ in range(23):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            torch.signbit(x, out=flags)
            end.record()
            end.synchronize()
            took.append(start.elapsed_time(end))
        times_ms.append(statistics.median(took[3:]))
        del x

    assert sectors == [each * sectors[0] for each in (1, 2, 4, 8)]
    assert times_ms == sorted(times_ms)
    assert times_ms[-1] > 2 * times_ms[0]
