"""watch() around trainings as people write them, and around what goes wrong with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpumagic import gpu_ranks
from gpumagic.errors import GpuMagicError
from tests import own_process

ROOT = Path(__file__).parents[2]
TRAININGS = "tests.gpu_ranks.watched_trainings"
RANKS, SLOW_S, STEPS = 4, 0.05, 6
FEW = 2  # ranks of the job that does everything wrong
LATE = {  # who is slow, and for how long in all
    "plain": (1, STEPS * SLOW_S),
    "sharded": (2, STEPS * SLOW_S),
    "pipeline": (1, 2 * STEPS * SLOW_S),
}
CASES = [*LATE, "sends"]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What the ranks have said of each case: to start them takes longest."""
    folder = tmp_path_factory.mktemp("trainings")
    own_process.run_ranks(TRAININGS, RANKS, folder, ",".join(CASES))
    return {
        case: [
            json.loads((folder / f"{case}.{rank}.json").read_text())
            for rank in range(RANKS)
        ]
        for case in CASES
    }


@pytest.mark.parametrize("case", LATE)
def test_who_is_slow_is_named_in_any_training(
    found: dict[str, list[dict[str, Any]]], case: str
) -> None:
    """The rank that was made slow is the one named, and its own work has it all."""
    report, (late, planted_s) = found[case][0]["report"], LATE[case]
    assert report["slowest"] == late, found[case][0]["text"]
    own_s = [each["own_s"] for each in report["times"]]
    assert own_s[late] == max(own_s)
    # While a message is on its way, what is computed beside it counts as moved.
    assert own_s[late] >= planted_s * (0.4 if case == "pipeline" else 0.9)
    if case != "pipeline":  # who waits for whom in a message is not told
        others_s = [each["waits_s"] for each in report["times"] if each["name"] != late]
        assert min(others_s) >= planted_s / 3  # they may be late themselves
        assert f"rank {late} took" in found[case][0]["text"].splitlines()[0]


@pytest.mark.parametrize("case", CASES)
def test_training_is_what_it_was(
    found: dict[str, list[dict[str, Any]]], case: str
) -> None:
    """Weights and random numbers are equal to the bit, no call or group is added."""
    for each in found[case]:
        assert each["watched"] == each["bare"]
        assert (each["groups_left"], each["threads_left"]) == (0, [])


def test_what_is_only_sent_is_said_to_be_unknown(
    found: dict[str, list[dict[str, Any]]],
) -> None:
    """Of a pipeline the recorder knows nothing: no rank is said to wait for nobody."""
    text = found["sends"][0]["text"]
    assert "waiting cannot be measured" in text
    assert "watch(profile=True)" in text


# -------------------------------------------------------- what goes wrong with it


JOB = """
import os, sys, time
import torch, torch.distributed as dist
from gpumagic import gpu_ranks
from gpumagic.errors import GpuMagicError
from tests import own_process

def refused(call):
    try:
        call()
    except GpuMagicError as error:
        print("refused:", str(error).splitlines()[0], flush=True)

def block():
    with gpu_ranks.watch():
        dist.all_reduce(torch.ones(2))

refused(block)
dist.init_process_group("gloo")
rank = dist.get_rank()
with gpu_ranks.watch() as outer:
    block()
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
if rank == 0:
    print("finished:", len(outer.report.times), flush=True)
block = gpu_ranks.watch()
block.__enter__()
dist.all_reduce(torch.ones(2))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def misused(
    tmp_path_factory: pytest.TempPathFactory,
) -> subprocess.CompletedProcess[str]:
    """A job that does everything wrong."""
    file = tmp_path_factory.mktemp("misused") / "job.py"
    file.write_text(JOB)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*torchrun, "--nproc-per-node", str(FEW), str(file)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_misuse_is_refused_on_all_ranks_alike(
    misused: subprocess.CompletedProcess[str],
) -> None:
    """A watch() too early is refused, and one that nothing ends ends no job."""
    assert misused.returncode == 0, misused.stderr[-4000:]
    assert misused.stdout.count("no group to meet in") == FEW


def test_child_of_a_rank_ends_nothing(
    misused: subprocess.CompletedProcess[str],
) -> None:
    """A process that a rank forks, and that ends in the block, says nothing for it."""
    assert f"finished: {FEW}" in misused.stdout
    assert "Exception ignored" not in misused.stderr


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), None, "3"])
def test_times_that_are_none_are_refused(seconds: Any) -> None:
    """A wait of no time would never end, or end at once: it is refused by name."""
    for name in ("hang_s", "patience_s"):
        block = gpu_ranks.watch(**{name: seconds})
        with pytest.raises(GpuMagicError, match=f"{name} is"), block:
            pass


def test_waiting_for_ever_is_a_time() -> None:
    """Infinity is as long as a clock of torch can wait."""
    with gpu_ranks.watch(hang_s=float("inf"), patience_s=float("inf")) as watched:
        pass
    assert watched.report is not None
