"""Reports of every kind of timing, with figures as real machines give them.

They are written by hand, or made by formulas that are fixed here, so that golden
files differ only where a view does.
"""

from __future__ import annotations

import dataclasses
import math

from gpumagic.cuda_sync_time.answer_compare import ComparisonReport
from gpumagic.cuda_sync_time.answer_repeat import RepeatedReport
from gpumagic.cuda_sync_time.answer_run import TimingReport
from gpumagic.cuda_sync_time.one_run import RaceReport
from gpumagic.cuda_sync_time.records import (
    LIBRARY,
    Activity,
    Flag,
    FlagKind,
    LineTime,
    Mode,
    Profile,
    Run,
    Samples,
    Setting,
    StreamShare,
    SyncPoint,
    TopKernel,
)
from gpumagic.report.events import OperatorTime, SeenRace, SpanKind, TraceSpan
from gpumagic.report.places import Code, CodeLine
from gpumagic.report.robust import Comparison, Interval, Verdict

MS = 1e-3
US = 1e-6
HOSTILE = "<script>alert(1)</script>&\"'</td>\x1b[31m\u202eevil\nnext {line}"
LONG = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float,"
    " float, float, at::native::binary_internal::MulFunctor<float> >>(int, float)"
)
WIDE = "データ転送 → 显存 🚀"


def seen(*spans, length_s, busy_s):
    """All that happened, as a simulated machine tells it."""
    ordered = tuple(sorted(spans, key=lambda span: span.start_s))
    return Activity(ordered, length_s, busy_s)


def work(device, *times, name="aten::mm", kind=SpanKind.KERNEL):
    """Kernels of a device, from and until so many milliseconds."""
    return tuple(
        TraceSpan(name, kind, start * MS, end * MS, device, 0) for start, end in times
    )


def host(kind, *times, name="aten::mm"):
    """Launches or waits, from and until so many milliseconds."""
    return tuple(
        TraceSpan(name, kind, start * MS, end * MS, thread=0) for start, end in times
    )


H100 = Setting(
    kind="cuda",
    devices=((0, "NVIDIA H100 80GB HBM3"),),
    floor_s=21 * US,
    torch_version="2.6.0+cu126",
)
SIMULATED = Setting(
    kind="sim",
    label="simulated H100 SXM",
    devices=((0, "H100 SXM"),),
    floor_s=6 * US,
    torch_version="2.6.0",
)
HOST = Setting(kind="cpu", floor_s=1.04 * US, torch_version="2.6.0+cpu")
TWO = dataclasses.replace(
    H100,
    devices=((0, "NVIDIA H100 80GB HBM3"), (1, "NVIDIA H100 80GB HBM3")),
    floor_s=34 * US,
)
LOSSES = CodeLine("In [5], line 2", "losses.append(step(batch).item())")
TRAIN = CodeLine("train.py, line 40", None)
CROSS_ENTROPY = CodeLine("train.py, line 40", "return F.cross_entropy(net(x), y)")
SUM = "y = x.sum().item()"
MATMUL = Code("for _ in range(60):\n    y = x @ w", cell=3)

