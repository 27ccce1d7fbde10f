"""Timings of real GPUs that others published, as data.

Every third row is held out, by its place alone. The efficiencies of the catalogue
were set by those who collected these rows, on these rows: agreement on all of them
is consistency, not prediction. Fitted on the other two thirds alone, they foretold
the rows held out as well, with a median error of 8 %.
"""

from __future__ import annotations

from functools import partial

from gpumagic.simulator.costs import HostCosts
from gpumagic.simulator.scheduler import Engine
from tests.simulator.timings import (
    Copy,
    Timing,
    attention,
    by_bytes,
    conv,
    gated_layers,
    mm,
    norm,
    norm_backward,
    norm_both_ways,
    plain_attention,
    series,
    softmax,
    square,
)

EAGER_MATMUL_US = 10  # the floor that the host sets in a loop of torch.mm
COPY_START_US = 1.5  # is in each copy of the model already

_HOST = HostCosts()
_POWERS = (1024, 2048, 4096, 8192, 16384)

_DEEP_BENCH = "DeepBench@da81ba7"
_ZZC = "zzc0721/torch-performance-test-data@9d82827"
_LIGER = "Liger-Kernel@ead96b6"
_THREE_CARDS = "mlx-benchmark@85c5376"
_FLASH = "flash-attention@0251105"
_TRANSFORMERS = "mli/transformers-benchmarks#4"
_COURSE = "a CUDA course draft of 2026"


def torch_matmuls(device, dtype, *measured):
    """Square matmuls, thirty of them between two events."""
    sizes = dict(zip((1024, 2048, 4096, 8192, 10240), measured, strict=True))
    made = partial(square, dtype)
    return series(_ZZC, device, f"mm {dtype}", made, sizes, floor=EAGER_MATMUL_US)


def on_three_cards(text, made, case, *measured):
    """An operator and a synchronisation, from Python."""
    devices = ("v100", "rtx4090", "a100-pcie-80gb")
    for device, measured_us in zip(devices, measured, strict=True):
        case_us = {case: measured_us}
        yield from series(_THREE_CARDS, device, text, made, case_us, start=30)


def by_power(*measured):
    """Five timings by their width."""
    return dict(zip(_POWERS, measured, strict=True))


def matmuls():
    """Matmuls of torch and of cuBLAS."""
    yield from torch_matmuls("h100", "bf16", 12.2, 25.4, 174.3, 1379, 2984)
    yield from torch_matmuls("h100", "tf32", 18.0, 51.3, 341.6, 2956, 5700)
    yield from torch_matmuls("h100", "fp32", 57.4, 346.5, 2648, 21222, 43278)
    yield from torch_matmuls("h100-pcie", "bf16", 9.9, 38.3, 277, 2231, 4552)
    yield from torch_matmuls("a100-pcie-40gb", "bf16", 22.6, 124, 587, 5107, 10142)
    yield from torch_matmuls("a100-pcie-40gb", "fp32", 239, 1773, 8853, 62614, 128794)
    yield from torch_matmuls("l4", "bf16", 39.5, 242, 2503, 18510, 37741)
    yield from torch_matmuls("l4", "fp32", 167, 1117, 10966, 103143, 193249)
    own, made = "measured with torch 2.11", partial(square, "bf16")
    yield from series(own, "h100", "mm bf16", made, {8192: 1378})
    yield from series(own, "h200", "mm bf16", made, {8192: 1404})
    times = {4096: 192, 8192: 1383}
    yield from series("fast.cu@38eb642", "h100", "cublas bf16", made, times)
    made, text = partial(square, "fp16"), "mm fp16"
    times = {128: 3.2, 512: 5.7, 2048: 102.8, 8192: 6933}
    yield from series(_TRANSFORMERS, "rtx4090", text, made, times, start=3, floor=3)
    times = {128: 12.2, 512: 8.5, 2048: 89.2, 8192: 5107}
    card = "a100-pcie-80gb"
    yield from series(_TRANSFORMERS, card, text, made, times, floor=EAGER_MATMUL_US)


