"""Engines that ipyparallel starts by SSH on two hosts; `test_launchers` runs it.

The tests follow each other, in one notebook with a kernel of its own.
"""

from __future__ import annotations

import subprocess

import pytest

from tests.docs.pages import REPOSITORY, blocks
from tests.gpu_ranks import hosts, sites
from tests.gpu_ranks.notebooks import KernelNotebook

(LINES,) = (
    each.text
    for each in blocks(REPOSITORY / "docs" / "gpu_ranks.md", "py")
    if "SSHEngineSetLauncher" in each.text
)
FEWER = LINES.replace('": 4', '": 2').replace("n=8", "n=4")  # engines on each host

pytestmark = pytest.mark.filterwarnings("default")  # those of others


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The notebook; the lines of the guide are the first that it runs."""
    if not hosts.is_inside():
        pytest.skip("it needs a network of its own: see test_launchers.py")
    folder = tmp_path_factory.mktemp("ssh")
    with sites.with_logins(("node0", "node1"), folder) as machines:
        notebook = KernelNotebook(folder)
        notebook.hosts = machines
        notebook.started = notebook.run(f"import ipyparallel as ipp\n{FEWER}")
        notebook.loaded = notebook.run("%load_ext gpumagic")
        yield notebook
        notebook.end()


def engines_of(host):
    """How many engines run on a host."""
    inside = ["nsenter", "-t", str(host.pid), "-p", "-m"]
    listed = subprocess.run(
        [*inside, "ps", "-eo", "args"], capture_output=True, text=True, check=True
    )
    lines = listed.stdout.splitlines()
    return sum(each.endswith("ipyparallel.engine") for each in lines)


def test_lines_of_the_guide_start_engines(two):
    """As many come as are written down for each host, though this one is small."""
    said = two.run("%gpu_ranks")

    assert "Error" not in two.started
    assert two.loaded == ""
    assert "4 engines on 2 hosts" in said, two.started
    assert [engines_of(host) for host in two.hosts.values()] == [2, 2]


def test_select_on_each_host(two):
    """Local rank k of each host takes GPU k."""
    two.run(
        "for engine in range(4):\n"
        "    rc[engine].execute('import gpumagic; box = gpumagic.simulate('\n"
        "        f'\"2x2xh100\", host={engine // 2})', block=True)\n"
    )
    said = two.run("%gpu_ranks select")
    two.run("%px box.off()")

    assert "4 engines on 2 hosts: local rank k takes GPU k" in said


def test_a_group(two):
    """They meet by the name of the first host, and gloo is told its network."""
    two.run("%px import os; os.environ['GLOO_SOCKET_IFNAME'] = 'eth0'")
    said = two.run("%gpu_ranks group")

    assert "4 ranks on 2 hosts" in said


def test_who_is_slow(two):
    """It is named with its host."""
    said = two.run(
        "%%gpu_ranks\n"
        "import time, torch, torch.distributed as dist\n"
        "x = torch.ones(8)\n"
        "for step in range(5):\n"
        "    if dist.get_rank() == 3: time.sleep(0.1)\n"
        "    dist.all_reduce(x)\n"
    )

    assert "rank 3 (node1) took" in said.splitlines()[0]


def test_memory(two):
    """Without a GPU nobody tells of memory, which is said."""
    said = two.run("%%gpu_ranks --mem\nx = torch.ones(1000)")

    assert "no rank tells of memory" in said


def test_the_interrupt_button_reaches_engines(two):
    """Ctrl-C comes to all, through the engines' own nannies, and nobody else ends."""
    said = two.run("%%gpu_ranks\ntime.sleep(60)", "4 of 4 engines run")

    assert "ranks 0 to 3 were interrupted" in said.splitlines()[0], said
    assert "wait(host=" not in said  # what ipyparallel looks after engines with
    assert "4 ranks on 2 hosts" in two.run("%gpu_ranks")


def test_who_is_missing(two):
    """While ranks wait it is told who has not come, and from which host they wait."""
    said = two.run(
        "%%gpu_ranks --hang 2s\n"
        "if dist.get_rank() == 2: time.sleep(60)\n"
        "dist.all_reduce(x[:8])",
        "rank 2 has not called it",
        "ranks 0, 1, 3 do not hear Ctrl-C",
    )
    where = two.run("%gpu_ranks where")
    freed = two.run("%%gpu_ranks --on 2\ndist.all_reduce(x[:8])")
    two.run("rc[:].execute('pass', block=True)")  # when all have come to its end

    assert "ranks 0, 1, 3 do not hear Ctrl-C" in said, said
    assert "rank 2 has not called it" in where
    assert "on one rank" in freed
    assert "4 ranks on 2 hosts" in two.run("%gpu_ranks")


def test_an_engine_is_killed(two):
    """It is named, and a group begins anew among those that are left."""
    said = two.run(
        "%%gpu_ranks\n"
        "import os, signal\n"
        "if dist.get_rank() == 1: os.kill(os.getpid(), signal.SIGKILL)"
    )
    anew = two.run("%gpu_ranks group")

    assert said.startswith("3 of 4 ranks finished; rank 1 died")
    # ipyparallel may say something about its logs beside it.
    assert "3 ranks on 2 hosts, without a GPU" in anew.splitlines()
    assert ["1", "2", "node1"] in [each.split()[:3] for each in anew.splitlines()]


def test_nothing_is_left_of_it(two):
    """Stopped as any cluster is, no host has an engine."""
    two.run("rc.cluster.stop_cluster_sync()")

    assert [engines_of(host) for host in two.hosts.values()] == [0, 0]
