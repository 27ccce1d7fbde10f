"""The workloads that are held against real GPUs run, and compare, without one."""

from __future__ import annotations

import dataclasses
import json
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


@pytest.fixture(scope="module")
def took():
    """What each takes on a simulated H100, on small tensors."""
    return comparing.measure_simulated("h100", QUICK)


def test_every_workload_takes_time_on_both_clocks(took):
    """Each has a time by events and one by the host, and the host's is no shorter."""
    assert set(took) == {each.name for each in workloads()}
    for name, each in took.items():
        assert 0 < each.events <= each.host, name


def test_a_second_run_gives_the_same_times(took):
    """The simulation's times do not depend on the machine that computes them."""
    assert comparing.measure_simulated("h100", QUICK) == took


def test_rounding_to_tf32_is_faster_and_bf16_faster_still():
    """The three types of one matrix product are told apart by the tensor cores."""
    chosen = [each for each in workloads(4) if each.name.startswith("matmul 2048")]
    single, rounded, half = comparing.measure_simulated("h100", chosen).values()

    assert single.events > rounded.events > half.events


def test_the_command_prints_what_the_test_on_a_gpu_reads(monkeypatch, capsys):
    """`python -m tests.hardware.comparing` prints times that `Took` takes back."""
    monkeypatch.setattr(comparing, "workloads", lambda: QUICK[-2:])
    monkeypatch.setattr("sys.argv", ["comparing", "NVIDIA H100 80GB HBM3"])
    comparing.main()

    read = json.loads(capsys.readouterr().out)
    again = comparing.measure_simulated("h100", QUICK[-2:])
    assert {name: comparing.Took(**each) for name, each in read.items()} == again


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
        sizes = Operation(torch, f"aten::{name}").work
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
    sizes = Operation(torch, "aten::convolution").work
    work = sizes(given.shape, weight.shape, *options, out_shape=made.shape)

    assert 2 * math.prod(work) == counted.get_total_flops()


@pytest.mark.parametrize("name", ["mm", "addmm"])
def test_a_product_takes_as_long_as_was_published(name, box):
    """2048 squared in fp32 took 346.5 us on an H100; the model is within a tenth."""
    x = torch.ones(2048, 2048, device="sim")
    given = (x, x) if name == "mm" else (x[0], x, x)
    product = getattr(torch, name)
    product(*given)  # the first has more to pay for
    start, end = (torch.Event(enable_timing=True) for _ in range(2))

    start.record()
    product(*given)
    end.record()
    torch.sim.synchronize()

    assert start.elapsed_time(end) == pytest.approx(0.3465, rel=0.1)
