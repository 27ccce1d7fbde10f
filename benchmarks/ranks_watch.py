"""What `gpu_ranks.watch()` costs a training on several ranks, beside a bare loop.

Steps of some 10 ms, with two collectives each, on two processes of this machine. Blocks
of bare and of watched steps take turns in the same processes, in an order that is new
each time, and each watched one is held to the bare one beside it. What counts is time
of the processor, of all threads of a process: others on the machine take none of it.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.runner import Comparison, verdict

if TYPE_CHECKING:
    from collections.abc import Callable

RANKS, STEPS, CALLS = 2, 150, 2  # so many steps that a sign of life falls in each block
STEP_S, LIMIT = 0.01, 0.01
BARE, WATCHED, PROFILED = "bare loop", "gpu_ranks.watch()", "torch.profiler"
_PROFILED_EACH, _PROFILED_STEPS = 8, 20  # it takes long to write a profile down
_READS = 1_000


def run(rounds: int = 30) -> Comparison:
    """Time the same steps bare, watched, and now and then profiled whole, in turns."""
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
    samples: dict[str, list[_Block]] = {name: [] for name in subjects}
    dice = random.Random(0)  # noqa: S311 -- no secret, and the same on all ranks
    step = _step(torch, dist)
    for subject in subjects.values():
        subject(step)
    for turn in range(rounds):
        names = [BARE, WATCHED, *([PROFILED] if turn % _PROFILED_EACH == 0 else [])]
        dice.shuffle(names)
        for name in names:
            dist.barrier()
            samples[name].append(subjects[name](step))
    if dist.get_rank() == 0:
        notes = {
            "ranks": RANKS,
            "collectives of a step": CALLS,
            **_told(samples),
            "to read the recorder, s a collective": _reading_s(torch, dist),
            "step(), s": _marking_s(),
            "a sign of life, s of the processor, each second": _sign_s(),
        }
        samples_s = {
            name: [each.processor_s for each in its] for name, its in samples.items()
        }
        file.write_text(json.dumps({"samples_s": samples_s, "notes": notes}))
    else:
        _reading_s(torch, dist)
        _marking_s()
        _sign_s()


class _Block(NamedTuple):
    """A block of steps: what a step took of the processor, and of the time."""

    processor_s: float
    wall_s: float
    around_s: float = 0.0


def _told(samples: dict[str, list[_Block]]) -> dict[str, Any]:
    """What watching adds to a step, each block held to the bare one beside it."""
    pairs = [*zip(samples[BARE], samples[WATCHED], strict=True)]
    processor = [w.processor_s / b.processor_s - 1 for b, w in pairs]
    wall = [w.wall_s / b.wall_s - 1 for b, w in pairs]
    return {
        "time of a step, s": statistics.median(each.wall_s for each in samples[BARE]),
        "time of the processor that is added to a step": verdict(
            processor, LIMIT, _part
        ),
        "time that is added to a step": verdict(wall, LIMIT, _part),
        "before and after the block, s": statistics.median(
            each.around_s for each in samples[WATCHED]
        ),
    }


def _part(part: float) -> str:
    return f"{part:.2%}"


def _step(torch: Any, dist: Any) -> Callable[[], None]:
    """Some 10 ms of small operations, and what ranks do together."""
    a, gradient = torch.rand(64, 64), torch.rand(1000)

    def work(count: int) -> None:
        for _ in range(count):
            torch.mm(a, a)

    work(1000)
    began_s = time.process_time()
    work(1000)
    count = int(1000 * STEP_S / (time.process_time() - began_s))

    def step() -> None:
        for _ in range(CALLS):
            work(count // CALLS)
            dist.all_reduce(gradient)

    return step


def _bare(step: Callable[[], None]) -> _Block:
    return _timed(step, lambda: None)


def _watched(step: Callable[[], None]) -> _Block:
    from gpumagic import gpu_ranks

    began_s = time.perf_counter()
    with gpu_ranks.watch() as watched:
        block = _timed(step, watched.step)
    around_s = time.perf_counter() - began_s - block.wall_s * STEPS
    return block._replace(around_s=around_s)


def _profiled(step: Callable[[], None]) -> _Block:
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        return _timed(step, lambda: None, _PROFILED_STEPS)


def _timed(
    step: Callable[[], None], marked: Callable[[], None], steps: int = STEPS
) -> _Block:
    walls_s, began_s = [], time.process_time()
    for _ in range(steps):
        step_s = time.perf_counter()
        step()
        marked()
        walls_s.append(time.perf_counter() - step_s)
    processor_s = (time.process_time() - began_s) / steps
    return _Block(processor_s, statistics.mean(walls_s))


def _reading_s(torch: Any, dist: Any) -> float:
    from gpumagic.gpu_ranks.seen import recorded

    since_ns, gradient = time.time_ns(), torch.rand(10)
    for _ in range(_READS):
        dist.all_reduce(gradient)
    began_s = time.perf_counter()
    recorded(since_ns)
    return (time.perf_counter() - began_s) / _READS


def _marking_s() -> float:
    from gpumagic import gpu_ranks

    with gpu_ranks.watch() as watched:
        began_s = time.perf_counter()
        for _ in range(_READS):
            watched.step()
        return (time.perf_counter() - began_s) / _READS


def _sign_s() -> float:
    from gpumagic.gpu_ranks.gathering import _Beats, meet
    from gpumagic.gpu_ranks.seen import Lookout

    ranks = meet(30.0)
    beats = _Beats(ranks, 60.0)
    lookout = Lookout(beats.say, rank=ranks.rank, quiet_s=60.0)
    beats.say(lookout.said())
    began_s = time.thread_time()
    for _ in range(_READS):
        beats.say(lookout.said())
    return (time.thread_time() - began_s) / _READS


if __name__ == "__main__":
    _job(int(sys.argv[1]), Path(sys.argv[2]))
