"""Counting and peaks on the simulated GPU, where the model says what is right."""

from __future__ import annotations

import pytest
import torch

import gpumagic
from gpumagic.cuda_sync_time.device_peaks import measure_peaks
from gpumagic.cuda_sync_time.flops import count_flops
from gpumagic.cuda_sync_time.report import Roofline
from gpumagic.devices.in_use import loads
from gpumagic.devices.opening import open_runtime


@pytest.fixture
def runtime(box):
    """The simulated runtime, started and idle."""
    torch.ones(1, device="sim")
    opened = open_runtime("sim")
    opened.synchronize()
    del box
    return opened


def seconds(runtime, run):
    """How long a run takes on the model's clock, after a first one."""
    run()
    runtime.synchronize()
    start_ns = runtime.now_ns()
    run()
    runtime.synchronize()
    return (runtime.now_ns() - start_ns) / 1e9


@pytest.mark.usefixtures("runtime")
def test_a_product_is_counted_exactly():
    """2 m n k for the product, and twice as many for its gradients."""
    left = torch.ones(48, 32, device="sim", requires_grad=True)
    right = torch.ones(32, 16, device="sim", requires_grad=True)

    forward = count_flops(lambda: left @ right, torch)
    both = count_flops(lambda: (left @ right).sum().backward(), torch)

    assert forward.flops == 2 * 48 * 32 * 16
    assert both.flops == 3 * forward.flops


@pytest.mark.usefixtures("runtime")
def test_convolutions_round_by_their_own_switch():
    """Convolutions of float32 count as TF32 by default, and products do not."""
    images, weights = torch.ones(2, 8, 8, 8), torch.ones(4, 8, 3, 3)
    images, weights = images.to("sim"), weights.to("sim")
    square = torch.ones(8, 8, device="sim")

    convolved = count_flops(lambda: torch.nn.functional.conv2d(images, weights), torch)
    multiplied = count_flops(lambda: square @ square, torch)

    assert convolved.flops == 2 * 2 * 36 * 4 * 8 * 9
    assert (convolved.dtype, multiplied.dtype) == ("tf32", "float32")


def test_a_large_product_comes_near_the_peak(runtime):
    """What a product of float32 achieves is most of what the model can reach."""
    square = torch.ones(1536, 1536, device="sim")

    def run():
        return square @ square

    counted = count_flops(run, torch)
    found = measure_peaks(runtime, torch, 0, counted.dtype)
    line = Roofline(seconds(runtime, run), found, flops=counted.flops)

    assert found.simulated
    assert found.dtype == "float32"
    assert 0.7 < line.flops_per_s / line.roof_flops_per_s <= 1


def test_a_long_copy_comes_near_the_bandwidth(runtime):
    """A copy within the device moves bytes at most of the rate of the model."""
    source = torch.ones(128 << 20, dtype=torch.uint8, device="sim")
    target = torch.empty_like(source)

    found = measure_peaks(runtime, torch, 0, "float32")
    taken_s = seconds(runtime, lambda: target.copy_(source))
    line = Roofline(taken_s, found, nbytes=2 * source.nbytes)

    assert 0.7 < line.bytes_per_s / found.bytes_per_s <= 1


def test_peaks_of_the_model_take_no_time_and_no_memory(runtime, box):
    """Nothing runs for them: neither the clock nor a counter moves."""
    before = box.time_s, runtime.memory_stats(0)

    measure_peaks(runtime, torch, 0, "bfloat16")

    assert (box.time_s, runtime.memory_stats(0)) == before


def test_peaks_follow_the_type(runtime):
    """A GPU with tensor cores is faster in bfloat16 than in TF32 than in float32."""
    rates = [
        measure_peaks(runtime, torch, 0, dtype).flops_per_s
        for dtype in ("bfloat16", "tf32", "float32", "int64")
    ]

    assert rates[0] > rates[1] > rates[2]
    assert rates[3] is None


def test_a_device_that_is_not_there_has_no_peaks(runtime):
    """What cannot be asked is unknown."""
    found = measure_peaks(runtime, torch, 7, "float32")

    assert (found.flops_per_s, found.bytes_per_s) == (None, None)


def test_loads_are_those_of_the_devices_in_use(runtime, box):
    """The simulated driver tells of the GPU that has been used, and of no other."""
    found = loads(box.driver, runtime)

    assert list(found) == [0]
    assert (found[0].limiters, found[0].other_processes) == ((), 0)


@pytest.mark.parametrize("count", [1, 3])
def test_it_is_counted_on_how_many_devices_the_work_was(count):
    """Devices that only stand by are not among them."""
    with gpumagic.simulate("4xh100"):
        xs = [torch.ones(8, 8, device=f"sim:{n}") for n in range(4)]

        counted = count_flops(lambda: [x @ x for x in xs[:count]], torch)

    assert counted.devices == count
    assert counted.flops == count * 2 * 8**3
