"""The CPU keeps the contract, for real, and knows only the host clock."""

# ruff: noqa: D102, D103 -- a fixture's name says what it gives

from __future__ import annotations

import time

import pytest

from gpumagic.devices import cpu
from gpumagic.devices.cpu import CpuRuntime, HostEvent
from gpumagic.errors import DeviceError
from tests.devices.contract import RuntimeContract


class BusyLoop:
    """Work for a CPU: done when submit() returns."""

    def submit(self, amount, stream=None):  # noqa: ARG002
        until = time.perf_counter() + amount * 1e-3
        while time.perf_counter() < until:
            pass

    def done(self):
        return True


@pytest.fixture
def runtime():
    return CpuRuntime()


@pytest.fixture
def unused():
    return CpuRuntime()


@pytest.fixture
def workload():
    return BusyLoop()


@pytest.fixture
def tensor():
    return pytest.importorskip("torch").zeros(8)


class TestContract(RuntimeContract):
    """The whole of it."""


def test_elapsed_time_is_the_host_clock(runtime, workload):
    """Two events span what the clock on the wall does."""
    start = runtime.record(None)
    workload.submit(5)

    assert runtime.elapsed_s(start, runtime.record(None)) >= 0.005


def test_it_has_neither_streams_nor_counters(runtime):
    """What a CPU has not is None, not zero and not an empty dict."""
    assert runtime.current_stream(0) is None
    assert runtime.memory_stats(0) is None
    assert runtime.memory_snapshot() is None
    assert runtime.memory_bytes(0) is None


def test_pinning_says_what_it_would_be_for(runtime):
    """The error explains that nothing here would fetch pinned memory."""
    with pytest.raises(DeviceError, match="page-locked for an accelerator"):
        runtime.pin(object())


def test_its_name_comes_from_the_system(runtime, tmp_path, monkeypatch):
    """On Linux it is the model name; where nothing is told, the name is unknown."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: A Fine CPU @ 2 GHz\n")
    monkeypatch.setattr(cpu, "_CPUINFO", cpuinfo)
    assert runtime.device_name(0) == "A Fine CPU @ 2 GHz"

    monkeypatch.setattr(cpu, "_CPUINFO", tmp_path / "absent")
    monkeypatch.setattr(cpu.platform, "processor", lambda: "")
    assert runtime.device_name(0) is None


def test_host_time_is_told_in_seconds():
    """Readings of the host's clock are nanoseconds; between two of them are seconds."""
    start, end = HostEvent(1_000_000_000), HostEvent(3_500_000_000)

    assert CpuRuntime().elapsed_s(start, end) == 2.5
