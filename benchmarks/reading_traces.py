"""What reading a trace costs, of one rank and of eight, beside HolisticTraceAnalysis.

The trace is made here: steps of a training job with its operators, launches, kernels
and collectives, about 100 MB unpacked. Each reads it in a process of its own, from its
start to its answers: ours draws them as well; HTA works out the same sums.

HTA is measured where it is installed: `pip install HolisticTraceAnalysis`.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.runner import Comparison, side_by_side

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.runner import Subject

RANKS = 8
STEPS = 330
OPERATORS = 300  # in a step; each launches one kernel
_CLOCK = "import json, time; start = time.perf_counter()\n"
_SAY = (
    "\nimport os, resource"
    "\nmost = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024"
    "\nprint(json.dumps([time.perf_counter() - start, most, sum(os.times()[:4])]))"
)
_OURS = "from gpumagic.gpu_open import read; read({paths}).drawing().mimebundle()"
_HTA = """
import logging; logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={files}, trace_dir={folder!r})
analysis.get_temporal_breakdown(visualize=False)
analysis.get_comm_comp_overlap(visualize=False)
analysis.get_gpu_kernel_breakdown(visualize=False)
"""
_COMMAND = [sys.executable, "-c"]


def run(rounds: int = 3) -> Comparison:
    """Time each in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = [
            written(folder / f"rank-{rank}.json.gz", rank) for rank in range(RANKS)
        ]
        one, all_of_them = repr(str(files[0])), ", ".join(repr(str(f)) for f in files)
        used: dict[str, tuple[float, float]] = {}
        subjects = {
            "gpu_open, one rank": _fresh(_OURS.format(paths=one), used, "one"),
            "gpu_open, eight ranks": _fresh(
                _OURS.format(paths=all_of_them), used, "eight"
            ),
        }
        if importlib.util.find_spec("hta"):
            for what, count in (("one rank", 1), ("eight ranks", RANKS)):
                named = {rank: str(files[rank]) for rank in range(count)}
                code = _HTA.format(files=named, folder=name)
                subjects[f"HTA, {what}"] = _fresh(code, used, f"HTA {count}")
        unpacked = len(gzip.decompress(files[0].read_bytes()))
        found = side_by_side("reading_traces", subjects, rounds=rounds, warmups=0)
    notes: dict[str, Any] = {
        "unpacked_mb": round(unpacked / 1e6),
        "events": STEPS * OPERATORS * 4,
        "most_memory_mb": {name: round(peak) for name, (peak, _) in used.items()},
        "processor_s": {name: round(took, 2) for name, (_, took) in used.items()},
    }
    return replace(found, notes=notes)


def _fresh(code: str, used: dict[str, tuple[float, float]], name: str) -> Subject:
    def subject() -> float:
        done = subprocess.run(
            [*_COMMAND, _CLOCK + code + _SAY],
            capture_output=True,
            text=True,
            check=True,
        )
        seconds, most, took = json.loads(done.stdout.splitlines()[-1])
        used[name] = float(most), float(took)
        return float(seconds)

    return subject


def written(path: Path, rank: int) -> Path:
    """Write the trace of one rank."""
    trace = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": RANKS},
        "deviceProperties": [{"id": rank, "name": "NVIDIA H100", "totalGlobalMem": 0}],
        "traceEvents": list(_events(rank)),
    }
    with gzip.open(path, "wt", compresslevel=1) as file:
        json.dump(trace, file)
    return path


def _events(rank: int) -> Iterator[dict[str, Any]]:
    at_us, correlation = 1_700_000_000_000_000.0, 0
    for step in range(STEPS):
        began_us, free_us = at_us, at_us
        for number in range(OPERATORS):
            correlation += 1
            took_us = 12.0 + (number * 7 + step + rank) % 23
            took_us += 60 * _communicates(number)
            yield _host("cpu_op", f"aten::op_{number % 40}", at_us, 9.5, correlation)
            yield _host("cpu_op", "aten::_inner", at_us + 1, 8.0, correlation)
            yield _host("cuda_runtime", "cudaLaunchKernel", at_us + 4, 4.5, correlation)
            start_us = max(at_us + 12, free_us)
            yield _kernel(rank, number, (start_us, took_us), correlation)
            free_us = start_us + took_us + 1
            at_us += 11
        at_us = max(at_us, free_us) + 500
        yield _host(
            "user_annotation", f"ProfilerStep#{step}", began_us, at_us - began_us
        )


def _host(
    category: str, name: str, at_us: float, took_us: float, correlation: int = 0
) -> dict[str, Any]:
    args = {"External id": correlation, "correlation": correlation, "Ev Idx": 1}
    event = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1}
    return event | {"ts": at_us, "dur": took_us, "args": args}


def _kernel(
    rank: int, number: int, span: tuple[float, float], correlation: int
) -> dict[str, Any]:
    name = f"void at::native::vectorized_elementwise_kernel<4, op_{number % 40}>(int)"
    args: dict[str, Any] = {"device": rank, "stream": 7, "correlation": correlation}
    args |= {"context": 1, "queued": 0, "registers per thread": 32, "shared memory": 0}
    args |= {"grid": [512, 1, 1], "block": [128, 1, 1]}
    if _communicates(number):
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long)"
        args |= {"Collective name": "allreduce", "In msg nelems": 1 << 20}
        args |= {"dtype": "Float", "Group size": RANKS, "Process Group Name": "0"}
        args |= {"stream": 20}
    event = {"ph": "X", "cat": "kernel", "name": name, "pid": rank}
    return event | {"tid": args["stream"], "ts": span[0], "dur": span[1], "args": args}


def _communicates(number: int) -> bool:
    return number % 30 == 29
