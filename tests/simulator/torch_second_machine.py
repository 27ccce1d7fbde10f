"""One machine after another in one process."""

from __future__ import annotations

import pytest
import torch

import gpumagic


def test_a_second_machine_replaces_the_first(monkeypatch):
    """simulate() while one is on switches that off; one off() ends it all."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    first = gpumagic.simulate("2xh100")
    torch.ones(1, device="sim")
    assert torch.sim.Event().device.index == 0
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")

    with gpumagic.simulate("t4") as second:
        assert (first.is_on, second.is_on) == (False, True)
        assert torch.accelerator.device_count() == 1
        assert "T4" in torch.sim.get_device_name()

    assert not torch.accelerator.is_available()


@pytest.mark.parametrize("blocking", ["0", "1"])
def test_where_launches_block_the_host_waits_for_each_kernel(monkeypatch, blocking):
    """`CUDA_LAUNCH_BLOCKING=1` leaves nothing to wait for."""
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", blocking)
    with gpumagic.simulate("h100") as box:
        x = torch.ones(2048, 2048, device="sim")
        x @ x  # which loads the library
        torch.sim.synchronize()
        before = box.time_s
        for _ in range(3):
            x @ x
        launched_s = box.time_s - before
        torch.sim.synchronize()
        waited_s = box.time_s - before - launched_s

    assert (launched_s > waited_s) == (blocking == "1")
