"""Trials for another device than the current one pin under that one only."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import gpumagic
from gpumagic.errors import DeviceError
from gpumagic.pin_loader import diagnose, improve, pin

torch.set_num_threads(1)


@pytest.fixture
def pinned_under(monkeypatch):
    """Two simulated GPUs; the devices that were current when something was pinned."""
    found = set()
    real = torch.Tensor.pin_memory

    def noting(tensor, *args):
        found.add(torch.sim.current_device())
        return real(tensor, *args)

    monkeypatch.setattr(torch.Tensor, "pin_memory", noting)
    with gpumagic.simulate("2xh100"):
        yield found


def images(*, pin_memory):
    """A loader of a few small batches."""
    return DataLoader(
        TensorDataset(torch.rand(128, 3, 16, 16)), 16, pin_memory=pin_memory
    )


@pytest.mark.parametrize("pin_memory", [True, False])
@pytest.mark.parametrize("started", [True, False])
def test_improving_pins_under_the_device_that_is_asked_for(
    pinned_under, pin_memory, started
):
    """The current device is another one, started or not, and is so again at the end."""
    if started:
        torch.zeros(1, device="sim:0")

    made = improve(
        images(pin_memory=pin_memory), device="sim:1", budget_s=1.0, force=True
    )

    assert pinned_under == {1}
    assert torch.sim.current_device() == 0
    assert made.loader.device == torch.device("sim:1")


def test_pinning_without_measuring_does_so_as_well(pinned_under):
    """`pin` compares batches under the device that it feeds."""
    pin(images(pin_memory=True), device="sim:1")

    assert pinned_under == {1}
    assert torch.sim.current_device() == 0


def test_a_mere_look_makes_no_device_current_that_has_not_started(pinned_under):
    """Making a device current would start it."""
    diagnose(images(pin_memory=True), device="sim:1", budget_s=0.5)

    assert not torch.sim.is_initialized()
    assert pinned_under == set()


@pytest.mark.parametrize("pin_memory", [True, False])
@pytest.mark.usefixtures("pinned_under")
def test_a_device_that_is_not_there_is_an_error_in_two_lines(pin_memory):
    """How many there are is known only when they are started."""
    with pytest.raises(DeviceError, match="sim:7"):
        improve(images(pin_memory=pin_memory), device="sim:7", budget_s=0.5)


def test_a_look_after_the_start_pins_under_the_device_that_is_asked_for(pinned_under):
    """Once devices are in use, copies are measured, and so is pinning."""
    torch.zeros(1, device="sim:0")

    diagnose(images(pin_memory=True), device="sim:1", budget_s=0.5)

    assert pinned_under == {1}
    assert torch.sim.current_device() == 0