def by_columns(dtype, m, n, k):
    """A matmul of matrices that lie column by column, as cuBLAS has them."""
    return mm(dtype, n, m, k)


def deep_bench():
    """Matmuls of cuBLAS 10 and convolutions of cuDNN 7, forwards."""
    half, single = partial(by_columns, "fp16"), partial(by_columns, "fp32")
    times = {
        (1760, 128, 1760): 31,
        (1760, 7000, 1760): 485,
        (2048, 7000, 2048): 599,
        (4096, 16, 4096): 51,
        (4096, 128, 4096): 67,
        (4096, 7000, 4096): 2092,
        (5124, 9124, 2560): 2478,
        (7680, 5481, 2560): 1984,
        (1024, 16, 512): 8,
    }
    yield from series(_DEEP_BENCH, "v100", "gemm fp16", half, times, start=8)
    times = {(1760, 16, 1760): 38, (4096, 7000, 4096): 15890, (512, 16, 512): 10}
    yield from series(_DEEP_BENCH, "v100", "gemm fp32", single, times, start=8)
    times = {(1760, 128, 1760): 81, (4096, 7000, 4096): 5531}
    yield from series(_DEEP_BENCH, "t4", "gemm fp16", half, times, start=8)
    times = {(4096, 7000, 4096): 56500}
    yield from series(_DEEP_BENCH, "t4", "gemm fp32", single, times, start=8)
    times = {
        (16, 64, 128, 112): 355,
        (16, 128, 256, 56): 318,
        (16, 256, 512, 28): 310,
        (16, 512, 512, 7): 71,
        (16, 3, 64, 224): 405,
    }
    made = partial(conv, "fp16", 3)
    yield from series(_DEEP_BENCH, "v100", "conv 3x3 fp16", made, times, start=10)
    times = {(16, 64, 256, 56): 48, (16, 512, 128, 28): 41}
    made = partial(conv, "fp16", 1)
    yield from series(_DEEP_BENCH, "v100", "conv 1x1 fp16", made, times, start=10)
    made, times = partial(conv, "fp32", 1), {(8, 64, 64, 112): 88}
    yield from series(_DEEP_BENCH, "v100", "conv 1x1 fp32", made, times, start=10)


def streaming():
    """Operators that touch every element once."""
    torch, made = "pytorch PR 145746", by_bytes("relu", "fp16", 2)
    times = {2**25: 48.4, 2**26: 92.2, 2**27: 180.3, 2**28: 355.1, 2**29: 704.5}
    yield from series(torch, "h100", "relu fp16", made, times)
    made = by_bytes("relu", "bf16", 2)
    yield from series(torch, "h100", "relu bf16", made, {2**24: 30.3})
    made, times = by_bytes("relu", "fp32", 2), {2**24: 56.1, 2**25: 93.3, 2**26: 181.3}
    yield from series(torch, "h100", "relu fp32", made, times)
    made = by_bytes("maximum", "fp16", 3)
    times = {(1024, 4096): 13.8, (1024, 10240): 22.5, (1024, 20480): 37.3}
    yield from series("TileOPs#512", "h200", "maximum", made, times, start=8)
    one, times = by_bytes("relu", "bf16", 2), by_power(16.9, 26.8, 53.2, 97.9, 185.5)
    text = "relu and square of 4096"
    made = lambda width: (one(4096, width), one(4096, width))  # noqa: E731
    yield from series(_LIGER, "h100", text, made, times, start=8)
    made, times = by_bytes("sum", "fp32", 1), {2**30: 2**32 / 3193e9 * 1e6}
    yield from series("fast.cu@38eb642", "h100", "sum fp32 by CUB", made, times)


