"""Small recordings as files: traces of ranks that train together, and snapshots."""

from __future__ import annotations

import gzip
import json
import pickle

from tests.gpu_open.test_snapshot_file import newest
from tests.gpu_open.test_trace_file import kernel, span

GEMM, NCCL = "ampere_sgemm_128x64_tn", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
STEPS, _STEP_US, _MOVES_US = 4, 1000, 50


def entries(own_us=500, last_us=500, steps=STEPS, world_size=2):
    """Steps of a product, and of a collective that ends when the last rank has come."""
    for step in range(steps):
        at = 10 + step * _STEP_US
        ends = at + last_us + _MOVES_US
        for number, name in enumerate(("aten::mm", "nccl:all_reduce")):
            call = 2 * step + number
            yield span("cpu_op", name, at - 10 + number, 1)
            launch = "cudaLaunchKernel"
            yield span("cuda_runtime", launch, at - 9 + number, 1, correlation=call)
        yield kernel(GEMM, at, own_us, correlation=2 * step)
        told = {"Collective name": "allreduce", "Group size": world_size}
        told |= {"Process Group Name": "0", "In msg nelems": 64, "dtype": "Float"}
        told |= {"stream": 20, "correlation": 2 * step + 1}
        yield kernel(NCCL, at + own_us, ends - at - own_us, **told)
        yield span("user_annotation", f"ProfilerStep#{step}", at - 10, _STEP_US - 5)


def write_trace(path, *, rank=None, world_size=2, padding=0, **more):
    """A trace of one rank, packed where the name says so; padding cannot be packed."""
    trace = {"schemaVersion": 1, "displayTimeUnit": "ms", "baseTimeNanoseconds": 0}
    if rank is not None:
        told = {"backend": "nccl", "rank": rank, "world_size": world_size}
        trace["distributedInfo"] = told
    trace["traceEvents"] = [*entries(world_size=world_size, **more)]
    text = json.dumps(trace | {"padding": "x" * padding}).encode()
    packed = gzip.compress(text, 0 if padding else 6)
    path.write_bytes(packed if path.suffix == ".gz" else text)
    return path


def write_job(folder, count=3, slow=None, **more):
    """The traces of ranks, one of which may take longer for its own work."""
    folder.mkdir(exist_ok=True)
    last_us = 500 if slow is None else 800
    return [
        write_trace(
            folder / f"rank{rank}.json.gz",
            rank=rank,
            world_size=count,
            own_us=last_us if rank == slow else 500,
            last_us=last_us,
            **more,
        )
        for rank in range(count)
    ]


def write_snapshot(path):
    """A snapshot with one request that failed."""
    path.write_bytes(pickle.dumps(newest()))
    return path
