"""One program on several GPUs: values, gradients, times and memory of each."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

import gpumagic


@pytest.fixture(params=["sim", "cuda"])
def device(request):
    """The name of the device, on a machine with two H100."""
    with gpumagic.simulate("2xh100", as_cuda=request.param == "cuda"):
        yield request.param


@pytest.fixture(scope="module")
def machine():
    """Two H100 that stand in for CUDA."""
    return {"machine": "2xh100", "as_cuda": True}


def network():
    """A small model with parameters, a buffer and a branch for a keyword."""
    torch.manual_seed(0)
    layers = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)
    return nn.Sequential(*layers).double()


def test_replicas_give_the_numbers_of_the_parts(device):
    """Outputs, gradients and buffers are those of each part of the batch by itself."""
    plain, batch = network(), torch.randn(10, 6).double()
    model = nn.DataParallel(copy.deepcopy(plain).to(device))
    second = copy.deepcopy(plain)  # a replica's buffers are its own
    expected = torch.cat([plain(batch[:5]), second(batch[5:])])

    output = model(batch)
    output.square().mean().backward()
    expected.square().mean().backward()

    assert output.device.index == 0
    assert torch.allclose(output.cpu(), expected)
    pairs = zip(plain.parameters(), second.parameters(), strict=True)
    for own, (one, other) in zip(model.module.parameters(), pairs, strict=True):
        assert own.grad.device == own.device
        assert torch.allclose(own.grad.cpu(), one.grad + other.grad)
    for ours, theirs in zip(model.module.buffers(), plain.buffers(), strict=True):
        assert torch.allclose(ours.cpu(), theirs)


def test_a_group_of_one_reduces_on_its_gpu(device, tmp_path):
    """`init_process_group("nccl")` works under either name, without a launcher."""
    dist.init_process_group(
        "nccl",
        init_method=f"file://{tmp_path / 'alone'}",
        rank=0,
        world_size=1,
        device_id=torch.device(device, 0),
    )
    try:
        x = torch.ones(3, device=device)
        dist.all_reduce(x)
        dist.barrier()
        with pytest.raises(RuntimeError, match="device type cpu"):
            dist.all_reduce(torch.ones(1))
        assert (x.tolist(), dist.get_backend()) == ([1.0] * 3, "nccl")
        assert dist.is_nccl_available()
    finally:
        dist.destroy_process_group()