def norms():
    """Layer norms, mostly over 4096 rows."""
    made, times = partial(norm, "fp32", 4096), by_power(23.6, 37.3, 66.2, 152.7, 306.8)
    yield from series(_LIGER, "h100", "layer norm", made, times)
    made = partial(norm_backward, "fp32", 4096)
    times = by_power(60.5, 99.7, 178.8, 333.7, 642.4)
    yield from series(_LIGER, "h100", "layer norm backward", made, times, start=15)
    made = partial(norm, "fp32", 4096)
    times = by_power(34.1, 57.3, 121.8, 257.6, 506.7)
    yield from series(_LIGER, "a100", "layer norm", made, times)
    made, times = (
        partial(norm_both_ways, "fp32"),
        by_power(118.9, 196.6, 431, 830, 1621),
    )
    times = {(4096, width): measured_us for width, measured_us in times.items()}
    text, torch = "layer norm both ways", "pytorch PR 87445"
    yield from series(_LIGER, "a100", text, made, times, start=20)
    times = {(256, 256): 101, (8192, 1024): 212, (8192, 1536): 308}
    yield from series(torch, "a100", text, made, times, start=20, floor=60)
    made, times = partial(norm_both_ways, "fp16"), {(8192, 1536): 186}
    yield from series(torch, "a100", text, made, times, start=20, floor=60)


def three_cards():
    """Operators of fp32, each with a synchronisation."""
    made = partial(softmax, "_softmax", "fp32")
    yield from on_three_cards("softmax", made, (64 * 16 * 32, 1024), 360, 320, 190)
    yield from on_three_cards("softmax", made, (128 * 16 * 32, 1024), 690, 640, 350)
    yield from on_three_cards("softmax", made, (64, 10**6), 1620, 1160, 800)
    yield from on_three_cards("softmax", made, (10**6, 64), 650, 590, 340)
    made = by_bytes("sum", "fp32", 1)
    yield from on_three_cards("sum", made, (64, 128**3), 660, 610, 380)
    made = by_bytes("cat", "fp32", 4)
    yield from on_three_cards("cat of two", made, (10**6, 64), 1530, 1200, 690)
    made = partial(mm, "fp32")
    yield from on_three_cards("mm", made, (10**6, 1024, 64), 10770, 5230, 7850)
    yield from on_three_cards("linear", made, (102400, 1024, 512), 8980, 2460, 5850)
    made = partial(conv, "fp32", 3, padded=False)
    yield from on_three_cards("conv 3x3", made, (100, 3, 8, 256), 1900, 740, 590)
    yield from on_three_cards("conv 3x3", made, (10, 12, 8, 256), 620, 180, 150)
    made = by_bytes("relu", "fp32", 2)
    yield from on_three_cards("relu", made, (64, 128, 1024), 110, 40, 60)


def layers():
    """Losses and layers: several passes, or several kernels."""
    made, times = by_bytes("xlogy", "fp32", 9), {4096: 1330, 16384: 5134, 131072: 40819}
    times = {(16384, words): measured_us for words, measured_us in times.items()}
    text = "kl_div in nine passes"
    yield from series(_LIGER, "h100-pcie", text, made, times, start=20)
    made = partial(softmax, "_log_softmax", "fp32", 16384)
    times = {4096: 875, 8192: 1189, 32768: 5317, 131072: 20726}
    yield from series(_LIGER, "a100", "cross entropy", made, times, start=20)
    made = partial(gated_layers, "bf16", 4096, 11008)
    times = {4 * 1024: 4582, 4 * 4096: 18160}
    yield from series(_LIGER, "a100", "SwiGLU", made, times, start=20)
    times = {8 * 1024: 9257, 8 * 4096: 36372}
    yield from series(_LIGER, "a100", "GeGLU", made, times, start=20)
    one = by_bytes("mul", "bf16", 2)
    made = lambda width: 9 * [one(2048, width)]  # noqa: E731
    times = {1024: 78, 4096: 280, 16384: 986, 32768: 1919}
    yield from series(_LIGER, "a100", "RMSNorm of nine kernels", made, times, start=40)
    made, times = by_bytes("mul", "fp16", 2), {(4096, 4096): 32.5, (4096, 16384): 149}
    yield from series(_LIGER, "h100", "rms_norm", made, times)
    made, times = by_bytes("embedding", "fp32", 2), {(16384, 768): 167}
    times[16384, 4096] = 858
    yield from series(_LIGER, "a100", "embedding", made, times)