GPU_BOUND = TimingReport(
    MATMUL,
    H100,
    Run(
        84.3 * MS,
        0.4 * MS,
        tail_s=9 * US,
        backlog_s=12 * US,
        events={0: 84.2 * MS},
    ),
)
LAUNCH_BOUND = TimingReport(
    Code("for p in model.parameters():\n    p.mul_(0.9)", cell=4),
    H100,
    Run(20.1 * MS, 20.0 * MS, tail_s=5 * US, backlog_s=11 * US),
)
SYNCING = dataclasses.replace(
    LAUNCH_BOUND,
    code=Code("for batch in data:\n    losses.append(step(batch).item())", cell=5),
    syncs=(
        SyncPoint(".item()", LOSSES, 1000, 14.2 * MS),
        SyncPoint("copy to the host", TRAIN, 3, 120 * US, LOSSES),
        SyncPoint("torch.cuda.synchronize()", LIBRARY, 1),
    ),
    flags=(Flag(FlagKind.LOOKED_ON, names=("--syncs",)),),
    activity=Activity(
        host(
            SpanKind.WAIT,
            *((at * 0.02, at * 0.02 + 0.014) for at in range(1000)),
            name=".item()",
        ),
        20.1 * MS,
    ),
)
TAIL = TimingReport(
    Code("with torch.cuda.stream(side):\n    z = x @ x", cell=7),
    TWO,
    Run(
        58.1 * MS,
        0.3 * MS,
        tail_s=50.2 * MS,
        backlog_s=33.4 * MS,
        events={0: 7.8 * MS, 1: None},
    ),
    (Flag(FlagKind.BACKLOG, 33.4 * MS), Flag(FlagKind.TAIL, 50.2 * MS)),
)
ON_CPU = TimingReport(
    Code("numpy.sort(values)", cell=8), HOST, Run(1.204, 1.204, uses_device=False)
)
FAILED = TimingReport(
    Code("y = x @ w", cell=10),
    H100,
    Run(12.1 * MS, 11.9 * MS, tail_s=0.0, backlog_s=0.0),
    (Flag(FlagKind.DRIVER_CALLS, 4, device=0),),
    failed="ValueError: shapes (4, 3) and (4, 3) cannot be multiplied",
)
ON_SIMULATOR = TimingReport(
    MATMUL,
    SIMULATED,
    Run(
        7.62 * MS,
        0.31 * MS,
        tail_s=0.0,
        backlog_s=0.0,
        events={0: 7.61 * MS},
        simulated_in_s=0.042,
    ),
    activity=seen(
        *host(
            SpanKind.LAUNCH, *((at * 0.005, at * 0.005 + 0.0049) for at in range(60))
        ),
        *work(0, *((at * 0.126 + 0.01, at * 0.126 + 0.135) for at in range(60))),
        length_s=7.62 * MS,
        busy_s=7.5 * MS,
    ),
)
TWO_SIMULATED = dataclasses.replace(
    SIMULATED, devices=((0, "H100 SXM"), (1, "H100 SXM"))
)
TURNS = TimingReport(
    Code("for stage in stages:\n    x = stage(x)", cell=14),
    TWO_SIMULATED,
    Run(8.1 * MS, 0.9 * MS, tail_s=0.0, backlog_s=0.0, simulated_in_s=0.06),
    activity=seen(
        *host(SpanKind.LAUNCH, *((at * 0.2, at * 0.2 + 0.1) for at in range(4))),
        *work(0, (0.1, 2.0), (4.1, 6.0)),
        *work(1, (2.1, 4.0), (6.1, 8.0)),
        length_s=8.1 * MS,
        busy_s=7.6 * MS,
    ),
)
SMALL_WORK = TimingReport(
    Code("for p in model.parameters():\n    p.mul_(0.9)", cell=16),
    SIMULATED,
    Run(4.05 * MS, 4.0 * MS, tail_s=0.0, backlog_s=0.0, simulated_in_s=0.03),
    activity=seen(
        *host(SpanKind.LAUNCH, *((at * 0.1, at * 0.1 + 0.08) for at in range(40))),
        *work(0, *((at * 0.1 + 0.08, at * 0.1 + 0.095) for at in range(40))),
        length_s=4.05 * MS,
        busy_s=0.6 * MS,
    ),
)
ITEMS = TimingReport(
    Code("for batch in data:\n    losses.append(step(batch).item())", cell=17),
    SIMULATED,
    Run(15.0 * MS, 14.99 * MS, tail_s=0.0, backlog_s=0.0, simulated_in_s=0.08),
    activity=seen(
        *host(SpanKind.LAUNCH, *((at * 1.5, at * 1.5 + 0.3) for at in range(10))),
        *host(
            SpanKind.WAIT,
            *((at * 1.5 + 0.32, at * 1.5 + 1.5) for at in range(10)),
            name=".item()",
        ),
        *work(0, *((at * 1.5 + 0.1, at * 1.5 + 1.45) for at in range(10))),
        length_s=15.0 * MS,
        busy_s=13.5 * MS,
    ),
)
OWN_TIME = TimingReport(
    Code("words = sorted(text.split())\ny = x @ x", cell=18),
    SIMULATED,
    Run(95 * US, 20 * US, tail_s=0.0, backlog_s=0.0, simulated_in_s=1.31),
    activity=seen(
        *host(SpanKind.LAUNCH, (0.01, 0.02)),
        *work(0, (0.022, 0.06)),
        length_s=95 * US,
        busy_s=38 * US,
    ),
)
STARTED = TimingReport(
    Code("loss = model(x).sum().item()", cell=19),
    SIMULATED,
    Run(20.6 * MS, 20.6 * MS, tail_s=0.0, backlog_s=0.0, simulated_in_s=0.05),
    (Flag(FlagKind.FIRST_USE, names=("cuBLAS",), device=0),),
    activity=seen(
        *host(SpanKind.LAUNCH, (20.5, 20.52)),
        *work(0, (20.52, 20.57)),
        length_s=20.6 * MS,
        busy_s=50 * US,
    ),
)

EVERY_FLAG = tuple(
    Flag(
        kind,
        {FlagKind.BACKLOG: 1.31, FlagKind.TAIL: 8.1 * MS}.get(kind, 3),
        {
            FlagKind.LIMITED: ("power limit", "heat"),
            FlagKind.UNWATCHED: ("no waits could be noted: no such mode",),
            FlagKind.NOT_DRAINED: ("RuntimeError: CUDA error",),
            FlagKind.ERROR_AT_END: ("RuntimeError: CUDA error",),
            FlagKind.LOOKED_ON: ("--lines",),
        }.get(kind, ()),
        device=0,
    )
    for kind in FlagKind
)


