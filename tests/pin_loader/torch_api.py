"""Whole investigations on simulated GPUs, and what they leave as it was."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import gpumagic
from gpumagic.pin_loader import diagnose, improve, stages
from gpumagic.pin_loader.random_state import kept
from gpumagic.pin_loader.records import Loading, Samples, State


def images(count=256):
    """A loader of batches of 3 MiB."""
    dataset = TensorDataset(torch.rand(count, 3, 64, 64), torch.arange(count))
    return DataLoader(dataset, 64)


@pytest.mark.usefixtures("box", "unhurried")
def test_memory_of_the_device_is_given_back():
    """What was taken for batches, loops and buffers goes back when all has ended."""
    mine = torch.zeros(1 << 20, device="sim")
    before = torch.sim.memory_reserved(), torch.sim.memory_allocated()

    made = improve(images(), name="dl", budget_s=30.0, force=True)

    assert made.report.end_to_end is not None
    assert (torch.sim.memory_reserved(), torch.sim.memory_allocated()) == before
    assert mine.device.type == "sim"


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


def small_images(*, pin_memory):
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
        small_images(pin_memory=pin_memory), device="sim:1", budget_s=1.0, force=True
    )

    assert pinned_under == {1}
    assert torch.sim.current_device() == 0
    assert made.loader.device == torch.device("sim:1")


def test_a_mere_look_makes_no_device_current_that_has_not_started(pinned_under):
    """Making a device current would start it."""
    diagnose(small_images(pin_memory=True), device="sim:1", budget_s=0.5)

    assert not torch.sim.is_initialized()
    assert pinned_under == set()


def drawn(device=0):
    """What a device draws next."""
    return torch.rand(3, device=f"sim:{device}").tolist()


def test_numbers_of_a_device_go_on_as_without_the_block(box):
    """What is drawn on it within the block is drawn again afterwards."""
    torch.ones(1, device="sim")

    with kept():
        expected = drawn()

    assert drawn() == expected


def test_a_device_that_is_first_used_within_begins_anew(box):
    """It has drawn nothing before, so that its seed is all there is to put back."""
    with kept():
        expected = drawn()

    assert drawn() == expected


@pytest.mark.usefixtures("box", "unhurried")
@pytest.mark.parametrize(("rounds", "state"), [(4, State.FASTER), (1, State.SAME)])
def test_workers_that_start_slowly_are_faster_all_the_same(monkeypatch, rounds, state):
    """Both loops are open when they are timed; one round says nothing of either."""

    def measured(loader, **_):
        count = loader.num_workers
        between = Samples((0.036 / count,) * rounds)
        return Loading(between, count, start_s=0.5, share_s=0.06 * (count > 1))

    monkeypatch.setattr(stages.loading, "measure_loading", measured)
    dataset = TensorDataset(torch.rand(128, 8))
    loader = DataLoader(dataset, 8, num_workers=1, multiprocessing_context="fork")

    report = improve(loader, name="dl", workers=4, budget_s=4.0).report

    assert report.state is state
    assert 1 / report.end_to_end.result.ratio == pytest.approx(4, rel=0.1)
    assert ("too few to tell" in report.headline) is (state is State.SAME)