def attentions():
    """Attention over 16384 tokens of 2048 numbers, in several cuts."""
    short, long, narrow = (8 * 16, 2048, 128), (16, 16384, 128), (8 * 32, 2048, 64)
    made, times = partial(attention, 3.5), {short: 5150, long: 37900, narrow: 5940}
    yield from series(_FLASH, "a100", "FA2 both ways", made, times)
    made, times = partial(attention, 3.5 / 2), {short: 3100}
    yield from series(_FLASH, "a100", "causal FA2 both ways", made, times)
    made = partial(attention, 1)
    for library, measured_us in (("FA2", 760), ("cuDNN", 450), ("FA3", 440)):
        yield from series(_FLASH, "h100", library, made, {short: measured_us})
    made, text = partial(plain_attention, 6, 2), "plain attention"
    yield from series(_FLASH, "h100", text, made, {short: 2310})
    made, text = partial(plain_attention, 14, 6), "plain attention both ways"
    yield from series(_FLASH, "h100", text, made, {short: 6635})
    yield from series(_FLASH, "a100", text, made, {short: 12659})


def copies():
    """Copies over the link, with a wait."""
    by_kib = {1: 35, 64: 37, 256: 50, 1 << 10: 113, 4 << 10: 368}
    by_kib |= {16 << 10: 1386, 1 << 20: 86943}
    source, around_us = "gpu-benches cuda-memcpy", 28 - COPY_START_US
    for kib, measured_us in by_kib.items():
        moved = (Copy(Engine.H2D, kib << 10, pinned=True),)
        text = f"pinned {kib} KiB"
        yield Timing(text, "v100", measured_us, source, (), moved, around_us)
    around_us = 18 - COPY_START_US  # the call in a profiler's log of an A100
    for direction, measured_us in ((Engine.H2D, 454), (Engine.D2H, 426)):
        moved, text = (Copy(direction, 4_000_000, pinned=False),), "pageable 4 MB"
        yield Timing(text, "rtx4090", measured_us, _COURSE, (), moved, around_us)


def host():
    """What a launch costs the host, and a node of a graph the device."""
    launch_us, node_us = _HOST.raw_launch_ns / 1000, _HOST.graph_node_ns / 1000
    loops = (
        ("80 short kernels", 260, "CUDA.jl documentation", 80 * launch_us),
        ("80 nodes of a graph", 70, "CUDA.jl documentation", 80 * node_us),
        ("launch on A100", 2.62, "gpu-benches", launch_us),
        ("graph node on A100", 1.34, "gpu-benches", node_us),
        ("launch on GH200", 2.43, "gpu-benches", launch_us),
        ("graph node on GH200", 1.26, "gpu-benches", node_us),
        ("launch on L40", 1.64, "gpu-benches", launch_us),
        ("graph node on L40", 0.94, "gpu-benches", node_us),
        ("launch in a loop", 3.41, "nsight-systems-deep-dive@0e3f06f", launch_us),
    )
    for text, measured_us, source, around_us in loops:
        yield Timing(text, "a100", measured_us, source, around_us=around_us)
    made, name = by_bytes("add", "fp32", 3), "nsight-systems-deep-dive@0e3f06f"
    yield from series(name, "a100", "add alone", made, {10: 1.82}, start=1.5)
    yield from series(_COURSE, "rtx4090", "add alone", made, {10**6: 4.16}, start=1.5)


TIMINGS = (
    *matmuls(),
    *deep_bench(),
    *streaming(),
    *norms(),
    *three_cards(),
    *layers(),
    *attentions(),
    *copies(),
    *host(),
)
HELD_OUT = TIMINGS[2::3]
