"""What an investigation leaves behind on the device, and how it keeps to its time."""

from __future__ import annotations

import time

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import gpumagic
from gpumagic.errors import DeviceError
from gpumagic.pin_loader import DevicePrefetcher, improve
from gpumagic.pin_loader.report import State

torch.set_num_threads(1)


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


def test_the_loader_is_begun_on_the_device_of_the_prefetcher():
    """A pinning thread takes the device that is current when an iteration begins."""
    begun_on = []

    class Noting:
        """Writes down where it was begun."""

        def __iter__(self):
            begun_on.append(torch.sim.current_device())
            return iter([torch.ones(2)] * 3)

    with gpumagic.simulate("2xh100"):
        torch.zeros(1, device="sim")

        there = [each.device.index for each in DevicePrefetcher(Noting(), "sim:1")]

        assert begun_on == [1]
        assert there == [1, 1, 1]
        assert torch.sim.current_device() == 0


class Slow(torch.utils.data.Dataset):
    """Takes its time for each row."""

    def __len__(self):
        return 8

    def __getitem__(self, row):
        time.sleep(0.05)
        return torch.full((4,), float(row))


@pytest.mark.usefixtures("box")
def test_long_after_its_time_no_loops_are_run():
    """Where each part has taken too long, the last and longest is left out, and why."""
    made = improve(DataLoader(Slow(), 2), name="dl", budget_s=0.05, force=True)

    report = made.report
    assert (report.state, report.end_to_end) == (State.UNPROVEN, None)
    assert report.sameness.same
    (told,) = (each for each in report.remarks if "was to take" in each.text)
    assert "50.0 ms" in told.text


@pytest.mark.usefixtures("box")
def test_nothing_is_said_of_time_that_was_kept():
    """A budget that was enough is no matter for a remark."""
    report = improve(images(128), name="dl", budget_s=600.0).report

    assert not any("was to take" in each.text for each in report.remarks)


@pytest.mark.usefixtures("unhurried")
def test_a_gpu_that_stands_in_for_cuda_is_called_cuda():
    """Report, old loop and new loader say cuda:0, as the code of the user does."""
    with gpumagic.simulate("h100", as_cuda=True):
        made = improve(images(), name="dl", device="cuda:0", budget_s=2.0, force=True)

        told = str(made.report.drawing().text())
        assert "cuda:0" in told
        assert "sim" not in told.replace("simulated", "").replace("torch on sim", "")
        assert made.report.end_to_end.base.endswith("step(batch.to('cuda:0'))")
        assert {str(each.device) for each, _ in made.loader} == {"cuda:0"}
        with pytest.raises(DeviceError, match="there is no cuda:3: there is cuda:0"):
            improve(images(), name="dl", device="cuda:3")
