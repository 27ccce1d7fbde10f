"""A real cluster of four engines: what `%gpu_ranks` says of ranks that live and die.

The tests follow each other: a group is begun, used, hung, killed and begun anew.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from gpumagic.gpu_ranks import answer_where
from tests.gpu_ranks.notebooks import Notebook, ctrl_c, whys

pytest.importorskip("ipyparallel", reason="ipyparallel is not installed")
pytest.importorskip("torch", reason="torch is not installed")

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.filterwarnings("default"),  # ipyparallel's own
]


class Cluster(Notebook):
    """Four engines, and a shell in this process that has their client as `rc`."""

    def __init__(self, folder):
        import ipyparallel as ipp

        self.cluster = ipp.Cluster(
            n=4,
            log_level=40,
            profile_dir=str(folder / "four"),
        )
        super().__init__(self.cluster.start_and_connect_sync(activate=False))
        self.pids: dict[int, int] = {}  # of engines in a group

    def begin(self):
        """Make them a group, and say of it what is shown."""
        report = self.ask("group")
        self.pids = {each.engine: each.pid for each in report.seats}
        # They say where they are five times a second: nothing here is about how often.
        self.on(
            self.client.ids,
            "import functools\n"
            "from gpumagic.gpu_ranks import on_engine as _e, seen as _l\n"
            "_e.Lookout = functools.partial(_l.Lookout, every_s=0.2)",
        )
        return report

    def end(self):
        """No engine is left."""
        self.client.send_signal(signal.SIGKILL, block=False)  # to end nicely takes long
        until_s = time.monotonic() + 5
        while self.client.ids and time.monotonic() < until_s:
            time.sleep(0.05)
        super().end()
        self.cluster.stop_cluster_sync()


@pytest.fixture(scope="module")
def engines_alone(tmp_path_factory):
    """The cluster; it takes some seconds to start, and is started once."""
    before = os.environ.get("PYTHONPATH")
    root = str(Path(__file__).parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, before]))
    folder = tmp_path_factory.mktemp("cluster")
    cluster = Cluster(folder)
    yield cluster
    cluster.end()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@pytest.fixture
def four(engines_alone):
    """The cluster with a group, and with what cells here call torch and a tensor."""
    if not engines_alone.pids:
        engines_alone.begin()
        engines_alone.cell(
            "import time, torch, torch.distributed as dist\nx = torch.ones(8)"
        )
    return engines_alone


def test_a_group_begins(engines_alone):
    """Engines are named by their numbers, then by ranks; it is gloo without a GPU."""
    before = engines_alone.ask().seats
    report = engines_alone.begin()

    assert [(each.name, each.engine, each.rank) for each in before] == [
        (engine, engine, None) for engine in range(4)
    ]
    assert len({each.pid for each in before}) == 4
    assert not report.unfinished
    assert [each.rank for each in report.seats] == [0, 1, 2, 3]
    assert [each.local_rank for each in report.seats] == [0, 1, 2, 3]
    assert report.backend == "gloo"


def test_who_is_slow(four, capsys):
    """A rank that sleeps before a collective is the slow one; the others waited."""
    report = four.cell(
        "import time, torch, torch.distributed as dist\n"
        "x = torch.ones(8)\n"
        "if dist.get_rank() == 2: time.sleep(0.5)\n"
        "dist.all_reduce(x)\n"
        "print(x[0].item())\n"
    )

    assert report.slowest == 2
    assert report.matched == 1
    slow = report.times[2]
    assert slow.own_s >= 0.5
    assert all(each.waits_s > 0.3 for each in report.times if each is not slow)
    assert "[stdout: 0-3] 4.0" in capsys.readouterr().out


def test_groups_within_the_group_are_told_apart(four):
    """Collectives of two pairs, of which one has twice as many, find each other."""
    four.cell(
        "pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]\n"
        "mine = pairs[dist.get_rank() // 2]\n"
        "dist.all_reduce(x, group=mine)\n"
    )
    report = four.cell(
        "for step in range(6):\n"
        "    if dist.get_rank() == 2: time.sleep(0.1)\n"
        "    dist.all_reduce(x)\n"
        "    for _ in range(1 + dist.get_rank() // 2):\n"
        "        if dist.get_rank() == 2: time.sleep(0.02)\n"
        "        dist.all_reduce(x, group=mine)\n"
    )

    # 6 of all, 6 of the first pair, 12 of the second.
    assert (report.matched, report.unmatched) == (24, 0)
    assert report.slowest == 2
    waits = {each.name: each.waits_s for each in report.times}
    assert min(waits[name] for name in (0, 1, 3)) > 0.4 > waits[2]


@pytest.fixture
def shown(monkeypatch):
    """Whether the panel has said something since the test began."""
    drawing, titles = answer_where.Panel._drawing, []

    def noting(*given):
        drawn = drawing(*given)
        titles.append(drawn.title)
        return drawn

    monkeypatch.setattr(answer_where.Panel, "_drawing", noting)
    return lambda words: lambda: any(words in str(each) for each in titles)


def test_a_rank_raises(four, capsys):
    """It is named with its error and its line; the others have their times."""
    report = four.cell("if dist.get_rank() == 1: raise ValueError('planted')")

    (failed,) = report.unfinished
    assert (failed.name, failed.why, failed.text) == (
        1,
        "raised",
        "ValueError: planted",
    )
    assert failed.line.source.endswith("raise ValueError('planted')")
    assert [each.name for each in report.times] == [0, 2, 3]
    assert "ValueError" in capsys.readouterr().err


def test_magics_inside_a_cell_know_its_lines(four, capsys):
    """Also on an engine that has run more cells than the notebook."""
    four.on([0, 1], "get_ipython().run_line_magic('load_ext', 'gpumagic')")
    for _ in range(20):
        four.on([0], "pass")
    four.cell("%%cuda_sync_time --lines\nfor i in range(3): sum(range(9))", "--on 0,1")
    four.on([0, 1], "get_ipython().run_line_magic('unload_ext', 'gpumagic')")

    said = capsys.readouterr().out
    assert said.count("Time by line") == 2
    assert "]:2" not in said


SLOW = """end = time.monotonic() + 2.5
while time.monotonic() < end:
    torch.ones(64) @ torch.ones(64)
    time.sleep(0.002)
