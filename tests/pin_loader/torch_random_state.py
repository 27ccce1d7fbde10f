"""Random numbers of a device that is in use, and of one that is not yet."""

from __future__ import annotations

import pytest
import torch

import gpumagic
from gpumagic.pin_loader.random_state import kept


def drawn(device=0):
    """What a device draws next."""
    return torch.rand(3, device=f"sim:{device}").tolist()


def test_numbers_of_a_device_go_on_as_without_the_block(box):
    """What is drawn on it within the block is drawn again afterwards."""
    torch.ones(1, device="sim")

    with kept() as state:
        expected = drawn()

    assert "torch on sim" in state.names
    assert drawn() == expected


def test_all_devices_are_put_back():
    """Each has its own numbers; the current device stays the current one."""
    with gpumagic.simulate("2xh100"):
        torch.ones(1, device="sim:1")
        torch.ones(1, device="sim:0")

        with kept():
            expected = drawn(0), drawn(1)
            torch.sim.manual_seed_all(5)

        assert (drawn(0), drawn(1)) == expected
        assert torch.sim.current_device() == 0


def test_a_device_that_is_first_used_within_begins_anew(box):
    """It has drawn nothing before, so that its seed is all there is to put back."""
    with kept():
        expected = drawn()

    assert drawn() == expected


def test_noting_starts_no_device(box):
    """A device that nobody has used is not used by looking."""
    if torch.sim.is_initialized():
        pytest.skip("another test has started it")

    with kept():
        pass

    assert not torch.sim.is_initialized()
