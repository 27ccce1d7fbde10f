"""What each Runtime promises in figures: units, order, what is asked of whom."""

from __future__ import annotations

import pytest

from gpumagic.devices.accelerator import AcceleratorRuntime
from gpumagic.devices.cpu import CpuRuntime, HostEvent
from gpumagic.devices.cuda import CudaRuntime
from tests.devices.standin_torch import UNIT_S, Machine, torch_with


@pytest.fixture
def machine():
    """Two virtual devices, started and idle."""
    made = Machine()
    made.start("the test")
    return made


@pytest.fixture(params=["cuda", "xpu"])
def runtime(request, machine):
    """A runtime on them, of either kind that has events."""
    torch = torch_with(**{request.param: machine})
    if request.param == "cuda":
        return CudaRuntime(torch, lambda: True)
    return AcceleratorRuntime(torch, request.param)


def test_device_time_is_told_in_seconds(runtime, machine):
    """Torch's events tell milliseconds; between two of them a report has seconds."""
    start = runtime.record(None)
    machine.submit(5)
    end = runtime.record(None)

    assert runtime.elapsed_s(start, end) == pytest.approx(5 * UNIT_S)


def test_host_time_is_told_in_seconds():
    """Readings of the host's clock are nanoseconds; between two of them are seconds."""
    start, end = HostEvent(1_000_000_000), HostEvent(3_500_000_000)

    assert CpuRuntime().elapsed_s(start, end) == 2.5


def test_memory_is_told_free_first(runtime, machine):
    """Free bytes come before the total, as torch has them."""
    machine.submit(1)

    assert runtime.memory_bytes(0) == (60 << 30, 80 << 30)
