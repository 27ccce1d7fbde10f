"""Ranks that watch themselves: trainings as people write them, and what goes wrong.

Each case is a function that runs on all ranks, and writes what a rank has found into a
file of its name. test_watch.py runs them, one after the other in one group: to start it
takes longest.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import os
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

from gpumagic.gpu_ranks import gathering, on_rank, seen, watch

if TYPE_CHECKING:
    from collections.abc import Callable

SLOW_S, STEPS, WIDTH = 0.05, 6, 32
LATE = {"plain": 1, "sharded": 2, "pipeline": 1}  # the rank that is slow, by training
_TENSOR = torch.ones(1000)


def note(folder: Path, case: str, report: Any = None, **more: Any) -> None:
    """Write down what this rank knows of a case."""
    said = {"report": None, "text": None} | more
    if report is not None:
        said |= {"report": report.to_dict(), "text": str(report)}
    (folder / f"{case}.{dist.get_rank()}.json").write_text(json.dumps(said))


def late(rank: int) -> None:
    """Take longer than the others, on the rank that is to be slow."""
    if dist.get_rank() == rank:
        time.sleep(SLOW_S)


# ------------------------------------------------------------------------ trainings


class Slow(nn.Module):
    """Linear, and slow on one rank, on the way there or back."""

    def __init__(self, rank: int, *, backward: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
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


def trained(model: nn.Module, mark: Callable[[], None]) -> None:
    """A few steps, with other random input on each rank."""
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(8, WIDTH)).square().mean().backward()
        optimizer.step()
        mark()


def plain(mark: Callable[[], None]) -> Any:
    """DDP, a rank of which is slow in backward, beside the exchange of gradients."""
    model = DistributedDataParallel(model_of(LATE["plain"], backward=True))
    trained(model, mark)
    return model.state_dict()


def sharded(mark: Callable[[], None]) -> Any:
    """FSDP2: each rank holds a part of each layer, and asks for the others' parts."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = model_of(LATE["sharded"])
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    trained(model, mark)
    return {name: each.to_local() for name, each in model.state_dict().items()}


def pipeline(mark: Callable[[], None]) -> Any:
    """Each rank holds a layer, and sends what comes out to the next one."""
    rank, size = dist.get_rank(), dist.get_world_size()
    layer = nn.Linear(WIDTH, WIDTH)
    layer.register_forward_hook(lambda *_: late(LATE["pipeline"]))
    stage = PipelineStage(layer, rank, size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    for _ in range(STEPS):
        given = (torch.randn(8, WIDTH),) if rank == 0 else ()
        target = {"target": torch.zeros(8, WIDTH)} if rank == size - 1 else {}
        schedule.step(*given, **target)
        optimizer.step()
        optimizer.zero_grad()
        mark()
    return layer.state_dict()


sends = pipeline  # of which no recorder tells


def digest(found: dict[str, torch.Tensor]) -> str:
    """The same for what is equal to the bit."""
    said = hashlib.sha256()
    for name, tensor in found.items():
        said.update(f"{name} {tuple(tensor.shape)}".encode())
        said.update(tensor.detach().contiguous().numpy().tobytes())
    said.update(torch.get_rng_state().numpy().tobytes())
    said.update(str(random.getstate()).encode())
    return said.hexdigest()


def once(case: str, mark: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Train, and say what came of it, with what was called in the job's own group."""
    torch.manual_seed(dist.get_rank())
    random.seed(dist.get_rank())
    before = max(seen.numbers().get("0", 0), 0)
    found = globals()[case](mark)
    return {"digest": digest(found), "calls": seen.numbers()["0"] - before}


def compared(folder: Path, case: str) -> None:
    """A training without and with `watch()`."""
    groups, threads = dist.distributed_c10d._world.pg_map, {*threading.enumerate()}
    first = len(groups)
    bare = once(case)
    made = len(groups) - first
    with watch(profile=case == "pipeline") as watched:
        again = once(case, watched.step)
    left = {each.name for each in {*threading.enumerate()} - threads}
    note(
        folder,
        case,
        watched.report,
        bare=bare,
        watched=again,
        groups_left=len(groups) - first - 2 * made,
        threads_left=[each for each in left if each.startswith("gpumagic")],
    )


# --------------------------------------------------------------- collectives alone


def steps(count: int = 8, calls: int = 2) -> Any:
    """Nearly the same work on all ranks, and what they do together."""
    for step in range(count):
        time.sleep(0.01)
        yield step
        for _ in range(calls):
            dist.all_reduce(_TENSOR)


def slow(folder: Path) -> None:
    """One rank is late in each step."""
    with watch() as watched:
        for _ in steps():
            late(2)
    watched.save(folder / f"run.{dist.get_rank()}.json")
    note(folder, "slow", watched.report)


def one(folder: Path) -> None:
    """One rank is late to one collective."""
    with watch() as watched:
        for step in steps(calls=1):
            if dist.get_rank() == 1 and step == 5:
                time.sleep(10 * SLOW_S)
    note(folder, "one", watched.report)


def many(folder: Path) -> None:
    """More collectives than the recorder keeps."""
    with watch() as watched:
        for _ in range(350):
            dist.all_reduce(_TENSOR)
    note(folder, "many", watched.report)


def apart(folder: Path) -> None:
    """One rank is on another machine, with another clock."""
    real = seen.own_clock
    if dist.get_rank() == 3:
        gathering.own_clock = on_rank.own_clock = lambda: "another machine"
    with watch() as watched:
        for _ in steps():
            late(2)
    gathering.own_clock = on_rank.own_clock = real
    note(folder, "apart", watched.report)


def hangs(folder: Path) -> None:
    """One rank does not come to a collective for long."""
    with watch(hang_s=1.0) as watched:
        dist.all_reduce(_TENSOR)
        if dist.get_rank() == 2:
            time.sleep(2.5)
        dist.all_reduce(_TENSOR)
    note(folder, "hangs", watched.report)


def fail() -> None:
    """Do what ranks do whose data is wrong."""
    raise ValueError("no such batch")


def fails_within(folder: Path) -> None:
    """One rank raises before a collective that the others wait in."""
    job = dist.new_group(timeout=dt.timedelta(seconds=2))
    dist.barrier(group=job)
    error = None
    try:
        with watch(hang_s=1.0, patience_s=5) as watched:
            if dist.get_rank() == 1:
                fail()
            dist.all_reduce(_TENSOR, group=job)
    except (ValueError, RuntimeError) as raised:
        error = type(raised).__name__
    note(folder, "fails_within", watched.report, error=error)


def killed(folder: Path) -> None:
    """One rank goes without a word, while the others wait for it; the last case."""
    rank, found = dist.get_rank(), []
    with contextlib.suppress(RuntimeError), watch(patience_s=4) as watched:
        found.append(watched)
        dist.all_reduce(_TENSOR)
        time.sleep(1)
        if rank == 3:
            os._exit(0)
        if rank != 0:
            dist.all_reduce(_TENSOR)
    note(folder, "killed", found[0].report)


# ------------------------------------------------------------------------- the job


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
    if rank == 0:
        os.dup2(os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT), 2)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=store_of(rank, count, folder),
        rank=rank,
        world_size=count,
        timeout=dt.timedelta(seconds=60),
    )
    for case in cases.split(","):
        if case in LATE or case == "sends":
            compared(folder, case)
        else:
            globals()[case](folder)
    if rank != 0:
        os._exit(0)  # the group has lost a rank: to leave it takes long
