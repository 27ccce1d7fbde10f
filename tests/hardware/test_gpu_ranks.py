"""%gpu_ranks and watch() on ranks with NCCL, one on each GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.build import scenario_file
from tests.fakes.cuda import is_on
from tests.hardware.machines import run

_ROOT = Path(__file__).parents[2]
_GIB = 1 << 30


class Job:
    """What a job has left behind, and how many ranks it had."""

    def __init__(self, folder, ranks, said):
        self._folder, self.ranks, self.said = folder, ranks, said

    def told(self, case):
        """The report of a case, its text, and what was noted with it."""
        return json.loads((self._folder / f"{case}.json").read_text())


@pytest.fixture(scope="module")
def job(tmp_path_factory, torch):
    """Ranks as torchrun starts them, once for all cases: four, or one for each GPU."""
    folder = tmp_path_factory.mktemp("job")
    ranks = 4 if is_on() else min(torch.cuda.device_count(), 4)
    if ranks < 2:
        pytest.skip("there is one GPU")
    machine = {"GPUMAGIC_FAKE_SCENARIO": str(scenario_file("idle_four_gpus"))}
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(ranks)),
            *("-m", "tests.hardware.ranks_job", str(folder)),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=_ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | (machine if is_on() else {}),
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return Job(folder, ranks, ran.stderr)


def test_slow_rank_is_named_by_its_kernels(job):
    """Who spins before each all_reduce is slowest; all others wait for it as long."""
    report = job.told("slow")["report"]

    assert report["told_by"] == "kernels"
    assert (report["ranks"], report["matched"]) == (job.ranks, 5)
    assert report["slowest"] == 1
    waits_s = {each["name"]: each["waits_s"] for each in report["times"]}
    assert waits_s[1] == min(waits_s.values())
    assert min(s for rank, s in waits_s.items() if rank != 1) > waits_s[1] + 0.2
    assert "rank 1" in job.told("slow")["text"].splitlines()[0]
    assert [[k, len(steps)] for k, steps in report["steps_s"]] == [
        [k, 4] for k in range(job.ranks)
    ]


def test_each_rank_sits_on_its_own_gpu(job):
    """The driver confirms the GPUs, and nobody holds memory on another's."""
    seats = job.told("slow")["report"]["seats"]

    assert len({each["gpu"] for each in seats}) == job.ranks
    assert [each["gpu_number"] for each in seats] == [*range(job.ranks)]
    assert all(each["confirmed"] and not each["also_on"] for each in seats)
    assert {each["backend"] for each in seats} == {"nccl"}


def test_flight_recorder_knows_the_last_call(job):
    """Six sums were called, and none is open."""
    flight = job.told("slow")["flight"]

    assert flight["under_way"] == []
    assert flight["last"] == [["0", 6, "all_reduce", "[[1048576]]"]]


def test_memory_of_each_rank(job):
    """The rank that holds more is named, with its peak."""
    report = job.told("memory")["report"]
    peaks = {each["name"]: each["peak_bytes"] for each in report["memory"]}

    assert peaks.pop(1) - peaks[0] == 2 * _GIB
    assert len({*peaks.values()}) == 1
    assert report["runs_out_first"] == 1
    assert report["odd_in_memory"] == [1]


def test_missing_rank_is_named_while_it_hangs(job):
    """Rank 0 says on its stderr who has not come, where it is, and who waits."""
    (told,) = (line for line in job.said.splitlines() if "has not called it" in line)

    assert "have waited" in told or "has waited" in told
    assert "all_reduce no. 9; rank 1 has not called it" in told
    assert "time.sleep(4)" in told


# What is typed in a notebook with two engines.
_CELLS = {
    "select": "%gpu_ranks select",
    "group": "%gpu_ranks group",
    "first": "%%gpu_ranks\nimport torch, torch.distributed as dist\n"
    "x = torch.ones(1 << 20, device='cuda')\ndist.all_reduce(x)",
    "seats": "%gpu_ranks",
    "slow": "%%gpu_ranks\nfor _ in range(5):\n    if dist.get_rank() == 1:\n"
    "        torch.cuda._sleep(200_000_000)\n    dist.all_reduce(x)\n"
    "torch.cuda.synchronize()",
    "memory": "%%gpu_ranks --mem\nkept = torch.empty(1 + 2 * dist.get_rank() << 30,"
    " dtype=torch.uint8, device='cuda')",
    "where": "%gpu_ranks where",
}
_NOTEBOOK = f"""
import ipyparallel
cluster = ipyparallel.Cluster(n=2)
shell.user_ns["client"] = cluster.start_and_connect_sync()
shown = {{name: typed(cell) for name, cell in {_CELLS!r}.items()}}
cluster.stop_cluster_sync()
show(**shown)
"""


def test_engines_of_a_notebook_are_ranks_with_nccl():
    """A GPU for each, confirmed; who was slow and who holds more; nobody waits."""
    pytest.importorskip("ipyparallel")
    shown = run(_NOTEBOOK, "idle_four_gpus")

    assert "local rank k takes GPU k" in shown["select"]
    assert "raised" not in shown["first"]  # before CUDA has started nothing is traced
    assert "over nccl" in shown["seats"]
    assert "each on a GPU of its own (confirmed by the driver)" in shown["seats"]
    assert "rank 1 took" in shown["slow"].splitlines()[0]
    assert "3.00 GiB" in shown["memory"]
    assert "waited" not in shown["where"]