# --------------------------------------------------------------------- profiles


def _kernels(lane, count, every_s, busy_s, names=("gemm", "add")):
    device, stream = lane
    return tuple(
        TraceSpan(
            names[at % len(names)],
            SpanKind.KERNEL,
            0.2 * MS + at * every_s,
            0.2 * MS + at * every_s + busy_s,
            device,
            stream,
        )
        for at in range(count)
    )


def profile(spans, length_s, **others):
    """A profile of these spans, with its sums left to the caller."""
    busy = sum(each.end_s - each.start_s for each in spans if each.device is not None)
    facts = {
        "busy_s": min(busy, 0.9 * length_s),
        "overlapped_s": 0.0,
        "copying_s": 0.0,
        "hidden_copy_s": 0.0,
        "launches": sum(each.device is not None for each in spans),
        "streams": (),
        "kernels": (),
    }
    ordered = tuple(sorted(spans, key=lambda span: span.start_s))
    return Profile(ordered, length_s, **{**facts, **others})


TWO_STREAMS = profile(
    (
        *_kernels((0, 7), 4, 1.0 * MS, 0.9 * MS, ("sm90_xmma_gemm_bf16",)),
        TraceSpan(
            "Memcpy HtoD (Pinned -> Device)",
            SpanKind.COPY,
            0.3 * MS,
            1.4 * MS,
            0,
            13,
            nbytes=2**26,
        ),
        TraceSpan("Memset (Device)", SpanKind.FILL, 1.5 * MS, 1.6 * MS, 0, 13),
        TraceSpan("aten::matmul", SpanKind.HOST, 0.0, 0.25 * MS, thread=0),
        TraceSpan("aten::matmul", SpanKind.HOST, 0.25 * MS, 0.4 * MS, thread=0),
        TraceSpan("cudaLaunchKernel", SpanKind.LAUNCH, 0.18 * MS, 0.2 * MS),
        TraceSpan("cudaMemcpyAsync", SpanKind.LAUNCH, 0.26 * MS, 0.29 * MS),
        TraceSpan("cudaDeviceSynchronize", SpanKind.WAIT, 0.5 * MS, 4.1 * MS),
        TraceSpan("aten::mul", SpanKind.HOST, 0.1 * MS, 0.2 * MS, thread=1),
    ),
    4.4 * MS,
    busy_s=3.6 * MS,
    overlapped_s=1.2 * MS,
    copying_s=1.1 * MS,
    hidden_copy_s=1.0 * MS,
    streams=(StreamShare(0, 7, 4, 3.6 * MS), StreamShare(0, 13, 2, 1.2 * MS)),
    kernels=(
        TopKernel("sm90_xmma_gemm_bf16", "kernel", 4, 3.6 * MS, 0.91 * MS),
        TopKernel("Memcpy HtoD (Pinned -> Device)", "copy", 1, 1.1 * MS, 1.1 * MS),
        TopKernel(LONG, "kernel", 12, 0.05 * MS, 0.01 * MS),
    ),
    saved_as="trace.json",
)


def profiled(profile, **others):
    """A timing with this profile."""
    report = dataclasses.replace(
        GPU_BOUND,
        run=Run(profile.length_s or 84.3 * MS, 0.4 * MS, tail_s=0.0, backlog_s=0.0),
        profile=profile,
        flags=(Flag(FlagKind.LOOKED_ON, names=("--profile",)),),
    )
    return dataclasses.replace(report, **others)


# --------------------------------------------------------------------- repeated


def wobble(count, middle_s, share):
    """Samples around a middle that look like noise and are always the same."""
    return tuple(
        middle_s * (1 + share * math.sin(at * 12.9898) * math.cos(at * 78.233))
        for at in range(count)
    )


def repeated(seconds, calls=1, mode=Mode.LATENCY, flags=(), **others):
    """Many runs of a product."""
    facts = {"first_s": 3 * seconds[0], "warmup_calls": 22, "warmup_s": 0.11}
    samples = Samples(mode, tuple(seconds), calls, **{**facts, **others})
    return RepeatedReport(MATMUL, H100, samples, flags)


NOISY = repeated(
    (*wobble(20, 2.1 * MS, 0.05), *wobble(14, 3.4 * MS, 0.04), 21.0 * MS),
    flags=(Flag(FlagKind.UNSTEADY), Flag(FlagKind.OUT_OF_TIME)),
)
# -------------------------------------------------------------------- comparison