"""


def test_the_panel_becomes_the_report_and_is_drawn_four_times_a_second(
    four, monkeypatch
):
    """A front end gets one output, which at last is the report, and no more updates.

    A cell that computes for long says nothing of ranks that wait.
    """
    sent = []

    def publish(data, *_, transient=None, update=False, **__):
        sent.append((data, (transient or {}).get("display_id"), update))

    monkeypatch.setattr(four.shell.display_pub, "publish", publish)
    monkeypatch.setattr(answer_where, "HANG_S", 1.0)
    began_s = time.monotonic()
    four._run(f"%%gpu_ranks\n{SLOW}")
    took_s = time.monotonic() - began_s

    (place,) = {display_id for _, display_id, _ in sent}
    assert [update for *_, update in sent] == [False, *[True] * (len(sent) - 1)]
    assert 3 < len(sent) <= 4 * took_s + 2
    assert "engines run since" in sent[-2][0]["text/plain"]
    assert "have waited" not in "".join(data["text/plain"] for data, *_ in sent)
    assert "on 4 ranks" in sent[-1][0]["text/plain"]
    assert place


# ------------------------------------------------------------- hangs and Ctrl-C


def test_after_ctrl_c_nothing_more_is_asked(four, tmp_path):
    """A cell is not run after all where Ctrl-C came while engines were made ready."""
    four.on(
        [1],
        "from gpumagic.gpu_ranks import on_rank\n"
        "warm_up = on_rank.warm_up\n"
        "from pathlib import Path\n"
        f"began = Path('{tmp_path}/began')\n"
        "on_rank.warm_up = lambda: (began.touch(), time.sleep(30))\n"
        "ran = False",
    )
    magics = four.shell.magics_manager.registry["RanksMagics"]
    magics._notebook._warm.clear()
    with ctrl_c((tmp_path / "began").exists), pytest.raises(KeyboardInterrupt):
        four.cell("ran = True", "--on 1")
    four.on([1], "on_rank.warm_up = warm_up")

    assert four.client[1]["ran"] is False


def test_a_hang_and_two_ctrl_c(four, capsys, monkeypatch):
    """A hang is told while it lasts; `where` tells until the missing rank has come."""
    from gpumagic.errors import GpuMagicError

    monkeypatch.setattr(answer_where, "HANG_S", 1.0)
    with ctrl_c(four.waiting(0, 1, 3, for_s=1.3), four.sent):
        report = four.cell(
            "if dist.get_rank() == 2:\n"
            "    for _ in range(120): time.sleep(0.1)\n"
            "dist.all_reduce(x)\n",
        )
    while_it_hung = capsys.readouterr().out
    (waiting,) = four.ask("where").waiting

    assert "have waited" in while_it_hung
    assert set(whys(report)) >= {0, 1, 3}
    assert waiting.collective == "all_reduce"
    assert (waiting.waiting, waiting.missing) == ((0, 1, 3), (2,))
    assert waiting.waited_s > 1
    with pytest.raises(GpuMagicError, match="busy"):
        four.cell("pass")

    four.cell("dist.all_reduce(x)", "--on 2")  # Ctrl-C has ended its cell before
    four.rest()
    where, report = four.ask("where"), four.cell("dist.barrier()")
    assert not where.waiting
    assert not report.unfinished
    assert report.matched == 1


# ------------------------------------------------------- engines that come and go


def test_what_was_begun_a_moment_ago_is_waited_for(four):
    """As by `scatter`, which does not wait: the cell runs behind it."""
    begun = four.client[:].execute("import time; time.sleep(0.3)", block=False)

    assert not four.cell("pass").unfinished
    begun.get()


def test_engines_busy_with_something_else(four, tmp_path):
    """What others have begun on an engine is not queued behind: it is named."""
    from gpumagic.errors import GpuMagicError

    over = tmp_path / "over"
    wait = f"from pathlib import Path; over = Path('{over}')\n"
    wait += "while not over.exists(): time.sleep(0.01)"
    busy = four.client[[0, 2]].execute(wait, block=False)
    with pytest.raises(GpuMagicError, match="0 and 2"):
        four.cell("pass")
    seats = four.ask()
    alone = four.cell("pass", "--on 1,3")
    over.touch()
    busy.get()

    assert [each.name for each in seats.seats] == [1, 3]
    assert whys(seats) == {0: "silent", 2: "silent"}
    assert [each.name for each in alone.times] == [1, 3]


def test_an_engine_without_gpumagic(four):
    """It is said what it lacks, and the others answer."""
    hide = "import sys; _kept = {k: sys.modules.pop(k) for k in list(sys.modules) if "
    hide += "k.startswith('gpumagic')}; sys.modules['gpumagic'] = None"
    show = "import sys; sys.modules.update(_kept)"
    four.client[1].execute(hide, block=True)
    report = four.ask()
    # A line that failed has the engine drop those that come right behind it.
    four.client[1].apply_sync(exec, show)

    (without,) = report.unfinished
    assert (without.name, without.why) == (1, "garbage")
    assert "pip install" in without.text
    assert [each.name for each in report.seats] == [0, 2, 3]


def test_ranks_that_do_not_hear_ctrl_c_are_replaced(four, capsys, shown):
    """Who waits in gloo does not hear it; what is to be typed brings a new engine."""
    from gpumagic.errors import GpuMagicError

    with ctrl_c(four.waiting(1), shown("not hear Ctrl-C")):
        report = four.cell(
            "if dist.get_rank() == 1: dist.recv(x)\n"
            "elif dist.get_rank() == 2: time.sleep(60)"
        )
    told = capsys.readouterr().out
    with pytest.raises(GpuMagicError, match="busy with what was begun before: 1") as no:
        four.ask("group")
    four._run(no.value.hint)
    until_s = time.monotonic() + 20
    while 1 in four.client.ids and time.monotonic() < until_s:
        time.sleep(0.05)
    begun = four.begin()

    assert "rank 1 does not hear Ctrl-C: press it again to stop waiting" in told
    assert whys(report) == {1: "deaf", 2: "interrupted"}
    assert no.value.hint == report.restart
    assert not begun.unfinished
    assert [each.engine for each in begun.seats] == [0, 2, 3, 4]


def test_killed_inside_a_collective(four):
    """Who is killed is named first; those that are left make a group."""
    four.cell("import os, signal, time, torch, torch.distributed as dist")
    with ctrl_c(four.all_waiting(for_s=0.5), four.sent):
        report = four.cell(
            "x = torch.ones(8)\n"
            "if dist.get_rank() == 3: os.kill(os.getpid(), signal.SIGKILL)\n"
            "dist.all_reduce(x)\n"
        )
    for engine, pid in four.pids.items():  # a rank of gloo that waits hears nobody
        if engine in four.busy():
            os.kill(pid, signal.SIGKILL)
    four.rest()
    if len(four.client.ids) < 2:
        four.cluster.start_engines_sync(n=1)
        four.client.wait_for_engines(2, timeout=60)
    left = list(four.client.ids)
    again, cell = four.ask("group"), four.cell("dist.barrier()")

    why = whys(report)
    assert "rank 3 died" in str(report).splitlines()[0]
    assert why.pop(3) == "died"
    assert "lost" in why.values()
    assert not report.times
    assert not again.unfinished
    assert [each.engine for each in again.seats] == left
    assert cell.matched == 1


# --------------------------------------------------------------- simulated GPUs


def test_a_cell_that_ends_the_group(four, capsys):
    """As scripts do in their last line: nobody is asked over what is gone by then."""
    four.ask("group")
    four.cell("import time, torch, torch.distributed as dist; x = torch.ones(8)")
    report = four.cell("dist.all_reduce(x)\ndist.destroy_process_group()")
    without = four.cell("x = x * 2")
    said = capsys.readouterr().err
    again = four.ask("group")

    assert not report.unfinished
    assert report.matched == 1
    assert not without.unfinished
    assert said == ""
    assert not again.unfinished


def test_select_gives_each_engine_a_gpu_or_none_any(four, capsys):
    """Local rank k sees GPU k alone; where it is too late for one, nothing is done."""
    simulate = "import gpumagic; gpumagic.simulate('4xh100')"
    four.rest()
    ids = four.client.ids
    four.client[ids].execute(simulate, block=True)
    four.cell("import torch; y = torch.ones(8, device='sim:0')", f"--on {ids[1]}")
    too_late = four.ask("select")
    capsys.readouterr()
    four.cell("import os; print('sees', os.environ.get('CUDA_VISIBLE_DEVICES'))")
    after = capsys.readouterr().out
    four.client[ids].execute(simulate, block=True)
    chosen = four.ask("select")

    assert not too_late.chosen
    assert whys(too_late) == {1: "refused"}
    assert "] sees None" in after
    assert after.count("] sees") == 1  # the same of all
    assert chosen.chosen
    assert [each.gpu_number for each in chosen.seats] == list(range(len(ids)))


def test_memory_of_each_rank(four):
    """--mem tells each rank's peak and limit, and who would run out first."""
    report = four.cell(
        "import torch\nz = torch.ones((1 + dist.get_rank()) << 20, device='sim')\n",
        "--mem",
    )

    last = len(four.client.ids) - 1
    assert report.with_memory
    assert [each.name for each in report.memory] == list(range(last + 1))
    assert report.memory[last].peak_bytes >= (1 + last) << 22
    assert report.runs_out_first == last


