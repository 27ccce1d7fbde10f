"""Whoever starts the ranks: by SSH and by Slurm on two hosts, and by mpiexec here."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

from tests.gpu_ranks import hosts, sites
from tests.gpu_ranks.notebooks import KernelNotebook

pytest.importorskip("ipyparallel", reason="ipyparallel is not installed")
pytest.importorskip("torch", reason="torch is not installed")

pytestmark = pytest.mark.kernel
_HERE = Path(__file__).parent
_OF_OTHERS = "default::pytest.PytestUnraisableExceptionWarning"


def run_on_hosts(file):
    """Run the tests of a file where hosts can be made."""
    quietly = ["-p", "no:cacheprovider", "-q", "-x", "--tb=short", "-W", _OF_OTHERS]
    run = hosts.run_inside(sys.executable, "-m", "pytest", *quietly, str(_HERE / file))

    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]


def test_ssh():
    """The lines of the guide for SSH work as they stand there."""
    if reason := sites.why_no_logins():
        pytest.skip(reason)
    run_on_hosts("ssh_engines.py")


def test_slurm():
    """The lines of the guide for Slurm work as they stand there."""
    if reason := sites.why_no_batch():
        pytest.skip(reason)
    run_on_hosts("slurm_engines.py")


@pytest.fixture
def by_mpi(tmp_path, monkeypatch):
    """A notebook whose engines mpiexec has started."""
    if shutil.which("mpiexec") is None:
        pytest.skip("this machine has no mpiexec")
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed: engines of mpiexec need it")
    for name in ("ALLOW_RUN_AS_ROOT", "ALLOW_RUN_AS_ROOT_CONFIRM"):
        monkeypatch.setenv(f"OMPI_{name}", "1")
    monkeypatch.setenv("OMPI_MCA_rmaps_base_oversubscribe", "1")
    notebook = KernelNotebook(tmp_path)
    notebook.run(
        "import ipyparallel as ipp\n"
        'rc = ipp.Cluster(n=2, engines="mpi").start_and_connect_sync()\n'
        "%load_ext gpumagic"
    )
    yield notebook
    notebook.run("rc.cluster.stop_cluster_sync()")
    notebook.end()


def test_mpi(by_mpi):
    """Ranks are mpiexec's own; one that dies takes all with it, which is said."""
    group = by_mpi.run("%gpu_ranks group")
    told = by_mpi.run(
        "%%gpu_ranks\n"
        "import os, signal, time, torch, torch.distributed as dist\n"
        "time.sleep(0.2 * int(os.environ['OMPI_COMM_WORLD_RANK']))\n"
        "dist.all_reduce(torch.ones(8))"
    )
    interrupted = by_mpi.run("%%gpu_ranks\ntime.sleep(60)", "2 of 2 engines run")
    died = by_mpi.run(
        "%%gpu_ranks\n"
        "if dist.get_rank() == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(60)"
    )
    gone = by_mpi.run("%gpu_ranks")

    assert group.startswith("2 ranks on ")
    assert "rank 1 took" in told.splitlines()[0]
    assert interrupted.startswith("none of 2 ranks finished; ranks 0 and 1 were")
    assert "ranks 0 and 1 died: their engines are gone" in died
    assert "rc.cluster.start_engines_sync(n=2)" in died + gone
