"""Engines and jobs that a real Slurm starts on two hosts; `test_launchers` runs it.

The tests of engines follow each other, in one notebook with a kernel of its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from tests.docs.pages import REPOSITORY, blocks
from tests.fakes.build import scenario_file
from tests.fakes.run import machine_environment
from tests.gpu_ranks import hosts, sites
from tests.gpu_ranks.notebooks import KernelNotebook

GUIDE = REPOSITORY / "docs" / "gpu_ranks.md"
IMPORTS = "import ipyparallel as ipp\nfrom traitlets.config import Config\n"
JOB = """
import json, os, time
import torch, torch.distributed as dist
from gpumagic import gpu_ranks

{lines}

def block():
    with gpu_ranks.watch() as watched:
        for _ in range(5):
            if dist.get_rank() == 3:
                time.sleep(0.05)
            dist.all_reduce(torch.ones(8))
    report = watched.report
    return report and [str(report), report.clock_error_s]

os.environ.pop("GLOO_SOCKET_IFNAME")  # which jobs of NCCL need not have
reached = block()
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
print(json.dumps([dist.get_rank(), reached, block()]), flush=True)
dist.destroy_process_group()
"""

pytestmark = pytest.mark.filterwarnings("default")  # those of others


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Two nodes, a login, and a folder that all see."""
    if not hosts.is_inside():
        pytest.skip("it needs a network of its own: see test_launchers.py")
    folder = tmp_path_factory.mktemp("slurm")
    with sites.with_batches(("node0", "node1"), folder) as machines:
        gpus = scenario_file("four_gpus").read_text()
        (folder / "gpus.txt").write_text(gpus)
        other = folder / "gpus_of_node1.txt"
        other.write_text(gpus.replace("uuid=GPU-", "uuid=GPU-b"))
        sites.put(other, folder / "gpus.txt", machines["node1"])
        yield folder


@pytest.fixture(scope="module")
def engines(site):
    """The notebook; the lines of the guide are the first that it runs."""
    lines = only("py", "SlurmEngineSetLauncher")
    fewer = lines.replace("=8", "=2").replace("n=16", "n=4")  # tasks and GPUs of each
    notebook = KernelNotebook(site)
    notebook.started = notebook.run(IMPORTS + fewer)
    notebook.loaded = notebook.run("%load_ext gpumagic")
    yield notebook
    notebook.end()


def only(language, word):
    """The one block of the guide in which a word stands."""
    (found,) = (each.text for each in blocks(GUIDE, language) if word in each.text)
    return found


@pytest.fixture(scope="module")
def job(site):
    """What the ranks of a job say: the guide's lines start it, and let them meet."""
    (site / "train.py").write_text(JOB.format(lines=only("py", "PROCID")))
    script = only("sh", "#SBATCH").replace("=8", "=2")
    (site / "job").write_text(script.replace("srun python", f"srun {sys.executable}"))
    subprocess.run(
        ["sbatch", "--wait", "--output=said", "job"],
        cwd=site,
        env=os.environ
        | {
            "PYTHONPATH": str(REPOSITORY),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "eth0",  # as their names stand for themselves here
        },
        check=False,
        timeout=120,
    )
    said = (site / "said").read_text()
    rows = map(json.loads, re.findall(r"^\[\d, .*\]$", said, re.MULTILINE))
    told = {rank: blocks for rank, *blocks in rows}
    assert set(told) == {0, 1, 2, 3}, said
    return told, said


def test_job_that_watches_itself(job):
    """Its hosts meet by the network of the job, where their names stand for nothing."""
    told, _ = job
    text, clock_error_s = told[0][0]

    assert "rank 3 (node1) took" in text
    assert 0 < clock_error_s < 0.005
    assert [told[rank] for rank in (1, 2, 3)] == [[None, None]] * 3


def test_job_whose_hosts_do_not_get_through(job):
    """Nobody waits for a group that cannot be; the job goes on, and has its report."""
    told, said = job
    text, clock_error_s = told[0][1]

    assert said.count("gloo does not get from host to host") == 1
    assert text
    assert clock_error_s is None


def test_lines_of_the_guide_start_engines(engines):
    """As many come as there are tasks, and each says its host."""
    said = engines.run("%gpu_ranks")

    assert "4 engines on 2 hosts" in said, engines.started
    assert engines.loaded == ""


def test_ranks_of_one_host_follow_each_other(engines):
    """Engines come in any order; their ranks are dealt out host by host."""
    said = engines.run("%gpu_ranks group").splitlines()
    rows = [each.split() for each in said[1:] if each.strip()[:1].isdigit()]

    assert said[0].startswith("4 ranks on 2 hosts")
    assert [row[0] for row in rows] == ["0", "1", "2", "3"]
    found = ["node0" if "node0" in row else "node1" for row in rows]
    assert found in (["node0"] * 2 + ["node1"] * 2, ["node1"] * 2 + ["node0"] * 2)


def test_who_is_slow(engines):
    """The ranks of tasks are told as any are."""
    said = engines.run(
        "%%gpu_ranks\n"
        "import time, torch, torch.distributed as dist\n"
        "x = torch.ones(8)\n"
        "for step in range(5):\n"
        "    if dist.get_rank() == 3: time.sleep(0.1)\n"
        "    dist.all_reduce(x)\n"
    )

    assert "rank 3 (node" in said.splitlines()[0]


def test_the_interrupt_button_reaches_tasks(engines):
    """Ctrl-C comes to the engines, and the job goes on."""
    said = engines.run("%%gpu_ranks\ntime.sleep(60)", "4 of 4 engines run")

    assert "ranks 0 to 3 were interrupted" in said.splitlines()[0]
    assert "4 ranks on 2 hosts" in engines.run("%gpu_ranks")


def test_a_task_is_killed(engines):
    """It is named; the others go on, as srun does not end them for it."""
    said = engines.run(
        "%%gpu_ranks\n"
        "import os, signal\n"
        "if dist.get_rank() == 1: os.kill(os.getpid(), signal.SIGKILL)"
    )

    assert said.startswith("3 of 4 ranks finished; rank 1 died")
    assert engines.run("%gpu_ranks group").startswith("3 ranks on 2 hosts")


def test_nothing_is_left_of_it(engines):
    """Stopped as any cluster is, Slurm has no job."""
    engines.run("rc.cluster.stop_cluster_sync()")
    said = subprocess.run(
        ["squeue", "-h", "-t", "R"], capture_output=True, text=True, check=True
    )

    assert said.stdout == ""


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--gpus-per-node=2", "local rank k takes GPU k"),
        ("--gpus-per-task=1", "Slurm has given each a GPU of its own"),
    ],
)
def test_select_among_gpus_that_slurm_gives(site, monkeypatch, option, said):
    """It shares out what the tasks of a node see, and leaves what each was given."""
    for name, value in machine_environment(site, site / "gpus.txt").items():
        monkeypatch.setenv(name, value)
    lines = only("py", "SlurmEngineSetLauncher").replace("=8", "=2")
    lines = lines.replace("n=16", "n=4").replace("--gpus-per-node=2", option)
    notebook = KernelNotebook(site)
    started = notebook.run(IMPORTS + lines)
    notebook.run("%load_ext gpumagic")
    answer = notebook.run("%gpu_ranks select")
    notebook.run("rc.cluster.stop_cluster_sync()")
    notebook.end()

    assert f"4 engines on 2 hosts: {said}" in answer, started
