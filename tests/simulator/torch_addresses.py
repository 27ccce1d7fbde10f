"""Programs are told simulated addresses, and torch itself goes on with its own."""

from __future__ import annotations

import pytest
import torch

import gpumagic


@pytest.fixture(params=["sim", "cuda"])
def device(request):
    """The name of the device, on a machine with two H100."""
    with gpumagic.simulate("2xh100", as_cuda=request.param == "cuda"):
        yield request.param


def blocks_in_use(device):
    """The addresses of the blocks that have an owner."""
    return {
        block["address"]
        for segment in getattr(torch, device).memory_snapshot()
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }


def test_addresses_are_those_of_the_snapshot(device):
    """Each tensor begins where the snapshot has a block, at a multiple of 512."""
    tensors = [torch.ones(n, device=f"{device}:{n % 2}") for n in (1, 200, 5000, 8)]

    addresses = [each.data_ptr() for each in tensors]

    assert set(addresses) == blocks_in_use(device)
    assert len(set(addresses)) == len(tensors)
    assert all(each % 512 == 0 for each in addresses)
