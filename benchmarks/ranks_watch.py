"""What `gpu_ranks.watch()` costs a training on several ranks, beside a bare loop.

Steps of some 10 ms, with two collectives each, on two processes of this machine.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.runner import Comparison

if TYPE_CHECKING:
    from collections.abc import Callable

RANKS, STEPS, CALLS = 2, 40, 2
STEP_S = 0.01
BARE, WATCHED, PROFILED = "bare loop", "gpu_ranks.watch()", "torch.profiler"
_READS = 1_000


def run(rounds: int = 30) -> Comparison:
    """Time the same steps bare, watched, and profiled whole, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        job = [__file__, str(rounds), str(found)]
        subprocess.run(
            [*torchrun, "--nproc-per-node", str(RANKS), *job],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        said = json.loads(found.read_text())
    return Comparison("ranks_watch", said["samples_s"], said["notes"])


def _job(rounds: int, file: Path) -> None:
    """Run on each rank; rank 0 writes down what was found."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    subjects = {BARE: _bare, WATCHED: _watched, PROFILED: _profiled}
    samples_s: dict[str, list[float]] = {name: [] for name in subjects}
    around_s: list[float] = []
    step = _step(torch, dist)
    for subject in subjects.values():
        subject(step)
    for turn in range(rounds):
        names = list(subjects)
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            dist.barrier()
            began_s = time.perf_counter()
            steps_s = subjects[name](step)
            took_s = time.perf_counter() - began_s
            samples_s[name].append(statistics.median(steps_s))
            if name == WATCHED:
                around_s.append(took_s - sum(steps_s))
    if dist.get_rank() == 0:
        notes = {
            "ranks": RANKS,
            "collectives of a step": CALLS,
            "before and after the block, s": statistics.median(around_s),
            "to read the recorder, s a collective": _reading_s(torch, dist),
            "step(), s": _marking_s(),
            "a sign of life, s of the processor, each second": _sign_s(),
        }
        file.write_text(json.dumps({"samples_s": samples_s, "notes": notes}))
    else:
        _reading_s(torch, dist)
        _marking_s()
        _sign_s()


def _step(torch: Any, dist: Any) -> Callable[[], None]:
    """Some 10 ms of small operations, and what ranks do together."""
    a, gradient = torch.rand(64, 64), torch.rand(1000)

    def work(count: int) -> None:
        for _ in range(count):
            torch.mm(a, a)

    began_s = time.perf_counter()
    work(1000)
    count = int(1000 * STEP_S / (time.perf_counter() - began_s))

    def step() -> None:
        for _ in range(CALLS):
            work(count // CALLS)
            dist.all_reduce(gradient)

    return step


def _bare(step: Callable[[], None]) -> list[float]:
    return _timed(step, lambda: None)


def _watched(step: Callable[[], None]) -> list[float]:
    from gpumagic import gpu_ranks

    with gpu_ranks.watch() as watched:
        return _timed(step, watched.step)


def _profiled(step: Callable[[], None]) -> list[float]:
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        return _timed(step, lambda: None)


def _timed(step: Callable[[], None], marked: Callable[[], None]) -> list[float]:
    times_s = []
    for _ in range(STEPS):
        began_s = time.perf_counter()
        step()
        marked()
        times_s.append(time.perf_counter() - began_s)
    return times_s


def _reading_s(torch: Any, dist: Any) -> float:
    from gpumagic.gpu_ranks.clocks import now_ns
    from gpumagic.gpu_ranks.collectives_seen import Seen

    seen, gradient = Seen(now_ns(), None, most=_READS), torch.rand(10)
    for _ in range(_READS):
        dist.all_reduce(gradient)
    began_s = time.perf_counter()
    seen.read()
    return (time.perf_counter() - began_s) / _READS


def _marking_s() -> float:
    from gpumagic import gpu_ranks

    with gpu_ranks.watch() as watched:
        began_s = time.perf_counter()
        for _ in range(_READS):
            watched.step()
        return (time.perf_counter() - began_s) / _READS


def _sign_s() -> float:
    from gpumagic.devices.driver import open_driver
    from gpumagic.gpu_ranks.gathering import Thread, meet

    thread = Thread(meet(30.0), hang_s=60.0, driver=open_driver)
    thread.look()
    began_s = time.thread_time()
    for _ in range(_READS):
        thread.look()
    return (time.thread_time() - began_s) / _READS


if __name__ == "__main__":
    _job(int(sys.argv[1]), Path(sys.argv[2]))
