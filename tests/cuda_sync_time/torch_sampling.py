"""Sampling on the simulated GPU, whose figures are exact."""

from __future__ import annotations

import random

import pytest
import torch

from gpumagic.cuda_sync_time.instruments import Floors
from gpumagic.cuda_sync_time.options import Options
from gpumagic.cuda_sync_time.pairing import compare
from gpumagic.cuda_sync_time.records import FlagKind, Mode
from gpumagic.cuda_sync_time.sampling import take
from gpumagic.devices.driver import open_driver
from gpumagic.devices.opening import open_runtime
from gpumagic.report.robust import Verdict

# Time that this machine takes to simulate counts as well: there is plenty of it.
FREE = Options(samples=8, budget_s=60)


@pytest.fixture
def runtime(box):
    """What this process can do on the simulated machine."""
    return open_runtime("sim")


@pytest.fixture
def floor_s(runtime):
    """What an empty cell is measured as, once the device is in use."""
    torch.ones(1, device="sim")
    return Floors(open_driver).floor_s(runtime)


@pytest.fixture
def adding(runtime):
    """A short call: one kernel on memory that is there."""
    x = torch.ones(256, 256, device="sim")

    def body(calls):
        for _ in range(calls):
            x.add_(1)

    return body


def test_a_simulated_clock_has_no_noise(adding, runtime, floor_s):
    """All samples are equal, and the interval has no width; nothing is flagged."""
    samples, flags = take(adding, runtime, FREE, floor_s=floor_s)

    assert samples.mode is Mode.THROUGHPUT
    assert samples.interval.low == samples.interval.high == samples.median_s > 0
    assert flags == ()


def test_figures_can_be_had_again(adding, runtime, floor_s):
    """Calls, and with them the times, do not depend on how fast this machine is."""
    one, _ = take(adding, runtime, FREE, floor_s=floor_s)
    other, _ = take(adding, runtime, FREE, floor_s=floor_s)

    assert (one.calls, one.median_s) == (other.calls, other.median_s)
    assert one.calls * one.median_s >= 100 * floor_s


def test_latency_has_the_wait_in_it_and_throughput_shares_it(adding, runtime, floor_s):
    """The difference is most of what an empty cell takes."""
    latency, _ = take(
        adding, runtime, Options(samples=5, mode=Mode.LATENCY), floor_s=floor_s
    )
    throughput, _ = take(
        adding, runtime, Options(samples=5, mode=Mode.THROUGHPUT), floor_s=floor_s
    )

    assert (latency.calls, throughput.calls > 16) == (1, True)
    assert latency.median_s > throughput.median_s + floor_s / 2


def test_memory_asked_for_in_each_call_is_told(runtime, floor_s):
    """Code that empties the allocator's cache each time is not in a steady state."""

    def body(calls):
        for _ in range(calls):
            x = torch.empty(1 << 22, device="sim")
            del x
            torch.sim.empty_cache()

    plan = Options(samples=6, mode=Mode.LATENCY)
    _, flags = take(body, runtime, plan, floor_s=floor_s)

    assert any(f.kind is FlagKind.DRIVER_CALLS and f.amount == 12 for f in flags)


def test_two_codes_are_told_apart_exactly(adding, runtime, floor_s):
    """The same is the same, and three kernels take three times one."""

    def thrice(calls):
        adding(3 * calls)

    def against(newer):
        plan = Options(samples=8)
        chance = random.Random(0)  # noqa: S311 -- an order, no secret
        return compare(adding, newer, runtime, plan, floor_s=floor_s, random=chance)

    assert against(adding).result.verdict is Verdict.SAME
    slower = against(thrice).result
    assert slower.verdict is Verdict.SLOWER
    assert slower.interval.low == slower.interval.high == slower.ratio > 2


def test_looking_draws_no_random_numbers(adding, runtime, floor_s):
    """The user's generators are where they were."""
    here, there = torch.get_rng_state(), torch.sim.get_rng_state()

    take(adding, runtime, Options(samples=5), floor_s=floor_s)

    assert torch.equal(torch.get_rng_state(), here)
    assert torch.equal(torch.sim.get_rng_state(), there)
