"""Engines and jobs that a real Slurm starts on two hosts; `test_launchers` runs it.

The tests of engines follow each other, in one notebook with a kernel of its own.
"""

from __future__ import annotations

import json
import os
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
# Not among what all print: srun cuts long lines, and others' come between.
with open("told-%d" % dist.get_rank(), "w") as file:
    json.dump(block(), file)
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


def notebook_on(site, *, gpus="--gpus-per-node=2"):
    """A notebook; the guide's lines are the first it runs, with 2 tasks a node.

    Args:
        site: Where Slurm is.

        gpus: What each job is given of them.
    """
    lines = only("py", "SlurmEngineSetLauncher")
    fewer = lines.replace("=8", "=2").replace("n=16", "n=4")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in machine_environment(site, site / "gpus.txt").items():
            patch.setenv(name, value)
        notebook = KernelNotebook(site)
    notebook.started = notebook.run(IMPORTS + fewer.replace("--gpus-per-node=2", gpus))
    notebook.loaded = notebook.run("%load_ext gpumagic")
    return notebook


@pytest.fixture(scope="module")
def engines(site):
    """Engines that are given the GPUs of each node together."""
    notebook = notebook_on(site)
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
    answers = [site / f"told-{rank}" for rank in range(4)]
    assert all(each.exists() for each in answers), (site / "said").read_text()
    return [json.loads(each.read_text()) for each in answers]


def test_job_that_watches_itself(job):
    """Its hosts meet by the network of the job, where their names stand for nothing."""
    (text, clock_error_s), *others = job

    assert "rank 3 (node1) took" in text
    assert 0 < clock_error_s < 0.005
    assert others == [None] * 3


def hosts_in(said):
    """The host of each engine or rank, in the order of their numbers."""
    rows = [each.split() for each in said.splitlines() if each.strip()[:1].isdigit()]
    rows = [row for row in rows if {"node0", "node1"} & {*row}]
    assert [row[0] for row in rows] == [str(number) for number in range(len(rows))]
    return ["node0" if "node0" in row else "node1" for row in rows]


def test_lines_of_the_guide_start_engines(engines):
    """As many come as there are tasks, and each says its host."""
    said = engines.run("%gpu_ranks")

    assert "share one GPU on node" in said, engines.started
    assert sorted(hosts_in(said)) == ["node0", "node0", "node1", "node1"]
    assert engines.loaded == ""


def test_select_among_gpus_of_a_node(engines):
    """It shares out what the tasks of a node see."""
    said = engines.run("%gpu_ranks select")

    assert "4 engines on 2 hosts: local rank k takes GPU k" in said, engines.started


def test_ranks_of_one_host_follow_each_other(engines):
    """Engines come in any order; their ranks are dealt out host by host."""
    engines.run("%px import os; os.environ['GLOO_SOCKET_IFNAME'] = 'eth0'")
    said = engines.run("%gpu_ranks group").splitlines()
    found = hosts_in("\n".join(said))

    assert said[0].startswith("4 ranks on 2 hosts")
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


def test_select_among_gpus_of_a_task(site):
    """It leaves what each was given."""
    notebook = notebook_on(site, gpus="--gpus-per-task=1")
    said = notebook.run("%gpu_ranks select")
    notebook.run("rc.cluster.stop_cluster_sync()")
    notebook.end()

    own = "Slurm has given each a GPU of its own"
    assert f"4 engines on 2 hosts: {own}" in said, notebook.started
