"""NCCL between ranks on the machine without a GPU: values, order, failures.

To start ranks takes longest, so one job of ranks runs many checks (`nccl_job`), and
each test here looks at what all ranks have found in one of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.build import scenario_file

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
CHECKS = (
    "reductions",
    "roundings",
    "roots",
    "uneven",
    "pairs",
    "groups",
    "graphs",
    "random_programs",
    "trainings",
    "devices",
    "shrunk",
    "abort",
)
PATIENCE_S = 200


class Job:
    """What a job of ranks has left behind."""

    def __init__(self, folder: Path, failed: int, said: str) -> None:
        self.folder, self.failed, self.said = folder, failed, said

    def wrong(self, check: str) -> list[str]:
        """What any rank has found wrong."""
        files = sorted(self.folder.glob(f"{check}.*.json"))
        assert files, self.said[-6000:]
        return [problem for file in files for problem in json.loads(file.read_text())]


class Started:
    """Checks that so many ranks run, on a machine of four idle GPUs."""

    def __init__(self, folder: Path, count: int, *checks: str, **env: str) -> None:
        self._folder = folder
        surroundings = {
            "GPUMAGIC_FAKE_SCENARIO": str(scenario_file("idle_four_gpus")),
            "MASTER_PORT": str(_free_port()),
            "OMP_NUM_THREADS": "1",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
        }
        job = "tests.own_process", "tests.fakes.cuda.nccl_job"
        self._process = subprocess.Popen(
            [sys.executable, "-m", *job, str(count), str(folder), *checks],
            cwd=ROOT,
            env=os.environ | surroundings | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def job(self) -> Job:
        """What it has left behind, once it has ended."""
        said = self._process.communicate(timeout=PATIENCE_S)[0]
        return Job(self._folder, self._process.returncode, said)

    def end(self) -> None:
        """Leave no process behind, whatever has come of it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Started]]:
    """Jobs in which ranks wait for what does not come; they wait at the same time."""
    folder = tmp_path_factory.mktemp
    late = folder("late")
    started = {
        "late": Started(
            late,
            2,
            "late",
            TIMEOUT_S="2",
            TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC="2",
            TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC="2000",
            TORCH_NCCL_DUMP_ON_TIMEOUT="1",
            TORCH_FR_BUFFER_SIZE="100",
            TORCH_FR_DUMP_TEMP_FILE=str(late / "recorder_"),
        ),
        "waits": Started(
            folder("waits"),
            2,
            "waits",
            TIMEOUT_S="3",
            TORCH_NCCL_BLOCKING_WAIT="1",
        ),
        "times": Started(folder("times"), 2, "times", GPUMAGIC_CLOCK="model"),
        "share": Started(folder("share"), 2, "share", SHARE="1"),
        "dies": Started(folder("dies"), 2, "dies", GPUMAGIC_FAKE_NCCL_DEAD="error"),
        "in_background": Started(
            folder("in_background"), 2, "roots", TORCH_NCCL_USE_COMM_NONBLOCKING="1"
        ),
    }
    yield started
    for each in started.values():
        each.end()


@pytest.fixture(scope="module", params=[2, 4])
def job(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Job:
    """Two ranks, and four, that have run all checks."""
    started = Started(tmp_path_factory.mktemp("job"), request.param, *CHECKS)
    try:
        return started.job()
    finally:
        started.end()


@pytest.mark.parametrize("check", CHECKS)
def test_check_of_ranks(job: Job, check: str) -> None:
    """What `nccl_job` says of the check is so, on every rank."""
    assert job.wrong(check) == []


def test_ranks_end_and_leave_nothing_behind(job: Job) -> None:
    """Groups are taken apart, every rank ends by itself; shared memory had no name."""
    assert job.failed == 0, job.said[-6000:]
    assert not list(Path("/dev/shm").glob("*nccl*"))  # noqa: S108


def test_group_that_is_made_in_the_background(failing: dict[str, Started]) -> None:
    """Communicators that are made without blocking work as others do."""
    assert failing["in_background"].job().wrong("roots") == []


def test_who_comes_late_makes_the_others_wait(failing: dict[str, Started]) -> None:
    """Their kernels last as long on the device's timeline as the late one's spin."""
    assert failing["times"].job().wrong("times") == []


def test_ranks_that_share_a_gpu(failing: dict[str, Started]) -> None:
    """NCCL refuses two ranks on one GPU, and says which."""
    assert failing["share"].job().wrong("share") == []


def test_peer_that_dies(failing: dict[str, Started]) -> None:
    """Where the machine tells it, the others hear that a process has gone."""
    assert failing["dies"].job().wrong("dies") == []


def test_wait_that_blocks(failing: dict[str, Started]) -> None:
    """Who waits on the host for a collective is told of the timeout."""
    assert failing["waits"].job().wrong("waits") == []


def test_watchdog_and_flight_recorder(failing: dict[str, Started]) -> None:
    """Who waits too long is ended by torch's watchdog, and its recorder tells why."""
    job = failing["late"].job()

    assert job.failed > 0
    assert "Watchdog caught collective operation timeout" in job.said
    entries = pickle.loads((job.folder / "recorder_0").read_bytes())["entries"]  # noqa: S301
    assert entries[-1]["state"] != "completed"
    assert entries[-1]["profiling_name"] == "nccl:all_reduce"
    assert entries[-1]["collective_seq_id"] == 2
