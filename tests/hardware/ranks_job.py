"""Ranks with NCCL that watch themselves: a job for torchrun."""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import gpumagic
from gpumagic.gpu_ranks.seen import flight

OUT = Path(sys.argv[1])
ODD = 1  # slow, late and large in turn
rank = int(os.environ["RANK"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")


def note(case, watched, **more):
    """Write down what rank 0 has been told."""
    if rank == 0:
        said = {"report": watched.report.to_dict(), "text": str(watched.report), **more}
        (OUT / f"{case}.json").write_text(json.dumps(said))


def late():
    """Come to a collective when the others have waited for seconds."""
    time.sleep(4)


x = torch.ones(1 << 20, device="cuda")
dist.all_reduce(x)
torch.cuda.synchronize()

with gpumagic.gpu_ranks.watch() as watched:
    for _ in range(5):
        if rank == ODD:
            torch.cuda._sleep(200_000_000)
        dist.all_reduce(x)
        watched.step()
    torch.cuda.synchronize()
time.sleep(1)  # NCCL's own thread notes ends, ten times a second
note("slow", watched, flight=flight())

with gpumagic.gpu_ranks.watch(memory=True) as watched:
    more = 3 if rank == ODD else 1
    kept = torch.empty(more << 30, dtype=torch.uint8, device="cuda")
    dist.all_reduce(x)
    torch.cuda.synchronize()
note("memory", watched)
del kept

with gpumagic.gpu_ranks.watch(hang_s=1.0) as watched:
    dist.all_reduce(x)
    if rank == ODD:
        late()
    dist.all_reduce(x)
    torch.cuda.synchronize()
note("late", watched)
dist.destroy_process_group()
