"""Trainings as people write them, bare and watched; test_trainings.py runs them.

Each function trains once, with the same random numbers each time, and returns all that
has come of it. One rank is made slow where the function says so; what it is late to,
and by how much, is known.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import random
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

from gpumagic.gpu_ranks import flight_recorder, watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SLOW_S, STEPS, WIDTH = 0.05, 6, 32
LATE = {  # the rank that is slow, by case
    "plain": 1,
    "sharded": 2,
    "pipeline": 1,
}

PROFILED = {"pipeline"}


def late(rank: int) -> None:
    """Take longer than the others, on the rank that is to be slow."""
    if dist.get_rank() == rank:
        time.sleep(SLOW_S)


class Slow(nn.Module):
    """Linear, and slow on one rank, on the way there or back."""

    def __init__(self, rank: int, *, backward: bool = False) -> None:
        super().__init__()
        self.layer, self._rank = nn.Linear(WIDTH, WIDTH), rank
        if backward:
            self.register_full_backward_hook(lambda *_: late(rank))
        else:
            self.register_forward_hook(lambda *_: late(rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As a linear layer does."""
        return self.layer(x).relu()


def model_of(rank: int, *, backward: bool = False) -> nn.Sequential:
    """Three layers, of which the one in the middle is slow on a rank."""
    ends = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)
    return nn.Sequential(ends[0], Slow(rank, backward=backward), ends[1])


def batches(count: int = STEPS) -> Iterable[torch.Tensor]:
    """Random input, another on each rank."""
    for _ in range(count):
        yield torch.randn(8, WIDTH)


def plain(mark: Callable[[], None]) -> Any:
    """DDP, a rank of which is slow in backward, beside the exchange of gradients."""
    model = DistributedDataParallel(model_of(LATE["plain"], backward=True))
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in batches():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        mark()
    return model.state_dict()


def sharded(mark: Callable[[], None]) -> Any:
    """FSDP2: each rank holds a part of each layer, and asks for the others' parts."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = model_of(LATE["sharded"])
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in batches():
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        mark()
    return {name: each.to_local() for name, each in model.state_dict().items()}


def pipeline(mark: Callable[[], None]) -> Any:
    """Each rank holds a layer, and sends what comes out to the next one."""
    rank, size = dist.get_rank(), dist.get_world_size()
    layer = nn.Linear(WIDTH, WIDTH)
    layer.register_forward_hook(lambda *_: late(LATE["pipeline"]))
    stage = PipelineStage(layer, rank, size, torch.device("cpu"))
    target = torch.zeros(8, WIDTH)
    schedule = ScheduleGPipe(stage, 2, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    for batch in batches():
        if rank == 0:
            schedule.step(batch)
        elif rank == size - 1:
            schedule.step(target=target)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
        mark()
    return layer.state_dict()


def sends(mark: Callable[[], None]) -> Any:
    """The same, of which no recorder tells."""
    return pipeline(mark)


# ------------------------------------------------------------------- bare and watched


def digest(found: Any) -> str:
    """The same for what is equal to the bit."""
    said = hashlib.sha256()
    rows = found.items() if isinstance(found, dict) else enumerate(found)
    for name, tensor in rows:
        said.update(f"{name} {tuple(tensor.shape)}".encode())
        said.update(tensor.detach().contiguous().numpy().tobytes())
    said.update(torch.get_rng_state().numpy().tobytes())
    said.update(str(random.getstate()).encode())
    return said.hexdigest()


def calls() -> int:
    """How often the job's own group was called."""
    return max(flight_recorder.numbers().get("0", 0), 0)


def once(case: str, watched: Any = None) -> dict[str, Any]:
    """Train, and say what came of it, with what was called in the job's own group."""
    torch.manual_seed(dist.get_rank())
    random.seed(dist.get_rank())
    before = calls()
    mark = (lambda: None) if watched is None else watched.step
    found = globals()[case](mark)
    return {"digest": digest(found), "calls": calls() - before}


def compared(case: str) -> dict[str, Any]:
    """A training without and with `watch()`."""
    threads, groups = (
        set(threading.enumerate()),
        len(dist.distributed_c10d._world.pg_map),
    )
    bare = once(case)
    made = len(dist.distributed_c10d._world.pg_map) - groups
    found = []
    with watch(profile=case in PROFILED) as watched:
        found.append(once(case, watched))
    report = watched.report
    left = len(dist.distributed_c10d._world.pg_map) - groups - 2 * made
    return {
        "bare": bare,
        "watched": found[0],
        "groups_left": left,
        "threads_left": [
            each.name
            for each in set(threading.enumerate()) - threads
            if each.name.startswith("gpumagic")
        ],
        "report": None if report is None else report.to_dict(),
        "text": None if report is None else str(report),
    }


def store_of(rank: int, count: int, folder: Path) -> dist.TCPStore:
    """A server on rank 0, as under torchrun, on a port that is free."""
    port = folder / "port"
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, count, True, wait_for_workers=False)
        (folder / "port.new").write_text(str(store.port))
        (folder / "port.new").rename(port)
        return store
    while not port.exists():
        time.sleep(0.01)
    return dist.TCPStore("127.0.0.1", int(port.read_text()), count, False)


def main(rank: int, count: int, out: str, cases: str) -> None:
    """Run these cases as one of the ranks."""
    folder = Path(out)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=store_of(rank, count, folder),
        rank=rank,
        world_size=count,
        timeout=dt.timedelta(seconds=60),
    )
    for case in cases.split(","):
        said = compared(case)
        (folder / f"{case}.{rank}.json").write_text(json.dumps(said))
    dist.barrier()  # the server goes with rank 0
    with contextlib.suppress(RuntimeError):
        dist.destroy_process_group()
