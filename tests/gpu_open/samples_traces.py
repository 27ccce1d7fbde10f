"""Reports on traces, written by hand with figures as real machines give them."""

from __future__ import annotations

from dataclasses import replace

from gpumagic.gpu_open.records import (
    Change,
    Comparison,
    Difference,
    FileRead,
    Idle,
    KernelSum,
    RankShare,
    RankTrace,
    Together,
)
from gpumagic.gpu_open.report import TraceReport
from gpumagic.report.events import Piece

MS = 1e-3
MIB = 2**20
A100 = "NVIDIA A100-SXM4-80GB"
MUL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float,"
    " float, float, at::native::binary_internal::MulFunctor<float> >>(int, float)"
)
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add"
    "<float>, at::detail::Array<char*, 3> >(int, at::native::CUDAFunctor_add<float>)"
)
SOFTMAX = (
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, false>"
    "(float*, float const*, int, int, int)"
)
GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 64> >()"
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def file(name="trace_rank0.json.gz", **more):
    """A file that was read whole, of 96 MiB."""
    return FileRead(name, 96 * MIB, 402_118, **more)


def lane(name, *spans):
    """Spans of (start, end, label, kind) in milliseconds."""
    return name, tuple(Piece(*what, a * MS, b * MS) for a, b, *what in spans)


def steady(step_ms, steps, *pieces):
    """The same pieces (from, to, label, kind) again in every step."""
    return tuple(
        (at * step_ms + start, at * step_ms + end, label, kind)
        for at in range(steps)
        for start, end, label, kind in pieces
    )


def kernel(name, kind, count, total_ms):
    """All runs of one kernel."""
    return KernelSum(name, kind, count, total_ms * MS)


KERNELS = (
    kernel(GEMM, "matrix product", 2_880, 312),
    kernel(FLASH, "attention", 480, 96),
    kernel(ADD, "elementwise", 1_920, 44.1),
    kernel(MUL, "elementwise", 960, 28.2),
    kernel(SOFTMAX, "softmax", 240, 21.7),
    kernel("ncclDevKernel_Broadcast_RING_LL(int)", "communication", 2, 3.11),
)
GPU_BOUND = RankTrace(
    file=file(),
    rank=0,
    world_size=1,
    device_name=A100,
    length_s=520 * MS,
    busy_s=511 * MS,
    compute_s=502 * MS,
    communication_s=0.0,
    hidden_communication_s=0.0,
    copy_s=13.4 * MS,
    idle_s=9 * MS,
    launches=6_662,
    kernels=KERNELS,
    idle=Idle(2.1 * MS, 1.2 * MS, 5.7 * MS, (("aten::linear", 1.1 * MS),)),
    lanes=(
        lane(
            "host",
            *steady(52, 10, (0, 30, "", "launch"), (30, 34, "aten::add", "host code")),
            *steady(52, 10, (34, 52, "cudaStreamSynchronize", "host waits")),
        ),
        lane("stream 7", *steady(52, 10, (0.5, 51, GEMM, "kernel"))),
        lane("stream 13", *steady(52, 10, (20, 21.3, "Memcpy HtoD", "copy"))),
    ),
    phases=(("forward", 166 * MS), ("backward", 301 * MS), ("optimizer", 44 * MS)),
    host_length_s=545 * MS,
)

HOST_BOUND = replace(
    GPU_BOUND,
    length_s=600 * MS,
    busy_s=276 * MS,
    compute_s=270 * MS,
    idle_s=324 * MS,
    idle=Idle(
        291 * MS,
        4 * MS,
        29 * MS,
        (
            (LOADER, 244 * MS),
            ("autograd::engine::evaluate_function: AddmmBackward0", 21 * MS),
            ("Optimizer.step#AdamW.step", 15 * MS),
            ("", 11 * MS),
        ),
    ),
    phases=(("input", 244 * MS), ("forward", 96 * MS), ("backward", 161 * MS)),
    lanes=(
        lane(
            "host",
            *steady(60, 10, (0, 25, LOADER, "host code"), (25, 52, "", "launch")),
            *steady(60, 10, (52, 60, "cudaStreamSynchronize", "host waits")),
        ),
        lane("stream 7", *steady(60, 10, (26, 53.6, GEMM, "kernel"))),
    ),
)

