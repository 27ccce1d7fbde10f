"""Engines that a batch system has started, on machines with a fake driver.

Each is a task with variables of its own, as srun starts it; nothing is simulated.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ipyparallel", reason="ipyparallel is not installed")
pytest.importorskip("torch", reason="torch is not installed")

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_ranks.answer_seats import Misplaced
from tests.fakes.build import scenario_file
from tests.fakes.run import machine_environment
from tests.gpu_ranks.notebooks import Notebook

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.filterwarnings("default"),  # ipyparallel's own
]


def task(host, local, *, sees, procid, driver="580.65.06"):
    """The driver where a task of Slurm runs, and its variables."""
    return driver, {
        "GPUMAGIC_HOST": host,
        "SLURM_PROCID": str(procid),
        "SLURM_LOCALID": str(local),
        "SLURM_NTASKS": "6",
        "CUDA_VISIBLE_DEVICES": sees,
    }


# Two that have been given one GPU each, two that share one, two that see two each.
TASKS = [
    task("node0", 0, sees="1", procid=0),
    task("node0", 1, sees="2", procid=1),
    task("node1", 0, sees="3", procid=2),
    task("node1", 1, sees="3", procid=3, driver="535.161.08"),
    task("node2", 0, sees="2,3", procid=4),
    task("node2", 1, sees="2,3", procid=5),
]


# An import of the real one takes seconds; where ranks sit asks for its version alone.
_TORCH = (
    "import sys, types; sys.modules['torch'] = types.SimpleNamespace(__version__='{}')"
)


class Tasks(Notebook):
    """A controller, and an engine for each task."""

    def __init__(self, folder):
        import ipyparallel as ipp

        self.cluster = ipp.Cluster(n=0, log_level=40, profile_dir=str(folder / "tasks"))
        self.cluster.start_controller_sync()
        client = self.cluster.connect_client_sync()
        (file,) = (Path(self.cluster.profile_dir) / "security").glob("*-engine.json")
        self.processes = []
        # No signal is sent to one of them: they need nobody who passes it on.
        engine = ["-m", "ipyparallel.engine", "--IPEngine.enable_nanny=False"]
        for at, (driver, variables) in enumerate(TASKS):
            here = folder / str(at)
            here.mkdir()
            scenario = here / "machine.txt"
            scenario.write_text(
                scenario_file("four_gpus").read_text().replace("580.65.06", driver)
            )
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, *engine, f"--file={file}"],
                    env=machine_environment(here, scenario) | variables,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
        client.wait_for_engines(len(TASKS), timeout=120)
        super().__init__(client)
        ask = "int(__import__('os').environ['SLURM_PROCID'])"
        tasks = client[:].apply_sync(eval, ask)
        self._engines = dict(zip(tasks, client.ids, strict=True))

    def of(self, *tasks):
        """The engines of some tasks: engines come in any order."""
        return [self._engines[each] for each in tasks]

    def ask_of(self, *tasks, line=""):
        """The report of a line on the engines of some tasks."""
        return self.ask(f"{line} --on {','.join(map(str, self.of(*tasks)))}")

    def end(self):
        """No process is left."""
        super().end()
        self.cluster.stop_cluster_sync()
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """The cluster; it is started once."""
    cluster = Tasks(tmp_path_factory.mktemp("tasks"))
    yield cluster
    cluster.end()


def test_slurm_has_given_each_its_own(tasks):
    """There is nothing to do then, and it is said who has done it."""
    report = tasks.ask_of(0, 1, line="select")

    assert report.already
    assert not report.chosen
    assert not report.unfinished
    assert report.given_by == "Slurm"
    assert len({each.gpu for each in report.seats}) == 2
    assert "Slurm has given each a GPU of its own" in str(report)


def test_slurm_has_given_one_to_two(tasks):
    """`select` refuses with its reason, and says how Slurm does otherwise."""
    with pytest.raises(GpuMagicError, match="the same GPU") as raised:
        tasks.ask_of(2, 3, line="select")

    assert "--gpus-per-task=1" in raised.value.hint


def test_what_a_job_was_given_is_shared_out(tasks):
    """Local rank 0 takes the first of those, not GPU 0, which is another job's."""
    report = tasks.ask_of(4, 5, line="select")

    assert report.chosen
    assert sorted(each.gpu_number for each in report.seats) == [2, 3]
    assert not report.findings


def test_two_ranks_on_one_gpu_and_other_drivers(tasks):
    """Both are found of real engines, each as its driver tells it."""
    report = tasks.ask_of(2, 3)
    kinds = [each.kind for each in report.findings]

    assert kinds == [Misplaced.SHARED_GPU, Misplaced.DRIVERS]


def test_other_versions_of_torch(tasks):
    """It is found where an engine has imported another."""
    tasks.on(tasks.of(0), _TORCH.format("2.1.0"))
    tasks.on(tasks.of(1), _TORCH.format("2.13.0"))
    report = tasks.ask_of(0, 1)

    assert [each.kind for each in report.findings] == [Misplaced.TORCHES]
    assert "2.1.0" in report.findings[0].what


def test_far_from_the_network(tasks, tmp_path):
    """A GPU whose network cards are all on another socket is named."""
    for name, node in (("pci/0000:3b:00.0", 0), ("cards/mlx5_0/device", 1)):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "numa_node").write_text(f"{node}\n")
    tasks.on(
        tasks.of(0),
        "from pathlib import Path; import gpumagic.gpu_ranks.on_rank as _o\n"
        f"_o._PCI, _o._NETWORK_CARDS = Path('{tmp_path}/pci'),"
        f" Path('{tmp_path}/cards')",
    )
    report = tasks.ask_of(0)

    assert [each.kind for each in report.findings] == [Misplaced.FAR_NETWORK]
