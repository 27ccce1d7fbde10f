"""A job of torch.distributed that watches itself; test_watch.py runs it.

Each case writes what rank 0 has found into a file of its name, beside what all ranks
may be asked afterwards. It is torchrun's own agent that starts the ranks and ends them,
but it forks them: torch, and what DDP imports, are imported once.

`python -m tests.gpu_ranks.watched_job FOLDER RANKS:CASES ...` is the agent, for one job
after the other.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import gc
import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch._dynamo  # DDP imports it
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from gpumagic.gpu_ranks import flight_recorder, meeting, watch, watching

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

OUT = Path(sys.argv[1])
SLOW_S = 0.04
AHEAD_NS = 3_000_000_000
_TENSOR = torch.ones(1000)


def steps(count: int = 8, calls: int = 2) -> Any:
    """Nearly the same work on all ranks, and what they do together."""
    for step in range(count):
        time.sleep(0.01)
        yield step
        for _ in range(calls):
            dist.all_reduce(_TENSOR)


def note(case: str, watched: Any, **more: Any) -> None:
    """Write down what this rank knows of a case."""
    rank = dist.get_rank()
    report = watched.report
    said = {"report": None if report is None else report.to_dict(), **more}
    (OUT / f"{case}.{rank}.json").write_text(json.dumps(said))


def fail() -> None:
    """Do what ranks do whose data is wrong."""
    raise ValueError("no such batch")


def even(rank: int) -> None:
    """No rank is slow."""
    groups = len(dist.distributed_c10d._world.pg_map)
    with watch() as watched:
        for _ in steps():
            watched.step()
    watched.save(OUT / f"run.{rank}.json")
    left = len(dist.distributed_c10d._world.pg_map) - groups
    note("even", watched, groups_left=left)


def slow(rank: int) -> None:
    """One rank is slow in each step."""
    with watch(memory=True) as watched:
        for _ in steps():
            if rank == 2:
                time.sleep(SLOW_S)
            watched.step()
    note("slow", watched)


def one(rank: int) -> None:
    """One rank is late to one collective."""
    with watch() as watched:
        for step in steps(calls=1):
            if rank == 1 and step == 5:
                time.sleep(10 * SLOW_S)
    note("one", watched)


def many(_: int) -> None:
    """More collectives than the recorder keeps."""
    with watch() as watched:
        for _ in range(35):
            for _ in range(10):
                dist.all_reduce(_TENSOR)
    note("many", watched)


def ahead(rank: int) -> None:
    """One rank's clock is three seconds ahead, and on another machine."""
    real_now, real_created = meeting.now_ns, flight_recorder._created_ns
    real_clock = meeting.own_clock
    if rank == 3:
        ahead_ns = lambda: real_now() + AHEAD_NS  # noqa: E731
        meeting.now_ns = watching.now_ns = ahead_ns
        flight_recorder._created_ns = lambda each: real_created(each) + AHEAD_NS
        meeting.own_clock = watching.on_rank.own_clock = lambda: "another machine"
    with watch() as watched:
        for _ in steps():
            if rank == 2:
                time.sleep(SLOW_S)
    offsets = [
        each.get("offset_ns")
        for each in (watched.to_dict() or {"answers": []})["answers"]
    ]
    note("ahead", watched, offsets=offsets)
    meeting.now_ns = watching.now_ns = real_now
    flight_recorder._created_ns, meeting.own_clock = real_created, real_clock
    watching.on_rank.own_clock = real_clock


def unrecorded(rank: int) -> None:
    """A torch without a recorder."""
    real, watching.is_recorded = watching.is_recorded, lambda: False
    with watch() as watched:
        for _ in steps():
            if rank == 2:
                time.sleep(SLOW_S)
    watching.is_recorded = real
    note("unrecorded", watched)


def hangs(rank: int) -> None:
    """One rank does not come to a collective for long."""
    with watch(hang_s=1.0) as watched:
        dist.all_reduce(_TENSOR)
        if rank == 2:
            time.sleep(2.5)
        dist.all_reduce(_TENSOR)
    note("hangs", watched)


def fails_within(rank: int) -> None:
    """One rank raises before a collective that the others wait in."""
    job = dist.new_group(timeout=dt.timedelta(seconds=2))
    dist.barrier(group=job)
    error = watched = None
    try:
        with watch(hang_s=1.0, patience_s=5) as watched:
            if rank == 1:
                fail()
            dist.all_reduce(_TENSOR, group=job)
    except (ValueError, RuntimeError) as raised:
        error = type(raised).__name__
    note("fails_within", watched, error=error)


def killed(rank: int) -> None:
    """One rank is killed; the launcher tells the others to end, too early."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    began_s, found = time.monotonic(), []
    with contextlib.suppress(RuntimeError), watch(patience_s=4) as watched:
        found.append(watched)
        dist.all_reduce(_TENSOR)
        time.sleep(1)
        if rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if rank != 0:
            dist.all_reduce(_TENSOR)
    note("killed", found[0], took_s=time.monotonic() - began_s)


def main(cases: list[str], all_forked: Barrier) -> None:
    """Run some cases as one of the ranks.

    No rank speaks with the agent's store before all are forked: a thread of the store
    looks up who connects, and a child forked meanwhile waits in glibc for ever.
    """
    all_forked.wait()
    dist.init_process_group("gloo", timeout=dt.timedelta(seconds=60))
    for case in cases:
        globals()[case](dist.get_rank())


def launch(ranks: int, cases: list[str]) -> None:
    """Start so many ranks on this machine, as `torchrun --standalone` does."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        start_method="fork",
    )
    all_forked = multiprocessing.get_context("fork").Barrier(ranks)
    elastic_launch(config, main)(cases, all_forked)


if __name__ == "__main__":
    gc.freeze()
    for job in sys.argv[2:]:
        its_ranks, its_cases = job.split(":")
        with contextlib.suppress(ChildFailedError):  # which is killed, or raises
            launch(int(its_ranks), its_cases.split(","))
