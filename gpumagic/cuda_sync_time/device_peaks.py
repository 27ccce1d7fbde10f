"""What a device reaches at best, measured here and now: a product, and a copy.

Data sheets promise more than any program gets. A large matrix product and a long copy
within the device are what comes nearest, at the clock and the temperature of now.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

from gpumagic.cuda_sync_time import tf32
from gpumagic.cuda_sync_time.report import Peaks
from gpumagic.devices.simulated import simulated_box

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.devices.protocols import Runtime

_PRODUCTS = ("float64", "float32", "float16", "bfloat16")  # torch.mm takes these
_TF32_FROM_CAPABILITY = 8

_QUICK, _QUICK_ON_CPU = 1024, 256
_LARGEST = 8192  # 400 MB in bfloat16; larger ones are hardly faster
_LONGEST_S = 0.025  # one product; all of them together then take a fifth of a second
_SAMPLE_S = 0.005  # so long that the wait at its end does not count
_SAMPLES = 5
_COPIED_BYTES, _COPIED_BYTES_ON_CPU = 512 << 20, 128 << 20
_SHORTEST_COPY_BYTES = 64 << 20  # below it, caches would be measured
_SHARE_OF_FREE = 0.25
_SEED = 0


def measure_peaks(runtime: Runtime, torch: Any, device: int, dtype: str) -> Peaks:
    """The best that a device reaches in a matrix product, and in a copy.

    It takes a fraction of a second, draws no random numbers from anybody's generator,
    and takes at most a quarter of the free memory. That is given back to torch, whose
    caching allocator keeps up to 1 GB of it reserved. Of a simulated device nothing is
    run: its model says what it reaches.
    """
    if runtime.simulated:
        return _of_the_model(torch, device, dtype)
    bench = _Bench(runtime, torch, device)
    dtype = _rounded(dtype, torch, rounds=bench.has_tf32())
    rounding = (
        tf32.rounding_products(torch) if dtype == "tf32" else contextlib.nullcontext()
    )
    with torch.no_grad(), rounding:
        # The copy first: what it gives back to torch is enough for the product.
        copied = _unless_it_fails(bench.copied_bytes_per_s)
        product = _unless_it_fails(lambda: bench.product_flops_per_s(dtype))
        return Peaks(dtype, flops_per_s=product, bytes_per_s=copied)


class _Bench:
    """Runs the two pieces of work on one device."""

    def __init__(self, runtime: Runtime, torch: Any, device: int) -> None:
        self._runtime = runtime
        self._torch = torch
        self._number = device
        self._on_cpu = runtime.kind == "cpu"
        self._device = torch.device(runtime.kind, device)

    def has_tf32(self) -> bool:
        """Whether the device can round; older ones ignore the switch."""
        if self._runtime.kind != "cuda":
            return False
        major, _ = self._torch.cuda.get_device_capability(self._number)
        return bool(major >= _TF32_FROM_CAPABILITY)

    def product_flops_per_s(self, dtype: str) -> float | None:
        """The rate of a product that is as large as time and memory allow."""
        word = "float32" if dtype == "tf32" else dtype
        if word not in _PRODUCTS:
            return None
        kind = getattr(self._torch, word)
        size = _QUICK_ON_CPU if self._on_cpu else _QUICK
        quick_s = self._product_s(size, kind, samples=1)
        size = self._size(size, quick_s, kind.itemsize)
        return 2 * size**3 / self._product_s(size, kind)

    def copied_bytes_per_s(self) -> float | None:
        """The rate of a copy that no cache can hold, read and written."""
        wanted = _COPIED_BYTES_ON_CPU if self._on_cpu else _COPIED_BYTES
        nbytes = min(wanted, self._allowed_bytes() // 2)
        if nbytes < _SHORTEST_COPY_BYTES:
            return None
        # Written, since memory of the host that nobody has written is one page.
        source = self._torch.ones(nbytes, dtype=self._torch.uint8, device=self._device)
        target = self._torch.zeros_like(source)
        return 2 * nbytes / self._best_s(lambda: target.copy_(source))

    def _product_s(self, size: int, kind: Any, samples: int = _SAMPLES) -> float:
        # A product of zeros takes less power, and so keeps a higher clock.
        own = self._torch.Generator(device=self._device).manual_seed(_SEED)
        left, right = (
            self._torch.randn(
                size, size, dtype=kind, device=self._device, generator=own
            )
            for _ in range(2)
        )
        out = self._torch.empty_like(left)
        return self._best_s(lambda: self._torch.mm(left, right, out=out), samples)

    def _size(self, size: int, seconds: float, itemsize: int) -> int:
        """Twice as large, as often as that is allowed."""
        most_bytes = self._allowed_bytes()
        while size < _LARGEST:
            seconds *= 8
            size *= 2
            if seconds > _LONGEST_S or 3 * itemsize * size * size > most_bytes:
                return size // 2
        return size

    def _allowed_bytes(self) -> int:
        memory = self._runtime.memory_bytes(self._number)
        most = 3 * _COPIED_BYTES if memory is None else memory[0] * _SHARE_OF_FREE
        return int(most)

    def _best_s(self, work: Callable[[], object], samples: int = _SAMPLES) -> float:
        """One call, at best; the first is not counted."""
        work()
        once_s = self._sample_s(work, 1)
        calls = max(1, math.ceil(_SAMPLE_S / once_s)) if samples > 1 else 1
        taken = [self._sample_s(work, min(calls, 64)) for _ in range(samples)]
        return min(once_s, *taken)

    def _sample_s(self, work: Callable[[], object], calls: int) -> float:
        self._runtime.synchronize()
        start_ns = self._runtime.now_ns()
        for _ in range(calls):
            work()
        self._runtime.synchronize()
        return max(self._runtime.now_ns() - start_ns, 1) / 1e9 / calls


def _of_the_model(torch: Any, device: int, dtype: str) -> Peaks:
    """What the model of a simulated GPU reaches, which is known without a run."""
    from gpumagic.simulator.operators import dtype_word

    box = simulated_box()
    gpus = [] if box is None else box.machine.gpus
    if device >= len(gpus):  # switched off, or not yet used
        return Peaks(dtype, None, None, simulated=True)
    model = gpus[device].model
    dtype = _rounded(dtype, torch, rounds=model.has_units_for("tf32"))
    rounded = dtype == "tf32"
    word = dtype_word("float32" if rounded else dtype, tf32=rounded)
    known = rounded or dtype in _PRODUCTS
    return Peaks(
        dtype,
        flops_per_s=model.matmul_flops_per_s(word) if known else None,
        bytes_per_s=model.copied_bytes_per_s,
        simulated=True,
    )


def _rounded(dtype: str, torch: Any, *, rounds: bool) -> str:
    """The type that is really computed in, where one of the two is asked for."""
    if dtype == "tf32" and not rounds:
        return "float32"
    if dtype == "float32" and rounds and tf32.products_round(torch):
        return "tf32"
    return dtype


def _unless_it_fails(measure: Callable[[], float | None]) -> float | None:
    try:
        return measure()
    except RuntimeError:  # out of memory, or nothing of the kind on this device
        return None