TINY = replace(
    GPU_BOUND,
    length_s=480 * MS,
    busy_s=88 * MS,
    compute_s=88 * MS,
    copy_s=0.0,
    idle_s=392 * MS,
    launches=21_400,
    kernels=(kernel(ADD, "elementwise", 21_400, 88),),
    idle=Idle(371 * MS, 0.0, 21 * MS, (("aten::add", 230 * MS),)),
    lanes=(lane("stream 7", *steady(4, 120, (1, 1.73, ADD, "kernel"))),),
    phases=(),
)

# -------------------------------------------------------------------- many ranks


def place(rank, *millis):
    """What one rank did: own, waits, moves, others waited."""
    own_ms, waits_ms, moves_ms, blamed_ms = millis
    length_s = (own_ms + waits_ms + moves_ms) * MS
    return RankShare(
        rank,
        length_s,
        own_ms * MS,
        waits_ms * MS,
        moves_ms * MS,
        blamed_ms * MS,
        idle_s=min(length_s * 0.04, own_ms * MS),
        host_late_s=1.1 * MS,
    )


def ranks(count):
    """So many ranks of one job."""
    known = {"world_size": count}
    return tuple(
        replace(GPU_BOUND, file=file(f"trace_rank{each}.json.gz"), rank=each, **known)
        for each in range(count)
    )


STRAGGLER = TraceReport(
    ranks=ranks(8),
    together=Together(
        ranks=tuple(
            place(rank, 384, 0, 32, 117)
            if rank == 3
            else place(rank, 245 + rank % 3, 117 - rank % 3, 32, 0)
            for rank in range(8)
        ),
        world_size=8,
        matched=4,
        unmatched=0,
        slowest=3,
        ratio=1.57,
        differences=(
            Difference("backward", 276 * MS, 160 * MS),
            Difference("forward", 84 * MS, 80 * MS),
            Difference("matrix product", 300 * MS, 188 * MS),
        ),
        one_clock=True,
    ),
    read_s=21.3,
)

MANY = TraceReport(
    ranks=ranks(128),
    together=Together(
        ranks=tuple(
            place(rank, 384, 2, 30, 118)
            if rank == 77
            else place(rank, 262 + rank % 12, 118 - rank % 12, 30, (rank % 5) / 10)
            for rank in range(128)
        ),
        world_size=128,
        matched=180,
        unmatched=0,
        slowest=77,
        ratio=1.43,
        differences=(Difference("input", 131 * MS, 14 * MS),),
    ),
    read_s=188.0,
)

# ---------------------------------------------------------------------- two runs


def change(name, counts, before_ms, after_ms):
    """One kernel in two runs."""
    return Change(name, *counts, before_ms * MS, after_ms * MS)


CHANGES = (
    change(GEMM, (180, 180), 121, 181),
    change("vectorized_elementwise_kernel", (1_440, 2_160), 33, 46.5),
    change("softmax_warp_forward", (240, 240), 21.7, 20.9),
    change("triton_poi_fused_add_0", (0, 12), 0, 0.8),
    change("fused_dropout_kernel", (160, 0), 0.481, 0),
)
SLOWER = TraceReport(
    (GPU_BOUND, replace(GPU_BOUND, file=file("after_rank0.json.gz"))),
    comparison=Comparison(318 * MS, 394 * MS, 301 * MS, 372 * MS, CHANGES),
    read_s=2.2,
)

BUSY = TraceReport((GPU_BOUND,), read_s=4.1)
WAITING = TraceReport((HOST_BOUND,), read_s=3.9)
SAMPLES = (
    ("rank-gpu-bound", "A trace of one process, which keeps the GPU busy", BUSY),
    ("rank-loader", "The GPU waits for the DataLoader", WAITING),
    ("rank-tiny-kernels", "Kernels are shorter than launches", TraceReport((TINY,))),
    ("ranks-straggler", "Eight ranks, one of which is slow in backward", STRAGGLER),
    ("ranks-128", "128 ranks, one of which waits for its input", MANY),
    ("runs-slower", "Two runs, the second of which is slower", SLOWER),
)