def compared(verdict, ratio, ends, *, more=None):
    """Pairs of two codes whose ratio lies there."""
    low, high = ends
    pairs = tuple(
        (base, base * ratio * (1 + (high - low) * math.sin(at * 7.1)))
        for at, base in enumerate(wobble(24, 1.7 * MS, 0.01))
    )
    interval = Interval(low, high, 0.957)
    return ComparisonReport(
        base=Code("y = x @ w", name="base"),
        code=Code("y = torch.compile(f)(x, w)", name="new"),
        setting=H100,
        mode=Mode.THROUGHPUT,
        calls=4,
        runs=240,
        result=Comparison(pairs, ratio, interval, verdict, more),
    )


FASTER = compared(Verdict.FASTER, 0.763, (0.746, 0.781))
# ------------------------------------------------------------- races

RACES = RaceReport(
    Code("with torch.cuda.stream(side):\n    total = x.sum()", cell=11),
    SIMULATED,
    (
        SeenRace(
            "In [11], line 2 reads x on side while In [11], line 1 may still write it",
            "side.wait_stream(torch.cuda.current_stream()) before In [11], line 2",
            CodeLine("In [11], line 1", "x = torch.randn(4096, device='sim')"),
            CodeLine("In [11], line 2", "total = x.sum()"),
        ),
        SeenRace(
            "memory of y is used again while side may still be reading it",
            "y.record_stream(side)",
            later=CodeLine("train.py, line 40"),
        ),
    ),
    "the simulated GPU",
)
READING = TimingReport(
    Code(f"for _ in range(3):\n    {SUM}", cell=20),
    H100,
    Run(1.9 * MS, 1.89 * MS, tail_s=0.0, backlog_s=0.0),
    (Flag(FlagKind.FIRST_USE, device=0),),
    reads=(SyncPoint(".item()", CodeLine("In [20], line 2", SUM), 3, 0.4 * MS),),
)

HOSTILE_RUN = TimingReport(
    Code(HOSTILE, name=HOSTILE, cell=13),
    dataclasses.replace(H100, devices=((0, HOSTILE),), torch_version=WIDE),
    Run(0.05, 0.01, tail_s=0.0, backlog_s=0.0),
    (Flag(FlagKind.LIMITED, 2, (HOSTILE, WIDE), 0),),
    syncs=(SyncPoint(HOSTILE, CodeLine(HOSTILE, HOSTILE), 2, 0.01),),
    profile=profile(
        (
            TraceSpan(HOSTILE, SpanKind.KERNEL, 0.0, 0.01, 0, 7),
            TraceSpan(WIDE, SpanKind.COPY, 0.01, 0.02, 0, 7),
            TraceSpan(LONG, SpanKind.HOST, 0.0, 0.001),
        ),
        0.05,
        kernels=(TopKernel(HOSTILE, "kernel", 1, 0.01, 0.01),),
        saved_as=HOSTILE,
    ),
    failed=None,
)


def _line(number, source, *facts):
    return LineTime(CodeLine(f"In [12], line {number}", source), number, *facts)


BY_LINE = dataclasses.replace(
    profiled(TWO_STREAMS),
    flags=(Flag(FlagKind.LOOKED_ON, names=("--lines",)),),
    lines=(
        _line(2, "for images, labels in loader:", 11, 200 * US, 0.0, 0),
        _line(3, "images = images.cuda(non_blocking=True)", 10, 80 * US, 1.1 * MS, 10),
        _line(4, "loss = step(images, labels)", 10, 310 * US, 900 * US, 40),
        _line(5, "loss.backward()", 10, 520 * US, 2.7 * MS, 80),
        _line(6, "optimizer.step()", 10, 190 * US, 50 * US, 10),
        _line(7, "total += loss.item()", 10, 2.95 * MS, 2 * US, 10),
        LineTime(CROSS_ENTROPY, None, 10, 300 * US, 900 * US, 40),
    ),
)
OPERATORS = dataclasses.replace(
    ON_CPU,
    profile=profile(
        (),
        ON_CPU.run.elapsed_s,
        operators=tuple(
            OperatorTime(f"aten::op{n}", 5 * n, 900 * MS / n**2, 700 * MS / n**2)
            for n in range(1, 11)
        ),
    ),
)

SAMPLES = (
    ("gpu-bound", GPU_BOUND),
    ("launch-bound", LAUNCH_BOUND),
    ("syncs", SYNCING),
    ("tail-and-backlog", TAIL),
    ("failed", FAILED),
    ("simulated", ON_SIMULATOR),
    ("turns", TURNS),
    ("small-work", SMALL_WORK),
    ("reading", READING),
    ("every-flag", dataclasses.replace(GPU_BOUND, flags=EVERY_FLAG)),
    ("profile-two-streams", profiled(TWO_STREAMS)),
    ("repeated-noisy", NOISY),
    ("faster", FASTER),
    ("races", RACES),
    ("lines", BY_LINE),
    ("operators", OPERATORS),
    ("hostile", HOSTILE_RUN),
)
