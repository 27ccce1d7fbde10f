"""Traces of several simulated GPUs, which are opened together: all of it is known.

Each process trains and writes its trace; one GPU is slow from a known moment on.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import own_process

torch = pytest.importorskip("torch")

RANKS, SLOW, STEPS = 3, 1, 4


def main(rank, _, folder):
    """What each process does."""
    import torch.distributed as dist
    from torch import nn

    import gpumagic
    from gpumagic import cuda_sync_time

    folder = Path(folder)
    box = gpumagic.simulate(f"{RANKS}xh100")
    torch.sim.set_device(rank)
    dist.init_process_group(
        "nccl", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=RANKS
    )
    layers = [nn.Linear(512, 512) for _ in range(4)]
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(*layers).to(f"sim:{rank}"), bucket_cap_mb=1
    )
    x = torch.randn(256, 512, device=f"sim:{rank}")
    model(x).sum().backward()
    torch.sim.synchronize()
    called = len(box.collectives)
    with (
        box.slow(gpu=SLOW, by=3),
        cuda_sync_time.watch(trace_file=str(folder / f"rank{rank}.json")),
    ):
        for _ in range(STEPS):
            model(x).sum().backward()
    made = box.collectives[called:]
    told = [(each.group, each.number, each.start_ns, each.end_ns) for each in made]
    dist.destroy_process_group()
    (folder / f"told{rank}.json").write_text(json.dumps(told), encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where each rank has left its trace, and what its machine knows."""
    folder = tmp_path_factory.mktemp("ranks")
    own_process.run_ranks(__name__, RANKS, folder)
    return folder


def moments(trace, each):
    """When a collective began and ended, by the clock of the machine."""
    return [trace.zero_ns + round(at * 1e9) for at in (each.start_s, each.end_s)]


def test_the_slow_gpu_is_named_by_the_collectives_of_its_machine(folder):
    """Group, number, beginning and end are those of `box.collectives`."""
    from gpumagic import gpu_open

    report = gpu_open.read(*(folder / f"rank{rank}.json" for rank in range(RANKS)))
    for rank, trace in enumerate(report.ranks):
        assert (trace.rank, trace.world_size) == (rank, RANKS)
        found = [
            [each.group, each.number, *moments(trace, each)]
            for each in trace.collectives
            if each.numbered
        ]
        told = json.loads((folder / f"told{rank}.json").read_text())
        assert found == told
    together = report.together
    assert together.matched == len(told) > STEPS
    assert (together.unmatched, together.one_clock) == (0, True)
    others = [each for each in together.ranks if each.rank != SLOW]
    slow = together.ranks[SLOW]
    assert together.slowest == SLOW
    assert slow.waits_s == 0
    assert max(each.waits_s for each in others) == pytest.approx(slow.blamed_s)
    assert all(each.blamed_s == 0 < each.waits_s for each in others)
