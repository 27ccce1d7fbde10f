"""What each of several processes runs, on gloo and on simulated GPUs, as JSON."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gpumagic
from gpumagic.simulator.backend.refusals import NotSimulated

DTYPES = torch.float32, torch.bfloat16, torch.int64
MACHINE = "4xh100"
SWITCH_S = 2e-4


def begin(name, backend, rank, size, folder):
    """A group of all processes."""
    dist.init_process_group(
        backend, init_method=f"file://{folder / name}", rank=rank, world_size=size
    )


def plain(found):
    """Tensors as lists, however deep they are."""
    if isinstance(found, torch.Tensor):
        return found.cpu().double().tolist()
    if isinstance(found, (list, tuple)):
        return [plain(each) for each in found]
    return found


def reductions(rank, size, device, pause):
    """All ways to reduce, in every type; averages only where gloo is not asked."""
    found = {}
    for dtype in DTYPES:
        ops = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}
        for word, op in ops.items():
            pause()
            x = torch.arange(1, 7).to(dtype).to(device) + rank
            dist.all_reduce(x, op=op)
            found[f"all_reduce {word} {dtype}"] = x
    x = torch.full((4,), rank + 1.0, device=device)
    if device != "cpu":
        dist.all_reduce(x, op=dist.ReduceOp.AVG)
    else:
        dist.all_reduce(x)
        x /= size
    found["average"] = x
    x = torch.arange(4.0).to(device) * (rank + 1)
    dist.reduce(x, 1)
    found["reduce"] = x if rank == 1 else None
    parts = [torch.full((3,), rank + each, device=device) for each in range(size)]
    out = torch.zeros(3, dtype=torch.int64, device=device)
    dist.reduce_scatter(out, parts)
    found["reduce_scatter"] = out
    out = torch.zeros(2, device=device)
    dist.reduce_scatter_tensor(out, torch.arange(2.0 * size).to(device) + rank)
    found["reduce_scatter_tensor"] = out
    return found


def exchanges(rank, size, device):
    """All ways to hand on what one has."""
    found = {}
    x = torch.full((2, 3), float(rank), device=device)
    dist.broadcast(x.t(), 1)  # not contiguous
    found["broadcast"] = x
    parts = [torch.zeros(2, device=device) for _ in range(size)]
    dist.all_gather(parts, torch.full((2,), rank + 0.5, device=device))
    found["all_gather"] = parts
    whole = torch.zeros(2 * size, device=device)
    dist.all_gather_into_tensor(whole, torch.full((2,), rank + 1.0, device=device))
    found["all_gather_into_tensor"] = whole
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    found["all_gather_object"] = objects
    out = torch.zeros(size, device=device)
    dist.all_to_all_single(out, torch.arange(float(size)).to(device) + 10 * rank)
    found["all_to_all_single"] = out
    return found


def overlapping(rank, device):
    """A collective that is waited for later, beside other work."""
    x = torch.full((1 << 10,), rank + 1.0, device=device)
    y = torch.ones(64, 64, device=device)
    work = dist.all_reduce(x, async_op=True)
    y = y @ y
    work.wait()
    z = x * 2
    future = dist.all_reduce(z, async_op=True).get_future()
    total = future.wait()[0]
    return {"future": total[:3], "beside": (total + y[0, 0])[:3], "alone": y[0, :2]}


def network():
    """The same on all ranks."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 4)
    )


def train(model, rank, device, pause):
    """A few steps, on each rank's own batches."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    random = torch.Generator().manual_seed(rank + 1)
    losses = []
    for step in range(3):
        x = torch.randn(8, 12, generator=random).to(device)
        y = torch.randint(0, 4, (8,), generator=random).to(device)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pause()
        if rank == 0 or step == 2:  # the others do not ask for it
            losses.append(round(loss.item(), 5))
    return losses


def data_parallel(rank, device, pause):
    """DDP, with several buckets."""
    model = nn.parallel.DistributedDataParallel(
        network().to(device), bucket_cap_mb=0.001
    )
    return train(model, rank, device, pause)


def sharded(rank, size, device, pause):
    """FSDP2."""
    mesh = init_device_mesh(torch.device(device).type, (size,))
    model = network().to(device)
    for each in model:
        if isinstance(each, nn.Linear):
            fully_shard(each, mesh=mesh)
    return train(fully_shard(model, mesh=mesh), rank, device, pause)


def everything(rank, size, device, pause=lambda: None):
    """All of it, as plain values."""
    return {
        **{
            name: plain(each)
            for name, each in {
                **reductions(rank, size, device, pause),
                **exchanges(rank, size, device),
            }.items()
        },
        "DDP": data_parallel(rank, device, pause),
        "FSDP2": sharded(rank, size, device, pause),
    }


def simulated(name, rank, size, folder, pause=lambda: None):
    """All of it on simulated GPUs, with what their clocks say."""
    with gpumagic.simulate(MACHINE) as box:
        torch.sim.set_device(rank)
        begin(name, "nccl", rank, size, folder)
        values = everything(rank, size, f"sim:{rank}", pause)
        later = plain([*overlapping(rank, f"sim:{rank}").values()])
        dist.barrier()
        ends = [each.end_ns for each in box.collectives if len(each.ranks) == size]
        found = {
            "values": values,
            "later": later,
            "clock_ns": box.machine.scheduler.now_ns,
            "ends_ns": ends,
            "names": sorted({each.name for each in box.collectives}),
            "races": len(box.races.races),
        }
        dist.destroy_process_group()
    return found


def straggling(rank, size, folder):
    """One GPU of the machine is slow; CPU tensors go by gloo beside them."""
    with gpumagic.simulate(MACHINE) as box:
        torch.sim.set_device(rank)
        begin("slow", None, rank, size, folder)
        x = torch.ones(512, 512, device=f"sim:{rank}")
        took = []
        for by in (1, 4):
            with box.slow(gpu=1, by=by):
                for _ in range(20):
                    x = x @ x / 512
                with box.trace() as trace:
                    trace.begin()
                    dist.all_reduce(x)
                    torch.sim.synchronize()
                    trace.end()
            last = box.collectives[-1]
            took.append(last.end_ns - last.start_ns)
        spans = [span.kind.value for span in trace.trace().spans if "nccl" in span.name]
        on_host, parts = torch.full((2,), rank + 1.0), [torch.ones(2)] * size
        dist.all_reduce(on_host)
        dist.gather(on_host, parts if rank == 0 else None)
        with pytest.raises(NotSimulated, match="no gather among GPUs"):
            dist.gather(x, [x] * size if rank == 0 else None)
        dist.destroy_process_group()
    return {"took_ns": took, "spans": spans, "host": plain([on_host, *parts])}


def main(rank, size, folder):
    """Everything, one after another."""
    folder = Path(folder)
    begin("gloo", "gloo", rank, size, folder)
    expected = everything(rank, size, "cpu")
    dist.destroy_process_group()
    idle = simulated("idle", rank, size, folder)
    stop = threading.Event()
    # The one that is busy waits for the other at each call, and need not for long.
    sys.setswitchinterval(SWITCH_S)
    threading.Thread(target=lambda: [sum(range(999)) for _ in iter(stop.is_set, True)]
                     if rank == 0 else None).start()  # fmt: skip
    waits = iter([0.002, 0.02, 0.0] * 1000)
    pause = (lambda: threading.Event().wait(next(waits))) if rank == 1 else lambda: None
    busy = simulated("busy", rank, size, folder, pause)
    stop.set()
    straggler = straggling(rank, size, folder)
    found = {"expected": expected, "idle": idle, "busy": busy, "slow": straggler}
    (folder / f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
