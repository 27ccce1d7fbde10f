"""Which runtime is opened, and what is said when there is none."""

from __future__ import annotations

import pytest

from gpumagic.devices import nvidia
from gpumagic.devices.accelerator import CudaRuntime
from gpumagic.devices.opening import open_runtime
from gpumagic.errors import DeviceError
from tests.devices.standin_torch import Machine, torch_with


@pytest.fixture(autouse=True)
def untouched_driver(monkeypatch):
    """These tests decide for themselves what the driver of this machine is like."""
    monkeypatch.setattr(nvidia, "driver_initialised", lambda: False)
    monkeypatch.setattr(nvidia, "_driver_installed", lambda torch: False)  # noqa: ARG005


def test_cuda_is_the_first_choice_and_is_not_started():
    """With GPUs that NVML counts, CUDA is taken without touching it."""
    machine = Machine()

    runtime = open_runtime(torch=torch_with(cuda=machine, xpu=Machine()))

    assert isinstance(runtime, CudaRuntime)
    assert machine.reached_driver == []


def test_an_accelerator_that_was_started_comes_first():
    """Whoever has started one means to use it."""
    machine = Machine()
    machine.start("the user")

    runtime = open_runtime(torch=torch_with(cuda=Machine(), xpu=machine))

    assert runtime.kind == "xpu"


def test_a_missing_device_has_a_reason_for_each_kind():
    """The error lists what was tried, and the hint what is there."""
    with pytest.raises(DeviceError) as caught:
        open_runtime("cuda", torch=torch_with(mps=Machine(devices=1)))

    assert caught.value.problem == (
        "no device 'cuda' to use here (cuda: this torch is built without CUDA; "
        "xpu: torch finds no such device; mps: there; "
        'sim: not switched on: gpumagic.simulate("h100") does that; cpu: there)'
    )
    assert caught.value.hint == "to use what is there, say mps, cpu"
