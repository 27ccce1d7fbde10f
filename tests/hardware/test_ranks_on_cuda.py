"""%gpu_ranks and watch() on four ranks with NCCL, one on each GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.build import scenario_file
from tests.hardware.machines import only_on_the_stand_in, run

_ROOT = Path(__file__).parents[2]
_GIB = 1 << 30
# What is typed in a notebook with two engines.
_SELECT, _GROUP, _SEATS, _WHERE = (
    f"%gpu_ranks {word}".strip() for word in ("select", "group", "", "where")
)
_FIRST = """\
%%gpu_ranks
import torch, torch.distributed as dist
x = torch.ones(1 << 20, device="cuda")
dist.all_reduce(x)
"""
_SLOW = """\
%%gpu_ranks
for _ in range(5):
    if dist.get_rank() == 1:
        torch.cuda._sleep(200_000_000)
    dist.all_reduce(x)
torch.cuda.synchronize()
"""
_MEMORY = """\
%%gpu_ranks --mem
kept = torch.empty(1 + 2 * dist.get_rank() << 30, dtype=torch.uint8, device="cuda")
"""
_NOTEBOOK = f"""
import ipyparallel
cluster = ipyparallel.Cluster(n=2)
shell.user_ns["client"] = cluster.start_and_connect_sync()
cells = {[_SELECT, _GROUP, _FIRST, _SEATS, _SLOW, _MEMORY, _WHERE]}
shown = {{each: typed(each) for each in cells}}
cluster.stop_cluster_sync()
show(**shown)
"""


class Job:
    """What a job has left behind."""

    def __init__(self, folder, said):
        self._folder, self.said = folder, said

    def told(self, case):
        """The report of a case, its text, and what was noted with it."""
        return json.loads((self._folder / f"{case}.json").read_text())

    def report(self, case):
        """The report of a case."""
        return self.told(case)["report"]


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    """Four ranks as torchrun starts them, once for all cases."""
    only_on_the_stand_in()
    folder = tmp_path_factory.mktemp("job")
    machine = str(scenario_file("idle_four_gpus"))
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "4", "-m", "tests.hardware.ranks_job", str(folder)),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=_ROOT,
        env=os.environ | {"GPUMAGIC_FAKE_SCENARIO": machine, "OMP_NUM_THREADS": "1"},
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return Job(folder, ran.stderr)


def test_slow_rank_is_named_by_its_kernels(four):
    """Who spins before each all_reduce is slowest; all others wait for it as long."""
    report = four.report("slow")

    assert report["told_by"] == "kernels"
    assert report["ranks"] == 4
    assert report["matched"] == 5
    assert report["slowest"] == 2
    waits_s = {each["name"]: each["waits_s"] for each in report["times"]}
    assert waits_s[2] == min(waits_s.values())
    assert min(s for rank, s in waits_s.items() if rank != 2) > waits_s[2] + 0.2
    assert "rank 2" in four.told("slow")["text"].splitlines()[0]


def test_each_rank_sits_on_its_own_gpu(four):
    """The driver confirms four GPUs, and nobody holds memory on another's."""
    seats = four.report("slow")["seats"]

    assert len({each["gpu"] for each in seats}) == 4
    assert [each["gpu_number"] for each in seats] == [0, 1, 2, 3]
    assert all(each["confirmed"] and not each["also_on"] for each in seats)
    assert {each["backend"] for each in seats} == {"nccl"}


def test_steps_are_told_by_rank(four):
    """Each rank tells how long its steps took."""
    steps = dict(four.report("slow")["steps_s"])

    assert {rank: len(each) for rank, each in steps.items()} == dict.fromkeys(
        range(4), 4
    )


def test_flight_recorder_knows_the_last_call(four):
    """Six sums were called, and none is open."""
    flight = four.told("slow")["flight"]

    assert flight["under_way"] == []
    assert flight["last"] == [["0", 6, "all_reduce", "[[1048576]]"]]


def test_memory_of_each_rank(four):
    """The rank that holds more is named, with its peak."""
    report = four.report("memory")
    peaks = {each["name"]: each["peak_bytes"] for each in report["memory"]}

    assert peaks[3] - peaks[0] == 2 * _GIB
    assert peaks[0] == peaks[1] == peaks[2]
    assert report["runs_out_first"] == 3
    assert report["odd_in_memory"] == [3]


def test_missing_rank_is_named_while_it_hangs(four):
    """Rank 0 says on its stderr who has not come, where it is, and who waits."""
    told = [line for line in four.said.splitlines() if "has not called it" in line]

    assert len(told) == 1, four.said[-4000:]
    assert "ranks 0, 2, 3 have waited" in told[0]
    assert "all_reduce no. 9; rank 1 has not called it" in told[0]
    assert "time.sleep(4)" in told[0]


@pytest.fixture(scope="module")
def engines():
    """What cells show in a notebook that has two engines."""
    pytest.importorskip("ipyparallel")
    return run(_NOTEBOOK, "idle_four_gpus")


def test_engines_are_given_a_gpu_each(engines):
    """`select` takes one for each, `group` begins NCCL, and the driver confirms it."""
    assert "local rank k takes GPU k" in engines[_SELECT]
    assert "over nccl" in engines[_SEATS]
    assert "each on a GPU of its own (confirmed by the driver)" in engines[_SEATS]


def test_cell_that_uses_cuda_first_is_run(engines):
    """Before CUDA has started nothing can be traced, and the cell runs all the same."""
    assert "raised" not in engines[_FIRST]


def test_slow_engine_is_named(engines):
    """A cell on both engines tells who was slow, by the kernels of NCCL."""
    assert "rank 1 took" in engines[_SLOW].splitlines()[0]


def test_memory_of_engines_is_told(engines):
    """The engine that holds more is told with what it holds."""
    assert "3.00 GiB" in engines[_MEMORY]


def test_engines_that_wait_for_nobody(engines):
    """Between cells no rank is in a collective."""
    assert "waited" not in engines[_WHERE]
