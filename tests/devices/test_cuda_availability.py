"""Whether CUDA can be used, told without starting it."""

from __future__ import annotations

import pytest

from gpumagic.devices import nvidia
from gpumagic.devices.nvidia import why_no_cuda
from tests.devices.standin_torch import Machine, torch_with


@pytest.fixture(autouse=True)
def untouched_driver(monkeypatch):
    """These tests decide for themselves what the driver of this machine is like."""
    monkeypatch.setattr(nvidia, "driver_initialised", lambda: False)
    monkeypatch.setattr(nvidia, "_driver_installed", lambda torch: False)  # noqa: ARG005


def test_where_nvml_cannot_count_an_installed_driver_decides(monkeypatch):
    """On MIG or Jetson nobody can count without starting: the driver is trusted."""
    machine = Machine()
    torch = torch_with(cuda=machine)
    torch.cuda._device_count_nvml = lambda: -1
    assert why_no_cuda(torch) == "no GPU driver is installed"

    monkeypatch.setattr(nvidia, "_driver_installed", lambda _: True)
    assert why_no_cuda(torch) is None

    torch.cuda._device_count_nvml = None  # a torch that has renamed it
    assert why_no_cuda(torch) is None
    assert machine.reached_driver == []


def test_once_cuda_is_initialised_its_own_count_decides(monkeypatch):
    """NVML sees a GPU that this CUDA cannot use, as with a driver too old for it."""
    monkeypatch.setattr(nvidia, "driver_initialised", lambda: True)
    torch = torch_with(cuda=Machine())
    torch._C._cuda_getDeviceCount = lambda: 0

    assert "sees no GPU" in why_no_cuda(torch)
