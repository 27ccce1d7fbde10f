"""Looking at device tensors does nothing on the device, and warps read as drawn.

The second is a claim about time: lanes that walk a dim in steps fetch more sectors
for the same elements. How much more is predicted by `%tensor_info`, and measured here
with an operation that reads four bytes an element and writes one.
"""

from __future__ import annotations

import statistics

import pytest

from gpumagic.tensor_info import aliases, compare, describe, explain_view

_ELEMENTS = 1 << 24  # 64 MiB at step 1: more than any cache that helps
_STEPS = (1, 2, 4, 8, 32)
_ROUNDS = 20


def test_looking_runs_nothing_and_allocates_nothing(torch):
    """The allocator's counters stay, and a profiler sees no kernel and no copy."""
    x = torch.arange(4096.0, device="cuda").reshape(64, 64).t()
    torch.cuda.synchronize()
    before, version = torch.cuda.memory_stats(), x._version

    activities = [
        torch.profiler.ProfilerActivity.CPU,
        torch.profiler.ProfilerActivity.CUDA,
    ]
    with torch.profiler.profile(activities=activities) as trace:
        report = describe(x)
        compare(x, x[:, ::2])
        explain_view(x, (4096,))
        aliases({"x": x, "y": x.t()})

    on_device = [
        each.name
        for each in trace.events()
        if each.device_type != torch.autograd.DeviceType.CPU
    ]
    assert on_device == []
    assert torch.cuda.memory_stats() == before
    assert x._version == version
    assert report.on_accelerator
    assert report.address == x.data_ptr()


@pytest.mark.times
def test_lanes_that_step_wide_are_slower_as_predicted(torch, record_measurement):
    """Eight times the sectors take a multiple of the time; the ratios are kept."""
    flags = torch.empty(_ELEMENTS, dtype=torch.bool, device="cuda")
    figures = {}
    for step in _STEPS:
        x = torch.zeros(_ELEMENTS * step, device="cuda")[::step]
        (read,) = describe(x).warp_along_dim
        times = []
        for _ in range(_ROUNDS + 3):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            torch.signbit(x, out=flags)
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        figures[step] = {
            "sectors": read.sectors,
            "efficiency": read.efficiency,
            "median_ms": statistics.median(times[3:]),
        }
        del x
    first = figures[1]
    for each in figures.values():
        each["predicted_ratio"] = each["sectors"] / first["sectors"]
        each["measured_ratio"] = each["median_ms"] / first["median_ms"]
    record_measurement("tensor_info_warp", {"by_step": figures})

    ratios = [figures[step]["measured_ratio"] for step in _STEPS]
    assert ratios[3] > 2  # a step of 8 fetches eight times the sectors
    assert ratios[:4] == sorted(ratios[:4])
