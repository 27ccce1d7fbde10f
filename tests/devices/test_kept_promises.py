"""What each Runtime promises in figures: units, order, what is asked of whom."""

from __future__ import annotations

import gc
import os
from types import SimpleNamespace

import pytest

from gpumagic.devices import memory_counters, nvml_utilisation
from gpumagic.devices.accelerator import AcceleratorRuntime, CudaRuntime
from gpumagic.devices.cpu import CpuRuntime, HostEvent
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


def test_no_cache_of_cuda_is_no_matter_of_other_devices(monkeypatch):
    """A variable for CUDA's allocator does not take the counters of XPU away."""
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")

    assert memory_counters.caching_is_off("cuda")
    assert not memory_counters.caching_is_off("xpu")


@pytest.mark.parametrize(("is_child", "closings"), [(False, 2), (True, 1)])
def test_a_forked_child_does_not_close_what_its_parent_has_opened(
    monkeypatch, is_child, closings
):
    """NVML counts who has opened it: each opening is closed once, by who made it."""
    # Given a reader that keeps NVML open
    calls = []
    nvml = SimpleNamespace(
        nvmlInit=lambda: calls.append("open"),
        nvmlShutdown=lambda: calls.append("close"),
    )
    monkeypatch.setattr(nvml_utilisation, "load_pynvml", lambda: nvml)
    reader = nvml_utilisation.LoadReader()
    reader.read(())
    assert calls == ["open", "open", "close"]

    # When it goes, here or in a child
    pid = os.getpid() + is_child
    monkeypatch.setattr(os, "getpid", lambda: pid)
    del reader
    gc.collect()

    # Then
    assert calls.count("close") == closings
