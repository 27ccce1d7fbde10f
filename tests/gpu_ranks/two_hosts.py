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


def test_hosts_are_told_apart(two):
    """Each engine says its host; processes of two hosts may have one number."""
    report = two.ask()

    assert [each.host for each in report.seats] == ["node0"] * 2 + ["node1"] * 2
    assert not report.findings
    assert "2 hosts" in str(report)


def test_a_group_over_two_hosts(two):
    """They meet by the name of the first host."""
    report = two.ask("group")
    told = two.client[:].apply_sync(lambda: __import__("os").environ["MASTER_ADDR"])

    assert not report.unfinished, report
    assert [each.rank for each in report.seats] == [0, 1, 2, 3]
    assert [each.local_rank for each in report.seats] == [0, 1, 0, 1]
    assert set(told) == {"node0"}


def test_a_straggler_on_the_other_host(two):
    """It is named with its host; lanes have one clock, and its error."""
    report = two.cell(
        "import time, torch, torch.distributed as dist\n"
        "x = torch.ones(8)\n"
        "for step in range(5):\n"
        "    if dist.get_rank() == 3: time.sleep(0.1)\n"
        "    dist.all_reduce(x)\n"
    )

    assert not report.unfinished, report
    assert report.slowest == 3
    assert report.matched == 5
    assert "rank 3 (node1)" in str(report)
    assert 0 < report.clock_error_s < 0.005


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


@pytest.mark.parametrize("ahead_s", [0, 3])
def test_a_clock_that_is_ahead(two, ahead_s):
    """Who waits for whom is right though a host's clock is three seconds ahead."""
    ahead = (
        "import time\n"
        "from gpumagic.gpu_ranks import meeting as _c, on_rank as _o\n"
        "_was_time, _was_now = _o._recorded, _c.now_ns\n"
        f"_more = {ahead_s * 1_000_000_000}\n"
        "_c.now_ns = lambda: _was_now() + _more\n"
        "def _time(*given):\n"
        "    said = _was_time(*given)\n"
        "    moved = [[*r[:4], r[4] + _more, r[5] + _more, *r[6:]]"
        " for r in said.get('collectives', ())]\n"
        "    return said | {'collectives': moved, 'began_ns': said['began_ns'] + _more,"
        " 'ended_ns': said['ended_ns'] + _more}\n"
        "_o._recorded = _time\n"
    )
    two.on([2, 3], ahead)
    report = two.cell("time.sleep(0.2 + 0.4 * dist.get_rank()); dist.all_reduce(x)")
    two.on([2, 3], "_o._recorded, _c.now_ns = _was_time, _was_now")

    waits_s = [each.waits_s for each in report.times]
    assert waits_s == pytest.approx([1.2, 0.8, 0.4, 0.0], abs=0.2)
    assert 0 < report.clock_error_s < 0.005


def test_without_a_group_there_is_no_common_clock(two):
    """Nothing has compared the clocks of two hosts then, and nothing is made up."""
    two.on(two.client.ids, "dist.destroy_process_group()")
    report = two.cell("time.sleep(0.01)")

    assert report.clock_error_s is None


def test_select_on_each_host(two):
    """Local rank k of each host takes GPU k; by UUID these are four."""
    for engine in range(4):
        two.on(
            engine,
            "import gpumagic, os; os.environ.pop('RANK', None)\n"
            f"gpumagic.simulate('{('4xh100', '4xh200')[engine // 2]}')",
        )
    report = two.ask("select")

    assert report.chosen
    assert [each.gpu_number for each in report.seats] == [0, 1, 0, 1]
    assert len({each.gpu for each in report.seats}) == 4
    assert not report.findings


def test_killed_on_the_other_host(two):
    """Who is killed there is named, and where the others are."""
    assert not two.ask("group --backend gloo").unfinished
    # One that waits for another than the dead waits on.
    with ctrl_c(two.all_waiting(for_s=0.5), two.sent):
        report = two.cell(
            "import os, signal\n"
            "if dist.get_rank() == 3: os.kill(os.getpid(), signal.SIGKILL)\n"
            "import torch; dist.all_reduce(torch.ones(8))\n"
        )

    assert whys(report)[3] == "died"
    assert not report.times
