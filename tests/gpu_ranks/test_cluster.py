"""A real cluster of four engines: what `%gpu_ranks` says of ranks that live and die.

The tests follow each other: a group is begun, used, hung, killed and begun anew.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from gpumagic.gpu_ranks import engines, live, notebook
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
            "from gpumagic.gpu_ranks import lookout as _l, on_engine as _e\n"
            "_e.Lookout = functools.partial(_l.Lookout, every_s=0.2)",
        )
        return report

    @property
    def inside(self):
        """What the magic keeps of this cluster."""
        from gpumagic.gpu_ranks.magic import RanksMagics

        magics = self.shell.magics_manager.registry[RanksMagics.__name__]
        return magics._notebook_here()

    def end(self):
        """No engine is left."""
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


# --------------------------------------------------------------- before a group


def test_without_a_group_engines_are_named_by_their_numbers(engines_alone):
    """Each engine has a seat, though torch has been imported nowhere."""
    report = engines_alone.ask()

    assert [each.name for each in report.seats] == [0, 1, 2, 3]
    assert [each.engine for each in report.seats] == [0, 1, 2, 3]
    assert len({each.pid for each in report.seats}) == 4
    assert {each.rank for each in report.seats} == {None}


@pytest.mark.parametrize("typed", ["7", "1-9", "x", "3-1", "0,,2", "99999999999999"])
def test_engines_that_are_not_there(engines_alone, typed):
    """Who names engines that are not there is told so, before anybody is asked."""
    from gpumagic.errors import GpuMagicError

    with pytest.raises(GpuMagicError, match="engine"):
        engines_alone.cell("pass", f"--on {typed}")


# -------------------------------------------------------------------- the group


def test_a_group_begins(engines_alone):
    """Ranks follow the engines; it is gloo where there is no GPU."""
    report = engines_alone.begin()

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


def test_slow_inside_backward(four):
    """A rank that is slow inside DDP's backward is named, though all take as long."""
    four.cell(
        "class Slow(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, x): return x.clone()\n"
        "    @staticmethod\n"
        "    def backward(ctx, g):\n"
        "        if dist.get_rank() == 3: time.sleep(0.5)\n"
        "        return g\n"
        "first, second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.a, self.b = first, second\n"
        "    def forward(self, x): return self.b(Slow.apply(self.a(x)))\n"
        "model = torch.nn.parallel.DistributedDataParallel(Net())\n"
    )
    report = four.cell("model(torch.randn(8, 64)).sum().backward()")

    assert report.slowest == 3
    walls = [each.elapsed_s for each in report.times]
    assert max(walls) < 1.5 * min(walls)


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
    drawing, titles = live.Panel._drawing, []

    def noting(*given):
        drawn = drawing(*given)
        titles.append(drawn.title)
        return drawn

    monkeypatch.setattr(live.Panel, "_drawing", noting)
    return lambda words: lambda: any(words in str(each) for each in titles)


def test_of_very_many_the_last_collectives_are_compared(four):
    """Above the limit ranks send their last ones, and the report says so."""
    most = "import gpumagic.gpu_ranks.answers as _a; _a.MOST_IN_ALL = {}"
    four.on(slice(None), most.format(16))
    report = four.cell(
        "for step in range(6):\n"
        "    if dist.get_rank() == 2: time.sleep(0.1)\n"
        "    dist.all_reduce(x)\n"
    )
    four.on(slice(None), most.format(200_000))

    assert (report.slowest, report.unmatched) == (2, 0)
    assert report.matched in (3, 4)  # one may lie across the edge
    assert 0.2 < report.told_s < report.took_s
    assert " known of " in str(report)


def test_the_last_value_and_displays_are_shown(four, capsys):
    """The value of the last line is shown of each engine, as under %%px."""
    four.cell("dist.get_rank() + 40")

    assert "40" in (out := capsys.readouterr().out)
    assert "43" in out


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


