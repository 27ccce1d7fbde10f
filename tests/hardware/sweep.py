"""Two hundred operations, and what their kernels take on a real and a simulated GPU.

Here each is judged by its kernels alone, as CUPTI tells of them; `workloads` holds
copies and the host against the clock. `python -m tests.hardware.sweep MODEL` prints the
times on a simulated GPU as JSON, in seconds by the names of the cases.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import statistics
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gpumagic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

WARMUPS, TIMES = 3, 10
_APART = 7919  # a prime, so that neighbours are far from each other
_LARGE = (1 << 12, 1 << 16, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
_ROWS = ((64, 1024), (1024, 256), (4096, 1024), (8192, 4096), (16, 1 << 20))
_PRODUCTS = (
    *((n, n, n) for n in (64, 256, 512, 1024, 2048, 4096)),
    *((1024, n, 256) for n in (32, 100, 400, 2880)),
    *((2048, 128, k) for k in (64, 1024, 3474, 3472)),
    *((1024, 1024, 1300), (512, 512, 8192)),
    *((16, 1024, 1024), (98304, 640, 16), (128, 128, 65536), (4096, 4096, 64)),
)


@dataclass(frozen=True)
class Case:
    """An operation on tensors of some sizes."""

    kind: str  # by which it is told of, as in `tests.simulator.agreement.KINDS`
    name: str  # what it is called in the results
    shapes: tuple[tuple[int, ...], ...]  # of its tensors, which are filled with halves
    dtype: str  # of its tensors
    run: Callable[..., object]  # the operation, of torch and the tensors
    tf32: bool = False  # whether products may round
    # how many of the rows of the first tensor it is given as well, far from each other
    indices: int = 0

    def prepare(self, torch: Any, device: str) -> Callable[[], object]:
        """Make the tensors; what is returned runs the operation once."""
        dtype = getattr(torch, self.dtype)
        tensors = [
            torch.full(shape, 0.5, device=device, dtype=dtype) for shape in self.shapes
        ]
        if self.indices:
            places = torch.arange(self.indices) * _APART % len(tensors[0])
            tensors.append(places.to(device))
        return functools.partial(self.run, torch, *tensors)


def cases(shrunk: int = 1) -> tuple[Case, ...]:
    """All of them; the longest sides are divided, for a quick look."""
    made = (*_products(), *_elementwise(), *_reductions(), *_copies(), *_others())
    if shrunk == 1:
        return made
    return tuple(
        dataclasses.replace(
            each,
            shapes=tuple(
                tuple(_shorter(length, shrunk) for length in shape)
                for shape in each.shapes
            ),
            indices=min(each.indices, 32),
        )
        for each in made
    )


def _shorter(length: int, shrunk: int) -> int:
    return length if length < 512 else max(length // shrunk, 64)


def _products() -> Iterator[Case]:
    words = (("fp32", "float32"), ("tf32", "float32"), ("bf16", "bfloat16"))
    for (m, n, k), (word, dtype) in itertools.product(_PRODUCTS, words):
        shapes = ((m, k), (k, n))
        name = f"mm {word} {m}x{n}x{k}"
        yield Case("matrix products", name, shapes, dtype, _mm, word == "tf32")
    for batch, n in ((16, 64), (64, 256), (1024, 32), (8, 1024)):
        shapes, name = ((batch, n, n), (batch, n, n)), f"bmm fp16 {batch} of {n}"
        yield Case("matrix products", name, shapes, "float16", _bmm)


def _mm(torch: Any, a: Any, b: Any) -> object:
    return torch.mm(a, b)


def _bmm(torch: Any, a: Any, b: Any) -> object:
    return torch.bmm(a, b)


def _elementwise() -> Iterator[Case]:
    operations: Mapping[str, Callable[..., object]] = {
        "add": lambda torch, x: torch.add(x, x),
        "mul by a number": lambda _, x: x * 2,
        "add in place": lambda _, x: x.add_(1),
        "relu": lambda torch, x: torch.relu(x),
        "exp": lambda torch, x: torch.exp(x),
        "sigmoid": lambda torch, x: torch.sigmoid(x),
        "fill": lambda _, x: x.fill_(1),
    }
    for (name, run), n in itertools.product(operations.items(), _LARGE):
        yield Case("element-wise", f"{name} of {n} fp32", ((n,),), "float32", run)
    for dtype, n in itertools.product(("bfloat16", "float64"), _LARGE):
        run = operations["add"]
        yield Case("element-wise", f"add of {n} {dtype}", ((n,),), dtype, run)


def _reductions() -> Iterator[Case]:
    operations: Mapping[str, Callable[..., object]] = {
        "sum": lambda _, x: x.sum(),
        "sum of rows": lambda _, x: x.sum(1),
        "sum of columns": lambda _, x: x.sum(0),
        "softmax": lambda torch, x: torch.softmax(x, 1),
        "log softmax": lambda torch, x: torch.log_softmax(x, 1),
        "layer norm": lambda torch, x: torch.nn.functional.layer_norm(x, x.shape[1:]),
    }
    for (name, run), shape in itertools.product(operations.items(), _ROWS):
        text = f"{name} of {shape[0]}x{shape[1]}"
        yield Case("reductions", text, (shape,), "float32", run)


def _copies() -> Iterator[Case]:
    operations: Mapping[str, Callable[..., object]] = {
        "clone": lambda _, x: x.clone(),
        "to fp16": lambda _, x: x.half(),
        "to fp64": lambda _, x: x.double(),
        "transposed": lambda _, x: x.t().contiguous(),
        "every other column": lambda _, x: x[:, ::2].contiguous(),
        "joined": lambda torch, x: torch.cat((x, x)),
    }
    for (name, run), shape in itertools.product(operations.items(), _ROWS):
        text = f"{name} of {shape[0]}x{shape[1]}"
        yield Case("copies", text, (shape,), "float32", run)


def _others() -> Iterator[Case]:
    for batch, channels, filters, size in (
        *((16, 64, 64, 56), (16, 256, 256, 14), (32, 3, 64, 224), (1, 512, 512, 7)),
        *((8, 128, 128, 28), (64, 64, 64, 112)),
    ):
        shapes = ((batch, channels, size, size), (filters, channels, 3, 3))
        name = f"conv {batch}x{channels}x{size} by {filters}"
        yield Case("the rest", name, shapes, "float16", _convolve)
    for heads, length, depth in ((8, 128, 64), (64, 512, 64), (32, 2048, 128)):
        shapes = ((1, heads, length, depth),)
        name = f"attention {heads}x{length}x{depth}"
        yield Case("the rest", name, shapes, "float16", _attend)
    indexed: Mapping[str, Callable[..., object]] = {
        "embedding": lambda torch, x, i: torch.embedding(x, i),
        "index select": lambda _, x, i: x.index_select(0, i),
        "gather": lambda _, x, i: x[:, 0].gather(0, i),
    }
    for (name, run), (rows, row) in itertools.product(
        indexed.items(), ((1024, 64), (16384, 768), (65536, 128))
    ):
        text, half = f"{name} of {rows}x{row}", rows // 2
        yield Case("the rest", text, ((rows, row),), "float32", run, indices=half)

    for n, count in itertools.product((1 << 10, 1 << 20), (4, 64)):
        shapes, text = count * ((n,),), f"{count} of {n} scaled together"
        yield Case("the rest", text, shapes, "float32", _scale)


def _scale(torch: Any, *tensors: Any) -> object:
    return torch._foreach_mul_(list(tensors), 2.0)


def _convolve(torch: Any, x: Any, weight: Any) -> object:
    return torch.nn.functional.conv2d(x, weight, padding=1)


def _attend(torch: Any, x: Any) -> object:
    return torch.nn.functional.scaled_dot_product_attention(x, x, x)


# ------------------------------------------------------------------ measuring


def measure_real(torch: Any) -> dict[str, float]:
    """Seconds of kernels for each case, by torch's profiler; the median of ten."""
    profiler, took = torch.profiler, {}
    for case in cases():
        action = case.prepare(torch, "cuda")
        torch.backends.cuda.matmul.allow_tf32 = case.tf32
        for _ in range(WARMUPS):
            action()
        torch.cuda.synchronize()
        with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]) as profiled:
            for _ in range(TIMES):
                action()
            torch.cuda.synchronize()
        took[case.name] = _each_time(
            each.time_range.elapsed_us() / 1e6
            for each in profiled.events()
            if each.device_type.name == "CUDA"
        )
    torch.backends.cuda.matmul.allow_tf32 = False
    return took


def measure_simulated(model: str, chosen: tuple[Case, ...]) -> dict[str, float]:
    """Seconds of kernels for each case on a simulated GPU."""
    import torch

    took = {}
    with gpumagic.simulate(model) as box:
        for case in chosen:
            action = case.prepare(torch, "sim")
            torch.backends.cuda.matmul.allow_tf32 = case.tf32
            torch.sim.synchronize()
            works = box.record()
            action()
            torch.sim.synchronize()
            took[case.name] = sum(each.duration_ns for each in works) / 1e9
    torch.backends.cuda.matmul.allow_tf32 = False
    return took


def _each_time(seconds: Iterator[float]) -> float:
    """What one turn took, of the kernels of all turns in their order."""
    kernels = list(seconds)
    several = max(len(kernels) // TIMES, 1)
    starts = range(0, len(kernels), several)
    return statistics.median(sum(kernels[i : i + several]) for i in starts)


def main() -> None:
    """Print the times of all cases on the simulated GPU that is named."""
    json.dump(measure_simulated(sys.argv[1], cases()), sys.stdout)


if __name__ == "__main__":
    main()
