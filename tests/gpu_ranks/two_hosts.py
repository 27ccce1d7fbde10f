"""What `%gpu_ranks` says of engines on two hosts, which `test_hosts` runs by itself.

The tests follow each other: GPUs are chosen, a group is begun, used and killed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu_ranks import hosts
from tests.gpu_ranks.notebooks import Notebook, ctrl_c, whys

pytestmark = pytest.mark.filterwarnings("default")  # ipyparallel's own


class Engines(Notebook):
    """A controller beside this process, and two engines on each of two hosts."""

    def __init__(self, machines, folder):
        import ipyparallel as ipp

        self.hosts = machines
        self.cluster = ipp.Cluster(
            n=0, controller_ip="*", log_level=40, profile_dir=str(folder / "two")
        )
        self.cluster.start_controller_sync()
        self.client = client = self.cluster.connect_client_sync()
        self.processes = []
        for at, host in enumerate(machines.values()):
            for _ in range(2):
                self.start_engine(host)
            # The first host's engines come first, as a batch system numbers tasks.
            client.wait_for_engines(2 * (at + 1), timeout=120)
        super().__init__(client)

    def start_engine(self, host):
        """Start one, as a task of a batch system would."""
        security = Path(self.cluster.profile_dir) / "security"
        (file,) = security.glob("*-engine.json")
        engine = ["-m", "ipyparallel.engine", f"--file={file}"]
        # Their names stand for themselves there, so gloo is told its network.
        network = {"GLOO_SOCKET_IFNAME": "eth0"}
        self.processes.append(host.python(*engine, env=network))

    def end(self):
        """No process is left."""
        super().end()
        self.cluster.stop_cluster_sync()
        for process in self.processes:
            process.terminate()


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The cluster; it is started once."""
    if not hosts.is_inside():
        pytest.skip("it needs a network of its own: see test_hosts.py")
    folder = tmp_path_factory.mktemp("hosts")
    with hosts.made(["node0", "node1"], folder) as machines:
        cluster = Engines(machines, folder)
        yield cluster
        cluster.end()


def test_select_on_each_host(two):
    """Local rank k of each host takes GPU k; by UUID these are four."""
    before = two.ask()
    for engine in range(4):
        simulated = f"box = gpumagic.simulate('4x{('h100', 'h200')[engine // 2]}')"
        two.on(engine, f"import gpumagic; {simulated}")
    report = two.ask("select")
    two.on(two.client.ids, "box.off()")

    assert [each.host for each in before.seats] == ["node0"] * 2 + ["node1"] * 2
    assert "2 hosts" in str(before)
    assert report.chosen
    assert [each.gpu_number for each in report.seats] == [0, 1, 0, 1]
    assert len({each.gpu for each in report.seats}) == 4
    assert not before.findings
    assert not report.findings


def test_a_group_over_two_hosts(two):
    """They meet by the name of the first host."""
    report = two.ask("group")
    told = two.client[:].apply_sync(lambda: __import__("os").environ["MASTER_ADDR"])

    assert not report.unfinished, report
    assert [each.rank for each in report.seats] == [0, 1, 2, 3]
    assert [each.local_rank for each in report.seats] == [0, 1, 0, 1]
    assert set(told) == {"node0"}


def test_a_straggler_on_the_other_host(two):
    """It is named with its host: a profile tells, as clocks are not compared."""
    report = two.cell(
        "import time, torch, torch.distributed as dist\n"
        "x = torch.ones(8)\n"
        "for step in range(5):\n"
        "    if dist.get_rank() == 3: time.sleep(0.1)\n"
        "    dist.all_reduce(x)\n"
    )

    assert not report.unfinished, report
    assert (report.slowest, report.moves_known) == (3, True)
    assert report.matched >= 4  # on a busy host gloo may note one after the profile
    assert "rank 3 (node1)" in str(report)
    for each in report.times:
        assert (each.waits_s > 0.3) == (each.name != 3)


def test_a_hang_over_two_hosts(two):
    """`where` names who is missing, on whichever host."""
    with ctrl_c(two.waiting(0, 1, 3, for_s=0.5), two.sent):
        two.cell("if dist.get_rank() != 2: dist.all_reduce(x)")
    where = two.ask("where")
    waited = two.busy()
    two.cell("dist.all_reduce(x)", "--on 2")  # which sets the others free
    two.rest()
    after = two.cell("dist.all_reduce(x)")

    (waiting,) = where.waiting
    assert (waiting.waiting, waiting.missing) == ((0, 1, 3), (2,))
    assert waited == [0, 1, 3]
    assert after.matched == 1


def test_killed_on_the_other_host(two):
    """Who is killed there is named, and where the others are."""
    # One that waits for another than the dead waits on.
    with ctrl_c(two.all_waiting(for_s=0.5), two.sent):
        report = two.cell(
            "import os, signal\n"
            "if dist.get_rank() == 3: os.kill(os.getpid(), signal.SIGKILL)\n"
            "dist.all_reduce(x)\n"
        )

    assert whys(report)[3] == "died"
    assert not report.times
