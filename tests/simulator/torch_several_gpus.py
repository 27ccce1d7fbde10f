"""One program on several GPUs: values, gradients, times and memory of each."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.cuda import comm

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


def on_each(device, value=1.0, size=3):
    """A tensor on each GPU, the second with one more."""
    return [
        torch.full((size,), value + index, device=f"{device}:{index}")
        for index in range(2)
    ]


def network():
    """A small model with parameters, a buffer and a branch for a keyword."""
    torch.manual_seed(0)
    layers = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)
    return nn.Sequential(*layers).double()


# ------------------------------------------------------------------- DataParallel


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


# ------------------------------------------------------------------- torch.cuda.comm


def test_tensors_are_spread_and_collected(device):
    """Broadcast, scatter, gather and the sums have the values and devices of CUDA."""
    whole = torch.arange(12.0, device=device).view(6, 2)

    here, there = comm.broadcast(whole, [0, 1])
    parts = comm.scatter(whole, [0, 1], chunk_sizes=[2, 4])
    columns = comm.scatter(whole.cpu(), [1, 0], dim=1)
    ones = on_each(device)

    assert here is whole
    assert (there.device.index, there.tolist()) == (1, whole.tolist())
    assert [each.device.index for each in parts] == [0, 1]
    assert [each.tolist() for each in parts] == [whole.tolist()[:2], whole.tolist()[2:]]
    assert [each.device.index for each in columns] == [1, 0]
    assert columns[0].tolist() == whole[:, :1].tolist()
    assert comm.gather(parts, destination=1).tolist() == whole.tolist()
    assert comm.gather(parts, destination=1).device.index == 1
    assert comm.gather(columns, dim=-1, destination="cpu").tolist() == whole.tolist()
    total = comm.reduce_add(ones, 1)
    assert (total.device.index, total.tolist()) == (1, [3, 3, 3])
    assert [each.tolist() for each in ones] == [[1, 1, 1], [2, 2, 2]]


# ------------------------------------------------------------- several processes


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
