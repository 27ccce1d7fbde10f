"""The workloads that are held against real GPUs run, and compare, without one."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from gpumagic.simulator.backend.operations import Operation
from tests.hardware import comparing
from tests.hardware.workloads import workloads

SHRUNK = 64  # by which the sides of tensors are divided, to be quick
QUICK = tuple(
    dataclasses.replace(each, times=min(each.times, 10)) for each in workloads(SHRUNK)
)


def test_every_workload_takes_time_on_both_clocks():
    """Each has a time by events and one by the host, and the host's is no shorter."""
    took = comparing.measure_simulated("h100", QUICK)
    assert set(took) == {each.name for each in workloads()}
    for name, each in took.items():
        assert 0 < each.events <= each.host, name


@pytest.mark.usefixtures("box")
def test_the_flops_of_products_are_those_of_torch():
    """Our own count for matrix products is what torch's formula counts."""
    a, b, c = torch.ones(4, 6), torch.ones(6, 5), torch.ones(4, 5)
    batch, other = torch.ones(3, 4, 6), torch.ones(3, 6, 5)
    for name, given in (
        ("mm", (a, b)),
        ("addmm", (c, a, b)),
        ("bmm", (batch, other)),
        ("baddbmm", (torch.ones(3, 4, 5), batch, other)),
    ):
        with FlopCounterMode(display=False) as counted:
            made = getattr(torch, name)(*given)
        sizes = Operation(f"aten::{name}").work
        shapes = [each.shape for each in given]
        work = sizes(*shapes, out_shape=made.shape)

        assert 2 * math.prod(work) == counted.get_total_flops()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_the_flops_of_convolutions_are_those_of_torch(transposed, groups):
    """As matrix products they have the operations that torch's formula counts."""
    given = torch.ones(3, 8, 9, 9)
    weight = torch.ones(*((8, 6 // groups) if transposed else (6, 8 // groups)), 3, 3)
    options = [None, [1, 1], [0, 0], [1, 1], transposed, [0, 0], groups]
    with FlopCounterMode(display=False) as counted:
        made = torch.ops.aten.convolution(given, weight, *options)
    sizes = Operation("aten::convolution").work
    work = sizes(given.shape, weight.shape, *options, out_shape=made.shape)

    assert 2 * math.prod(work) == counted.get_total_flops()
