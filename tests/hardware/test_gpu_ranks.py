"""Ranks on real GPUs with NCCL: two where there are two, else one and the recorder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_JOB = """
import json, os, sys, time
import torch
import torch.distributed as dist
import gpumagic
from gpumagic.gpu_ranks.seen import flight
from gpumagic.gpu_ranks.on_rank import seat

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
x = torch.ones(1 << 20, device="cuda")
dist.all_reduce(x)
torch.cuda.synchronize()
with gpumagic.gpu_ranks.watch() as watched:
    for _ in range(5):
        if dist.get_rank() == 1:
            torch.cuda._sleep(50_000_000)
        y = x * 2
        dist.all_reduce(y)
    torch.cuda.synchronize()
if dist.get_rank() == 0:
    report = watched.report.to_dict()
    print("said", json.dumps([report, seat(), flight()]))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What rank 0 has seen: the report, its seat, the recorder; and how many ranks."""
    torch = pytest.importorskip("torch")
    ranks = min(torch.cuda.device_count(), 2)
    job = tmp_path_factory.mktemp("job") / "job.py"
    job.write_text(_JOB)
    run = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(ranks), str(job)),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=_ROOT,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    line = next(each for each in run.stdout.splitlines() if each.startswith("said"))
    return [*json.loads(line.removeprefix("said")), ranks]


def test_kernels_of_nccl_tell_who_waited(said):
    """All collectives of the block are found; of two ranks the slow one is named."""
    report, _, _, ranks = said

    assert report["told_by"] == "kernels"
    assert report["unfinished"] == []
    if ranks == 2:
        assert report["matched"] == 5
        assert report["slowest"] == 1


def test_a_rank_sits_where_the_driver_says(said):
    """Its GPU has a UUID of the driver's, and is confirmed as CUDA has started."""
    _, seat, _, _ = said

    assert seat["backend"] == "nccl"
    assert seat["gpu"].startswith("GPU-")
    assert seat["confirmed"]
    assert seat["also_on"] == []


def test_the_flight_recorder_knows_nccls_collectives(said):
    """The last of the group has a number, and hardly anything is open at the end.

    torch's watchdog notes the end of a collective when it looks the next time.
    """
    _, _, flight, _ = said

    assert flight is not None
    assert len(flight["under_way"]) <= 1
    assert max(row[1] for row in flight["last"]) >= 5