def test_a_cell_that_awaits(four, capsys):
    """It runs as in a plain cell, values and errors and all, and hears Ctrl-C."""
    report = four.cell("import asyncio\nawait asyncio.sleep(0.1)\nprint('slept')")
    failed = four.cell("await asyncio.sleep(0)\n1 / 0", "--on 0,2")
    with ctrl_c(four.running(1)):
        stopped = four.cell("await asyncio.sleep(30)", "--on 1")
    again = four.cell("await asyncio.sleep(0.01)\ndist.all_reduce(x)")

    assert "[stdout: 0-3] slept" in capsys.readouterr().out
    assert all(0.1 < each.elapsed_s < 5 for each in report.times)
    assert whys(failed) == {0: "raised", 2: "raised"}
    assert whys(stopped) == {1: "interrupted"}
    assert not again.unfinished
    assert again.matched == 1


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
    monkeypatch.setattr(notebook, "_HANG_S", 1.0)
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


def test_ctrl_c_is_sent_to_the_engines(four):
    """One Ctrl-C interrupts the engines that are used, and the report says so."""
    with ctrl_c(four.running(1, 3)):
        report = four.cell("import time; time.sleep(30)", "--on 1,3")

    assert whys(report) == {1: "interrupted", 3: "interrupted"}


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
    four.inside._warm.clear()
    with ctrl_c((tmp_path / "began").exists), pytest.raises(KeyboardInterrupt):
        four.cell("ran = True", "--on 1")
    four.on([1], "on_rank.warm_up = warm_up")

    assert four.client[1]["ran"] is False


def test_a_hang_and_two_ctrl_c(four, capsys, monkeypatch):
    """A hang is told while it lasts; after two Ctrl-C `where` tells, a cell refuses."""
    from gpumagic.errors import GpuMagicError

    monkeypatch.setattr(notebook, "_HANG_S", 1.0)
    with ctrl_c(four.waiting(0, 1, 3, for_s=1.3), four.sent):
        report = four.cell(
            "if dist.get_rank() == 2:\n"
            "    for _ in range(120): time.sleep(0.1)\n"
            "dist.all_reduce(x)\n",
        )
    while_it_hung = capsys.readouterr().out
    where = four.ask("where")

    assert "have waited" in while_it_hung
    assert set(whys(report)) >= {0, 1, 3}
    (waiting,) = where.waiting
    assert waiting.collective == "all_reduce"
    assert waiting.waiting == (0, 1, 3)
    assert waiting.waited_s > 1
    assert waiting.missing == (2,)
    with pytest.raises(GpuMagicError, match="busy"):
        four.cell("pass")


def test_when_the_missing_rank_has_come_all_is_as_before(four):
    """Ranks that nobody waits for go on: `where` has them at the end, cells run."""
    four.cell("dist.all_reduce(x)", "--on 2")  # Ctrl-C has ended its cell before
    four.rest()
    where = four.ask("where")
    report = four.cell("dist.barrier()")

    assert not where.waiting
    assert not report.unfinished
    assert report.matched == 1


def test_ranks_that_do_not_hear_ctrl_c_are_named(four, capsys, shown):
    """Who waits in gloo does not hear it, and it is said who came back."""
    with ctrl_c(four.waiting(0, 1, 3, for_s=0.1), shown("do not hear Ctrl-C")):
        report = four.cell(
            "if dist.get_rank() != 2: dist.all_reduce(x)\nelse: time.sleep(60)"
        )
    told = capsys.readouterr().out
    four.cell("dist.all_reduce(x)", "--on 2")  # which sets the others free
    four.rest()

    assert "ranks 0, 1, 3 do not hear Ctrl-C: press it again to stop waiting" in told
    assert whys(report) == {2: "interrupted", **dict.fromkeys((0, 1, 3), "deaf")}
    assert report.restart.endswith("rc.send_signal(9, [0, 1, 3])")


def test_a_group_that_cannot_be_left_is_named_with_what_to_type(four):
    """Where torch itself hangs nobody waits for it: it is said which engine it is."""
    from gpumagic.errors import GpuMagicError

    hang = (
        "from gpumagic.gpu_ranks import joining as _j\n"
        "_j._ENDS_S = 0.2\n"
        "_destroy, dist.destroy_process_group = dist.destroy_process_group, {}"
    )
    four.on(1, hang.format("lambda: time.sleep(60)"))
    with pytest.raises(GpuMagicError, match="1 engine cannot leave") as failed:
        four.ask("group")
    four.on(1, "dist.destroy_process_group = _destroy; _j._ENDS_S = 10.0")
    four.ask("group")

    assert "rc.cluster.start_engines_sync(n=1)" in failed.value.hint
    assert failed.value.hint.endswith("rc.send_signal(9, [1])")


