"""The vocabulary of published timings: what was run, and what the model says of it."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.simulator.costs import Blocks, blocks_of_attention
from gpumagic.simulator.models import find_model
from gpumagic.simulator.operators import Rule, convolution_rule, rule_for, softmax_rule

if TYPE_CHECKING:
    from gpumagic.simulator.costs import Amount, CostModel
    from gpumagic.simulator.scheduler import Engine

SIZE = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}

EVENT_PAIR_US = 4  # what two events read round one operation, beside its work
KERNEL_START_US = 1.5  # of what is read beside it, so much is of the kernel itself


class Kernel(NamedTuple):
    """One kernel of a timing."""

    rule: Rule
    dtype: str
    work: Amount
    bytes_: float


class Copy(NamedTuple):
    """One copy over the link of a timing."""

    direction: Engine
    nbytes: int
    pinned: bool


@dataclass(frozen=True)
class Timing:
    """One published figure."""

    workload: str
    device: str
    measured_us: float
    source: str
    kernels: tuple[Kernel, ...] = ()
    copies: tuple[Copy, ...] = ()
    around_us: float = 0  # what is measured beside kernels and copies
    floor_us: float = 0  # what the host cannot go below

    def modelled_us(self, costs: CostModel) -> float:
        """What the cost model says of it."""
        work_ns = sum(costs.kernel(*kernel).ns for kernel in self.kernels)
        work_ns += sum(costs.copy_ns(d, n, pinned=p) for d, n, p in self.copies)
        return max(self.floor_us, self.around_us + work_ns / 1000)


def _a100_pcie(key, memory_bytes_per_s):
    """The A100 as a card: the same chip held back by its power."""
    return dataclasses.replace(
        find_model("a100"),
        key=key,
        memory_bytes_per_s=memory_bytes_per_s,
        compute_efficiency={"fp32": 0.88, "tf32": 0.68, "fp16": 0.76, "bf16": 0.76},
    )


MODELS = {
    model.key: model
    for model in (
        *map(find_model, ("h100", "h100-pcie", "h200", "a100", "a100-40gb", "rtx4090")),
        *map(find_model, ("l4", "t4", "v100")),
        _a100_pcie("a100-pcie-40gb", 1555e9),
        _a100_pcie("a100-pcie-80gb", 1935e9),
    )
}

# ------------------------------------------------------------------ kernels


def by_bytes(op, dtype, times):
    """Makes a kernel that goes by its bytes: so often the product of its sizes."""

    def made(*sizes):
        moved = times * math.prod(sizes) * SIZE[dtype]
        return Kernel(rule_for(f"aten::{op}"), dtype, 0, moved)

    return made


def mm(dtype, m, n, k):
    """A matmul of m x k by k x n."""
    moved = SIZE[dtype] * (m * k + k * n + m * n)
    return Kernel(rule_for("aten::mm"), dtype, (m, n, k), moved)


def square(dtype, n):
    """A matmul of two square matrices."""
    return mm(dtype, n, n, n)


def conv(dtype, window, *shape, padded=True):
    """A convolution over square images: so many, of so many channels, by filters."""
    batch, channels, filters, size = shape
    out = size if padded else size - window + 1
    weight = channels * filters * window**2
    pixels = batch * (channels * size**2 + filters * out**2)
    rule = convolution_rule(rule_for("aten::convolution"), channels, filters)
    product = batch * out**2, filters, channels * window**2
    return Kernel(rule, dtype, product, SIZE[dtype] * (pixels + weight))


def softmax(op, dtype, rows, row):
    """A softmax over rows, each read and written."""
    rule = softmax_rule(rule_for(f"aten::{op}"), row, SIZE[dtype])
    return Kernel(rule, dtype, Blocks(0, rows), 2 * rows * row * SIZE[dtype])


def norm(dtype, rows, row):
    """A layer norm forwards."""
    rule, moved = rule_for("aten::native_layer_norm"), 2 * rows * row * SIZE[dtype]
    return Kernel(rule, dtype, Blocks(0, rows), moved)


def norm_backward(dtype, rows, row):
    """A layer norm backwards: the input and two gradients."""
    rule = rule_for("aten::native_layer_norm_backward")
    return Kernel(rule, dtype, Blocks(0, rows), 3 * rows * row * SIZE[dtype])


def norm_both_ways(dtype, rows, row):
    """A layer norm forwards, then backwards."""
    return norm(dtype, rows, row), norm_backward(dtype, rows, row)


def gated_layers(dtype, width, inner, rows):
    """A feed-forward block with a gate: three matmuls, an activation, a product."""
    return (
        *3 * [mm(dtype, rows, inner, width)],
        by_bytes("silu", dtype, 2)(rows, inner),
        by_bytes("mul", dtype, 3)(rows, inner),
    )


def attention(factor, heads, length, depth):
    """Fused attention in fp16; the factor is 1 for a full one, forwards."""
    flops = 4 * heads * length**2 * depth * factor
    rule = rule_for("aten::_scaled_dot_product_flash_attention")
    moved = 4 * SIZE["fp16"] * heads * length * depth
    blocks = heads * blocks_of_attention(length, length)
    return Kernel(rule, "fp16", Blocks(flops, blocks), moved)


def plain_attention(passes, matmuls, heads, length, depth):
    """Attention operator by operator: passes over the scores, and matmuls."""
    scores = heads * length**2
    return (
        by_bytes("mul", "fp16", passes)(scores),
        *matmuls
        * [Kernel(rule_for("aten::bmm"), "fp16", (heads, length, length, depth), 0)],
    )


def series(  # noqa: PLR0913 -- a table has these columns
    source, device, text, made, measured, *, start=EVENT_PAIR_US, floor=0
):
    """A timing for each case: its sizes, and the microseconds that were measured.

    `made` makes its kernels from the sizes; `start` is measured round the work, and
    `floor` is what the host cannot go below.
    """
    for case, measured_us in measured.items():
        sizes = case if isinstance(case, tuple) else (case,)
        kernels = made(*sizes)
        kernels = (kernels,) if isinstance(kernels, Kernel) else tuple(kernels)
        yield Timing(
            f"{text} {'x'.join(map(str, sizes))}",
            device,
            measured_us,
            source,
            kernels,
            around_us=start - KERNEL_START_US * len(kernels),
            floor_us=floor,
        )
