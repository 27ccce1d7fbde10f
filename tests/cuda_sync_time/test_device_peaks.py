"""What a device reaches, measured on the CPU and on a device that a test makes up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpumagic.cuda_sync_time import device_peaks, tf32
from gpumagic.cuda_sync_time.device_peaks import measure_peaks
from gpumagic.devices.cpu import CpuRuntime

torch = pytest.importorskip("torch")


class SteadyDevice(CpuRuntime):
    """The CPU with a clock on which each call to it takes a set time."""

    def __init__(self, seconds_of, *, free_bytes=None):
        self._seconds_of = seconds_of
        self._free_bytes = free_bytes
        self.now = 0
        self.products = []

    def now_ns(self):
        """The made-up clock."""
        return self.now

    def memory_bytes(self, _):
        """What the test says is free."""
        return None if self._free_bytes is None else (self._free_bytes, 2**40)

    def multiply(self, left, right, out):
        """Takes its time and multiplies nothing."""
        self.products.append((left.shape[0], out.dtype))
        self.now += round(1e9 * self._seconds_of(left.shape[0]))
        return right


@pytest.fixture
def quick_copy(monkeypatch):
    """Copies so small that a test is quick."""
    monkeypatch.setattr(device_peaks, "_COPIED_BYTES_ON_CPU", 1 << 20)
    monkeypatch.setattr(device_peaks, "_SHORTEST_COPY_BYTES", 1 << 10)


def measured(monkeypatch, device, dtype="float32"):
    """The peaks on a made-up device."""
    monkeypatch.setattr(torch, "mm", device.multiply)
    return measure_peaks(device, torch, 0, dtype)


def test_both_peaks_of_the_cpu_are_measured():
    """A real product and a real copy have rates above nothing."""
    found = measure_peaks(CpuRuntime(), torch, 0, "float32")

    assert found.dtype == "float32"
    assert found.flops_per_s > 1e6
    assert found.bytes_per_s > 1e6
    assert not found.simulated


@pytest.mark.usefixtures("quick_copy")
def test_a_peak_is_the_work_over_the_time(monkeypatch):
    """A device that computes 1e12 operations a second is found to do just that."""
    device = SteadyDevice(lambda size: 2 * size**3 / 1e12)

    found = measured(monkeypatch, device)

    assert found.flops_per_s == pytest.approx(1e12, rel=1e-3)


@pytest.mark.usefixtures("quick_copy")
@pytest.mark.parametrize(
    ("seconds", "free_bytes", "largest"),
    [
        (0.001, None, 512),  # the next one would take 64 ms
        (0.02, None, 256),
        (1e-5, None, 2048),
        (1e-9, 2**20 * 4 * 3 * 4, 1024),  # a quarter of it is 3 matrices of 1024
    ],
)
def test_a_product_is_as_large_as_time_and_memory_allow(
    monkeypatch, seconds, free_bytes, largest
):
    """It grows from the quick one by what that took, and is never too long or large."""
    device = SteadyDevice(
        lambda size: seconds * (size / 256) ** 3, free_bytes=free_bytes
    )

    measured(monkeypatch, device)

    assert max(size for size, _ in device.products) == largest


@pytest.mark.usefixtures("quick_copy")
def test_what_cannot_be_multiplied_has_no_peak_of_products(monkeypatch):
    """The copy is measured all the same."""
    found = measured(monkeypatch, SteadyDevice(lambda _: 1e-3), "float8_e4m3fn")

    assert found.flops_per_s is None
    assert found.bytes_per_s is not None


@pytest.mark.usefixtures("quick_copy")
def test_out_of_memory_is_no_error(monkeypatch):
    """What there is no memory for is unknown."""

    def no_memory(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    device = SteadyDevice(lambda _: 1e-3)
    device.multiply = no_memory

    assert measured(monkeypatch, device).flops_per_s is None


def test_a_copy_that_a_cache_could_hold_is_not_measured(monkeypatch):
    """With little free memory the bandwidth is unknown instead of flattering."""
    device = SteadyDevice(lambda _: 1e-3, free_bytes=100 << 20)

    assert measured(monkeypatch, device).bytes_per_s is None


@pytest.mark.usefixtures("quick_copy")
def test_measuring_leaves_the_users_state_alone():
    """Neither random numbers nor switches of torch are different after it."""
    before = torch.get_rng_state(), tf32.products_round(torch)

    measure_peaks(CpuRuntime(), torch, 0, "tf32")

    assert torch.equal(torch.get_rng_state(), before[0])
    assert tf32.products_round(torch) == before[1]
    assert torch.is_grad_enabled()


# ---------------------------------------------------------------- rounding


def backends(**matmul):
    """A torch of which only the switches of products are there."""
    return SimpleNamespace(
        backends=SimpleNamespace(
            cuda=SimpleNamespace(matmul=SimpleNamespace(**matmul)),
            cudnn=SimpleNamespace(allow_tf32=True),
        )
    )


@pytest.mark.parametrize(
    ("matmul", "rounds"),
    [
        ({"allow_tf32": True}, True),
        ({"allow_tf32": False}, False),
        ({"fp32_precision": "tf32", "allow_tf32": False}, True),
        ({"fp32_precision": "none", "allow_tf32": True}, False),
    ],
)
def test_the_newer_switch_counts_where_there_is_one(matmul, rounds):
    """Old versions of torch have one switch, new ones two for the same thing."""
    made_up = backends(**matmul)

    assert tf32.products_round(made_up) == rounds
    assert tf32.convolutions_round(made_up)


@pytest.mark.parametrize(
    "matmul", [{"allow_tf32": False}, {"allow_tf32": False, "fp32_precision": "ieee"}]
)
def test_rounding_is_for_a_block_only(matmul):
    """After the block, and after an error in it, the switch is as it was."""
    made_up = backends(**matmul)
    seen = []

    def fail_while_rounding():
        with tf32.rounding_products(made_up):
            seen.append(tf32.products_round(made_up))
            raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        fail_while_rounding()

    assert seen == [True]
    assert vars(made_up.backends.cuda.matmul) == matmul


def test_switches_that_contradict_each_other_are_taken_as_off():
    """Where torch itself raises, nothing is claimed to be rounded."""

    class Torn:
        @property
        def allow_tf32(self):
            raise RuntimeError("mix of the legacy and new APIs")

    made_up = SimpleNamespace(
        backends=SimpleNamespace(cuda=SimpleNamespace(matmul=Torn()))
    )

    assert not tf32.products_round(made_up)