# ------------------------------------------------------- engines that come and go


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


def test_a_line_that_fails_right_before_takes_no_rank_away(four, monkeypatch):
    """Its engine drops what came meanwhile, and the others wait: it is asked again."""
    four.ask("group")
    four.cell("import time, torch, torch.distributed as dist\nx = torch.ones(8)")
    monkeypatch.setattr(engines.Engines, "busy", lambda *_: [])
    line = "time.sleep(0.5); 1 / 0"
    failing = four.client[1].execute(line, silent=False, block=False)
    report = four.cell("dist.all_reduce(x)")
    again = four.ask("group")

    assert "division" in str(failing.exception())
    assert not report.unfinished
    assert report.matched == 1
    assert not again.unfinished


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


def test_killed_inside_a_collective(four):
    """Who is killed is named first; the ranks that waited have lost it."""
    with ctrl_c(four.all_waiting(for_s=0.5), four.sent):
        report = four.cell(
            "import os, signal\n"
            "if dist.get_rank() == 3: os.kill(os.getpid(), signal.SIGKILL)\n"
            "dist.all_reduce(x)\n"
        )

    why = whys(report)
    assert str(report).startswith("rank 3 died" if "deaf" in why.values() else "none")
    assert why.pop(3) == "died"
    assert "lost" in why.values()
    assert not report.times


def test_a_dead_group_is_begun_anew(four):
    """Those that are left, and engines that have joined since, make a group."""
    for engine, pid in four.pids.items():  # a rank of gloo that waits hears nobody
        if engine in four.busy():
            os.kill(pid, signal.SIGKILL)
    four.rest()
    left = list(four.client.ids)
    four.cluster.start_engines_sync(n=1)
    four.client.wait_for_engines(len(left) + 1, timeout=60)
    report = four.ask("group")
    cell = four.cell("import torch, torch.distributed as dist\ndist.barrier()")

    assert not report.unfinished
    assert [each.rank for each in report.seats] == list(range(len(left) + 1))
    assert [each.engine for each in report.seats] == [*left, 4]
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
    monkeypatch.setattr(notebook, "_HANG_S", 1.0)
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


def test_of_a_long_cell_the_first_part_is_traced(four):
    """A trace of hours would fill the memory: what all traced is told, as a part."""
    ranks = "__import__('gpumagic.gpu_ranks.on_rank', fromlist=['x'])"
    step = (
        "    for _ in range(40 if dist.get_rank() == 1 else 10):\n"
        "        x = (x @ x).clamp(-1, 1)\n"
        "    dist.all_reduce(x)\n"
    )
    four.ask("group")  # what Ctrl-C has broken off holds nobody up
    four.on(four.client.ids, f"{ranks}._TRACED_S = 4.0")
    report = four.cell(
        "import threading\n"
        "x = torch.ones(256, 256, device='sim')\n"
        f"for _ in range(5):\n{step}"
        "x.sum().item()\n"
        "timer = threading.Timer\n"
        "while any(isinstance(each, timer) for each in threading.enumerate()):\n"
        "    time.sleep(0.01)\n"
        f"for _ in range(20):\n{step}"
    )
    four.on(four.client.ids, f"{ranks}._TRACED_S = 10.0")

    assert not report.unfinished
    assert (report.matched, report.unmatched, report.slowest) == (5, 0, 1)
    assert report.told_s < 0.8 * report.took_s


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


def test_what_is_to_be_typed_helps_where_an_engine_does_not_hear_ctrl_c(four):
    """The line that is hinted at lets a new engine take its place."""
    from gpumagic.errors import GpuMagicError

    four.ask("group --backend gloo")
    count = len(four.client.ids)
    engine = four.client.ids[1]
    with ctrl_c(four.waiting(engine), four.sent):
        four.cell("x = torch.ones(4)\nif dist.get_rank() == 1: dist.recv(x)")
    with pytest.raises(GpuMagicError, match=f"busy.*: {engine}") as failed:
        four.ask("group")
    four._run(failed.value.hint)
    until_s = time.monotonic() + 20
    while engine in four.client.ids and time.monotonic() < until_s:
        time.sleep(0.05)
    report = four.ask("group --backend gloo")

    assert not report.unfinished
    assert len(report.seats) == count
    assert engine not in [each.engine for each in report.seats]
