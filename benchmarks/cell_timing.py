"""What timing costs, and what it says, beside its peers: all in one interleaved run.

Three questions. What is an empty cell measured as? What does the harness add to each
call when an empty one is repeated? Does our median agree with that of torch's own Timer
on bodies of 1 ms and of 10 ms? Where there is no GPU, the bodies keep the CPU busy.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import math
import statistics
import time
import timeit
from typing import TYPE_CHECKING, Any

import torch
from IPython.core.interactiveshell import InteractiveShell
from torch.utils.benchmark import Timer

from benchmarks.cell_floor import wall_time
from benchmarks.runner import Comparison, Subject, side_by_side
from gpumagic import cuda_sync_time

if TYPE_CHECKING:
    from collections.abc import Callable

    Body = Callable[[], object]

_CALLS = 10_000  # of nothing, in one sample
_BUDGET_S = 0.2
_BODIES_S = {"1 ms": 0.001, "10 ms": 0.01}
_OURS, _TORCH = "gpumagic's repeat", "torch's Timer"


def run(rounds: int = 10) -> Comparison:
    """Time nothing, nothing often, and two bodies; the notes say how near we come."""
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "gpumagic")
    bodies = {name: _body(seconds) for name, seconds in _BODIES_S.items()}
    cupy = _cupy_benchmark()
    subjects: dict[str, Subject] = {
        "%%cuda_sync_time, empty cell": lambda: _our_cell(shell),
        "%%time, empty cell": lambda: wall_time(shell),
        **_for_each_call(),
    }
    for name, body in bodies.items():
        subjects |= _medians(name, body, cupy)
    found = side_by_side("cell_timing", subjects, rounds=rounds)
    return dataclasses.replace(found, notes=_notes(found, cupy))


# ---------------------------------------------------------------- empty


def _our_cell(shell: InteractiveShell) -> float:
    """What `%%cuda_sync_time` says of an empty body."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        report: Any = shell.run_cell_magic("cuda_sync_time", "-o -q", "pass\n")
    return float(report.seconds)


def _for_each_call() -> dict[str, Subject]:
    """Seconds that each harness takes for one call of a function that does nothing."""
    timer = Timer("nothing()", globals={"nothing": _nothing})

    def ours() -> float:
        report = cuda_sync_time.repeat(_nothing, mode="throughput", samples=10)
        return report.samples.median_s

    return {
        f"{_OURS}, empty call": ours,
        "timeit, empty call": lambda: timeit.timeit(_nothing, number=_CALLS) / _CALLS,
        f"{_TORCH}, empty call": lambda: float(timer.timeit(_CALLS).median),
    }


def _nothing() -> None:
    """The body of which everything that is measured is the harness."""


# ---------------------------------------------------------------- bodies


def _medians(name: str, body: Body, cupy: Any | None) -> dict[str, Subject]:
    """The median of a body by each harness, in the same time."""
    timer = Timer("body()", globals={"body": body})

    def ours() -> float:
        return cuda_sync_time.repeat(body, budget_s=_BUDGET_S).samples.median_s

    def torchs() -> float:
        return float(timer.blocked_autorange(min_run_time=_BUDGET_S).median)

    subjects: dict[str, Subject] = {
        f"{_OURS}, {name}": ours,
        f"{_TORCH}, {name}": torchs,
    }
    if cupy is not None:
        subjects[f"cupyx.profiler.benchmark, {name}"] = lambda: _cupys(cupy, body)
    return subjects


def _body(seconds: float) -> Body:
    """Work of about this length, on the GPU if there is one."""
    if not torch.cuda.is_available():
        return lambda: _spin(seconds)
    square = torch.randn(1024, 1024, device="cuda")
    out = torch.empty_like(square)

    def multiply(times: int) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(times):
            torch.mm(square, square, out=out)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    multiply(1000)  # to the full clock
    times = max(1, math.ceil(seconds / (multiply(100) / 100)))

    def body() -> None:
        for _ in range(times):
            torch.mm(square, square, out=out)

    return body


def _spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


# ---------------------------------------------------------------- CuPy


def _cupy_benchmark() -> Any | None:
    """CuPy's own way, by events on the current stream; None where it cannot be had."""
    if not torch.cuda.is_available():
        return None
    with contextlib.suppress(ImportError):
        return importlib.import_module("cupyx.profiler").benchmark
    return None


def _cupys(benchmark: Any, body: Body) -> float:
    taken = benchmark(body, n_warmup=3, n_repeat=100, max_duration=_BUDGET_S)
    return statistics.median(map(float, taken.gpu_times[0]))


# ---------------------------------------------------------------- what came of it


def _notes(found: Comparison, cupy: Any | None) -> dict[str, Any]:
    medians = found.medians_s
    agreement = {
        f"{_OURS} over {_TORCH}, {name}": round(
            medians[f"{_OURS}, {name}"] / medians[f"{_TORCH}, {name}"], 4
        )
        for name in _BODIES_S
    }
    where = "the GPU" if torch.cuda.is_available() else "the CPU, which spins"
    there = "compared" if cupy is not None else "not here, or without a GPU"
    return {**agreement, "bodies run on": where, "CuPy": there}