def test_a_hang_of_simulated_gpus_is_told_and_hears_ctrl_c(
    four, capsys, shown, monkeypatch
):
    """Who waits for whom is said while it lasts; one Ctrl-C brings all ranks back."""
    four.ask("group")
    ranks = range(len(four.client.ids))
    capsys.readouterr()
    monkeypatch.setattr(answer_where, "HANG_S", 1.0)
    with ctrl_c(shown("has not called it")):
        began_s = time.monotonic()
        report = four.cell(
            "x = torch.ones(64, device='sim')\n"
            "if dist.get_rank() == 1:\n"
            "    time.sleep(60)\n"
            "dist.all_reduce(x)\n"
            "print(x[0].item())\n",
        )
        took_s = time.monotonic() - began_s
    told = capsys.readouterr().out

    waiting = [each for each in ranks if each != 1]
    assert "rank 1 has not called it: line " in told, told
    assert "line 3, time.sleep(60)" in told
    assert took_s < 20
    assert whys(report) == dict.fromkeys(ranks, "interrupted")
    (open_call,) = report.waiting
    assert (open_call.collective, open_call.missing) == ("all_reduce", (1,))
    assert open_call.waiting == tuple(waiting)


def test_everybody_holds_memory_on_gpu_0(four):
    """Who has used GPU 0 before its own is named, by what the driver lists there."""
    from gpumagic.gpu_ranks.answer_seats import Misplaced

    four.on(
        four.client.ids,
        "import gpumagic, os; os.environ.pop('CUDA_VISIBLE_DEVICES', None)\n"
        "gpumagic.simulate('4xh100')",
    )
    four.cell(
        "import os, torch\n"
        "first = torch.ones(1000, device='sim:0')\n"
        "torch.sim.set_device(int(os.environ['LOCAL_RANK']))\n"
        "then = torch.ones(1000, device='sim')\n"
    )
    (found,) = four.ask().findings

    assert found.kind is Misplaced.ON_GPU_0
    assert len(found.ranks) == len(four.client.ids) - 1
