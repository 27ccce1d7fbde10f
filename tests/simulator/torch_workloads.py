"""The workloads that are held against real GPUs run, and compare, without one."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from gpumagic.simulator.backend.operations import Operation
from gpumagic.simulator.kernel_times import flops_of
from tests.hardware import comparing, sweep
from tests.hardware.workloads import workloads
from tests.simulator.agreement import KINDS

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


def test_the_sweep_has_two_hundred_operations_of_every_kind():
    """Each runs, takes a time, and has a name and a kind of its own."""
    cases = sweep.cases(256)
    took = sweep.measure_simulated("h100", cases)

    assert len(took) == len(cases) >= 200
    assert min(took.values()) > 0
    assert {each.kind for each in cases} == set(KINDS)


def test_a_second_run_gives_the_same_times(took):
    """The simulation's times do not depend on the machine that computes them."""
    assert comparing.measure_simulated("h100", QUICK) == took


def test_rounding_to_tf32_is_faster_and_bf16_faster_still():
    """The three types of one matrix product are told apart by the tensor cores."""
    chosen = [each for each in workloads(4) if each.name.startswith("matmul 2048")]
    single, rounded, half = comparing.measure_simulated("h100", chosen).values()

    assert single.events > rounded.events > half.events


def test_pageable_copies_are_slower_by_the_hosts_clock(took):
    """Pinned memory is worth its name in the list."""
    pinned = took["256 MiB to the device, pinned"]
    pageable = took["256 MiB to the device, pageable"]

    assert pageable.host > pinned.host


def test_the_command_prints_what_the_test_on_a_gpu_reads(monkeypatch, capsys):
    """`python -m tests.hardware.comparing` prints times that `Took` takes back."""
    monkeypatch.setattr(comparing, "workloads", lambda: QUICK[-2:])
    monkeypatch.setattr("sys.argv", ["comparing", "NVIDIA H100 80GB HBM3"])
    comparing.main()

    read = json.loads(capsys.readouterr().out)
    again = comparing.measure_simulated("h100", QUICK[-2:])
    assert {name: comparing.Took(**each) for name, each in read.items()} == again


_F = torch.nn.functional
_TWELVE = (1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2)
ODD = {
    "no elements": lambda: torch.ones(0, device="sim") + 1,
    "a product of no rows": lambda: torch.ones(0, 3, device="sim").mm(
        torch.ones(3, 4, device="sim")
    ),
    "a product of no depth": lambda: torch.ones(5, 0, device="sim").mm(
        torch.ones(0, 4, device="sim")
    ),
    "no batch": lambda: torch.ones(0, 3, 3, device="sim").bmm(
        torch.ones(0, 3, 3, device="sim")
    ),
    "no pictures": lambda: _F.conv2d(
        torch.ones(0, 3, 8, 8, device="sim"), torch.ones(4, 3, 3, 3, device="sim")
    ),
    "a softmax of a number": lambda: torch.ones((), device="sim").softmax(0),
    "a softmax of no rows": lambda: torch.ones(0, 4, device="sim").softmax(1),
    "a softmax of empty rows": lambda: torch.ones(4, 0, device="sim").softmax(1),
    "a norm of no rows": lambda: _F.layer_norm(torch.ones(0, 4, device="sim"), (4,)),
    "a number": lambda: torch.ones((), device="sim").sum(),
    "twelve dimensions": lambda: torch.ones(_TWELVE, device="sim").transpose(1, 11) * 2,
    "a sum of twelve": lambda: torch.ones(_TWELVE, device="sim").sum((1, 3, 5)),
    "attention of one": lambda: _F.scaled_dot_product_attention(
        *3 * [torch.ones(1, 1, 1, 8, device="sim")]
    ),
    "one pixel, grouped": lambda: _F.conv2d(
        torch.ones(1, 8, 1, 1, device="sim"),
        torch.ones(8, 1, 1, 1, device="sim"),
        groups=8,
    ),
    "a transposed convolution": lambda: _F.conv_transpose2d(
        torch.ones(1, 8, 4, 4, device="sim"), torch.ones(8, 2, 3, 3, device="sim")
    ),
}


@pytest.mark.parametrize("shape", ODD)
def test_odd_shapes_take_a_time(box, shape):
    """Nothing, a number or many dimensions: there is a time, and no error."""
    works = box.record()
    ODD[shape]()
    torch.sim.synchronize()

    assert all(1000 <= each.duration_ns < 100_000 for each in works)


def test_a_copy_costs_by_its_types_and_its_order(box):
    """A cast is longer than a copy, and so is a copy into another order."""
    x, other = (
        torch.ones(2048, 4096, device="sim"),
        torch.ones(4096, 2048, device="sim"),
    )
    into = torch.empty_like(x)
    torch.sim.synchronize()
    works = box.record()

    into.copy_(x)
    into.copy_(other.t())
    x.clone()
    x.t().contiguous()
    x.to(torch.int32)
    torch.sim.synchronize()
    plain, turned, clone, transposed, cast = (each.duration_ns for each in works)

    assert plain == clone
    assert turned == transposed > 1.2 * plain
    assert cast > 1.05 * plain


@pytest.mark.usefixtures("box")
def test_what_is_on_meta_stays_there():
    """Shapes alone are computed without the simulated GPU."""
    huge = torch.empty(1 << 20, 1 << 20, device="meta")

    assert (huge @ huge).device.type == "meta"


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

        assert flops_of(work) == counted.get_total_flops()


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

    assert flops_of(work) == counted.get_total_flops()


def test_a_product_takes_as_long_into_an_output_and_in_place(box):
    """Whoever brings the memory for the result computes no less."""
    x = torch.ones(512, 512, device="sim")
    out, kernels = torch.empty_like(x), box.record()

    x @ x
    torch.mm(x, x, out=out)
    torch.addmm(x, x, x)
    torch.addmm(x, x, x, out=out)
    out.addmm_(x, x)
    torch.sim.synchronize()

    assert len({kernel.duration_ns for kernel in kernels if "mm" in kernel.name}) == 1


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
