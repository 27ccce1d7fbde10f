"""watch(): a job of four ranks that watch themselves, and the pure part of it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpumagic import gpu_ranks
from gpumagic.errors import GpuMagicError
from gpumagic.gpu_ranks import watching
from gpumagic.gpu_ranks.answers import VERSION
from tests import own_process

if TYPE_CHECKING:
    from collections.abc import Callable

    Case = Callable[..., dict[str, Any]]

ROOT = Path(__file__).parents[2]
RANKS, SLOW_S, STEPS = 4, 0.05, 6
FEW = 2  # ranks of the job that does everything wrong
LATE = {  # who is slow in a training, and for how long in all
    "plain": (1, STEPS * SLOW_S),
    "sharded": (2, STEPS * SLOW_S),
    "pipeline": (1, 2 * STEPS * SLOW_S),
}
TRAININGS = [*LATE, "sends"]
BLOCKS = ["slow", "one", "many", "apart", "hangs", "fails_within", "killed"]
MS = 1_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the job has written, which is started once: that takes longest."""
    found = tmp_path_factory.mktemp("job")
    with pytest.MonkeyPatch.context() as patch:
        # A recorder with few calls is asked for those beside which ranks go on.
        patch.setenv("TORCH_FR_BUFFER_SIZE", "300")
        cases = ",".join(TRAININGS + BLOCKS)
        own_process.run_ranks("tests.gpu_ranks.watched_job", RANKS, found, cases)
    return found


@pytest.fixture
def case(folder: Path) -> Case:
    """What a rank wrote of a case."""
    return lambda name, rank=0: json.loads((folder / f"{name}.{rank}.json").read_text())


# ------------------------------------------------------------------ who is slow


@pytest.mark.parametrize("name", LATE)
def test_who_is_slow_is_named_in_any_training(case: Case, name: str) -> None:
    """The rank that was made slow is the one named, and its own work has it all."""
    (report, text), (late, planted_s) = (
        map(case(name).get, ("report", "text")),
        LATE[name],
    )
    assert report["slowest"] == late, text
    own_s = [each["own_s"] for each in report["times"]]
    assert own_s[late] == max(own_s)
    # While a message is on its way, what is computed beside it counts as moved.
    assert own_s[late] >= planted_s * (0.4 if name == "pipeline" else 0.9)
    if name != "pipeline":  # who waits for whom in a message is not told
        others_s = [each["waits_s"] for each in report["times"] if each["name"] != late]
        assert min(others_s) >= planted_s / 3  # they may be late themselves
        assert f"rank {late} took" in text.splitlines()[0]


@pytest.mark.parametrize("name", TRAININGS)
def test_training_is_what_it_was(case: Case, name: str) -> None:
    """Weights and random numbers are equal to the bit, no call or group is added."""
    for rank in range(RANKS):
        said = case(name, rank)
        assert said["watched"] == said["bare"]
        assert (said["groups_left"], said["threads_left"]) == (0, [])


def test_what_is_only_sent_is_said_to_be_unknown(case: Case) -> None:
    """Of a pipeline the recorder knows nothing: no rank is said to wait for nobody."""
    assert "waiting cannot be measured" in case("sends")["text"]
    assert "watch(profile=True)" in case("sends")["text"]


@pytest.mark.parametrize(
    ("name", "told_by"), [("slow", "flight recorder"), ("apart", "profiler")]
)
def test_straggler_is_named(case: Case, name: str, told_by: str) -> None:
    """By the recorder transfers are unknown; on several machines a profile tells."""
    report = case(name)["report"]
    assert report["slowest"] == 2
    assert (report["told_by"], report["moves_known"]) == (told_by, name == "apart")
    for rank, each in enumerate(report["times"]):
        parts_s = each["own_s"] + each["waits_s"] + each["moves_s"]
        assert parts_s == pytest.approx(each["elapsed_s"])
        assert (each["waits_s"] > 5 * SLOW_S) == (rank != 2)
        assert (each["blamed_s"] > 5 * SLOW_S) == (rank == 2)


def test_one_late_collective_is_found(case: Case) -> None:
    """A rank that is late once is named with the collective it was late to."""
    report = case("one")["report"]
    assert (report["slowest"], report["one_collective"]) == (1, 6)


def test_saved_report_opens_as_it_was(case: Case, folder: Path) -> None:
    """Rank 0 alone has a report, which is the same when what was saved is opened."""
    assert [case("slow", rank)["report"] for rank in (1, 2, 3)] == [None] * 3
    (file,) = folder.glob("run.*")
    opened = watching.opened(json.loads(file.read_text()))
    assert json.loads(json.dumps(opened.to_dict())) == case("slow")["report"]


def test_full_recorder_tells_of_the_last_part(case: Case) -> None:
    """The newest calls are known, and all times are of their part alone."""
    report = case("many")["report"]
    assert 250 <= report["matched"] <= 300
    assert 0 < max(each["elapsed_s"] for each in report["times"]) < report["took_s"]


# ------------------------------------------------------------------------- failure


def test_hang_is_told_once_while_it_lasts(case: Case, folder: Path) -> None:
    """Rank 0 says who waits in what, who has not called it, and where that one is."""
    lines = (folder / "stderr").read_text().splitlines()
    told = [each for each in lines if "all_reduce" in each]
    assert re.search("gpumagic: ranks? [013].* waited", told[0])
    assert "rank 2 has not called it: watched_job.py" in told[0]
    assert sum("rank 2 has not" in each for each in told) == 1
    assert case("hangs")["report"]["unfinished"] == []


def test_others_do_not_hang_where_one_fails_within(case: Case, folder: Path) -> None:
    """Who fails before a collective is told at once, and not taken for who lost it."""
    unfinished = case("fails_within")["report"]["unfinished"]
    (failed,) = [each for each in unfinished if each["why"] == "raised"]
    assert (failed["name"], failed["text"]) == (1, "ValueError: no such batch")
    assert "watched_job.py" in failed["line"]["where"]
    assert any(each["why"] == "lost" for each in unfinished)
    assert case("fails_within", 1)["error"] == "ValueError"
    said = (folder / "stderr").read_text()
    assert "rank 1 has left the block: ValueError: no such batch" in said


def test_killed_rank_leaves_a_report_of_the_others(case: Case) -> None:
    """Of a rank that was killed it is said that it died, in bounded time."""
    report = case("killed")["report"]
    assert {e["name"]: e["why"] for e in report["unfinished"]}[3] == "died"
    assert report["ranks"] == RANKS
    assert 0 in [each["name"] for each in report["times"]]


# ------------------------------------------------------------------ what is misused


JOB = """
import os, sys
import torch, torch.distributed as dist
from gpumagic import gpu_ranks
from gpumagic.errors import GpuMagicError

def block():
    with gpu_ranks.watch():
        dist.all_reduce(torch.ones(2))

try:
    block()
except GpuMagicError as error:
    print("refused:", str(error).splitlines()[0], flush=True)
dist.init_process_group("gloo")
with gpu_ranks.watch() as outer:
    block()
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
if dist.get_rank() == 0:
    print("finished:", len(outer.report.times), flush=True)
block = gpu_ranks.watch()
block.__enter__()
dist.all_reduce(torch.ones(2))
dist.destroy_process_group()
"""


def test_misuse_ends_no_job(tmp_path: Path) -> None:
    """Too early is refused on all ranks; a child and a block without end do nothing."""
    (tmp_path / "job.py").write_text(JOB)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    ran = subprocess.run(
        [*torchrun, "--nproc-per-node", str(FEW), str(tmp_path / "job.py")],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert ran.stdout.count("no group to meet in") == FEW
    assert f"finished: {FEW}" in ran.stdout
    assert "Exception ignored" not in ran.stderr


@pytest.mark.parametrize("seconds", [0, float("nan")])
def test_times_that_are_none_are_refused(seconds: float) -> None:
    """A wait of no time would never end, or end at once."""
    for name in ("hang_s", "patience_s"):
        block = gpu_ranks.watch(**{name: seconds})
        with pytest.raises(GpuMagicError, match="no time"), block:
            pass


# ------------------------------------------------------------------------ one process


def test_one_rank_without_a_group() -> None:
    """Without a group it is one rank, which waits for nobody, however patiently."""
    with gpu_ranks.watch(hang_s=float("inf"), patience_s=float("inf")) as watched:
        watched.step()
        watched.step()
    assert watched.report is not None
    (time,) = watched.report.times
    assert (time.name, time.waits_s, time.own_s) == (0, 0.0, time.elapsed_s)
    assert "sends another" not in str(watched.report)
    assert watched.report.seats[0].pid == os.getpid()


@pytest.mark.parametrize("error", [None, ValueError("the block's")])
def test_what_fails_of_ours_ends_no_training(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception | None,
) -> None:
    """What is measured by may fail at the end: the block's own error goes through."""

    def read(*_: object) -> None:
        raise KeyError("op_id")

    monkeypatch.setattr(watching, "recorded", read)
    monkeypatch.setattr(watching, "_way", lambda **_: "flight recorder")
    is_raised = (
        contextlib.nullcontext()
        if error is None
        else pytest.raises(ValueError, match="block")
    )

    def train() -> None:
        if error is not None:
            raise error

    with is_raised as caught, gpu_ranks.watch() as watched:
        train()

    assert (caught and caught.value) is error
    assert watched.report is not None
    assert watched.report.told_by == ""
    assert len(watched.report.unfinished) == (error is not None)
    assert "KeyError" in capsys.readouterr().err


def test_profiler_that_does_not_start_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where kernels cannot be seen the block runs, and nothing is said of waits."""
    monkeypatch.setattr(watching.on_rank, "group", lambda: (0, "nccl"))
    with gpu_ranks.watch() as watched:
        pass
    assert watched.report is not None
    assert (watched.report.told_by, watched.report.times[0].moves_s) == ("", 0.0)


def test_garbage_in_a_file_is_named() -> None:
    """A file of another version is refused; what no rank can mean is no exception."""
    for saved in ({"gpumagic": 1, "answers": []}, {"gpumagic": 3, "answers": 7}):
        with pytest.raises(GpuMagicError, match="version 3"):
            watching.opened(saved | {"kind": "ranks"})
    absent = {"version": VERSION, "kind": "absent", "name": 1, "why": "song"}
    for answers in ([None], [{"version": VERSION, "kind": "done"}], [absent]):
        saved = {"gpumagic": 3, "kind": "ranks", "answers": answers}
        report = watching.opened(saved)
        assert report.times == ()
        assert "cannot be read" in str(report)


# ----------------------------------------------------------------------------- pure


def opened(*rows: list[tuple[int, int]], **of_last: Any) -> Any:
    """The report of ranks whose recorders know when each has called what."""
    answers = [
        {
            "version": VERSION,
            "kind": "done",
            "seat": {"rank": rank},
            "began_ns": 0,
            "ended_ns": 100 * MS,
            "collectives": [
                ["0", number, "all_reduce", 4, ms * MS, ms * MS] for number, ms in its
            ],
            "told_by": "flight recorder",
            "has_ends": False,
        }
        for rank, its in enumerate(rows)
    ]
    answers[0] |= of_last.pop("first", {})
    answers[-1] |= of_last
    saved = {"gpumagic": watching.SAVED, "kind": "ranks", "answers": answers}
    return watching.opened(saved)


def test_collective_ends_when_the_last_rank_calls_it() -> None:
    """Who comes first waits for who comes last; who calls more meanwhile has worked."""
    first, last = opened([(1, 10)], [(1, 70)]).times
    early, _ = opened([(1, 10), (2, 30)], [(1, 60), (2, 80)]).times

    assert first.waits_s == pytest.approx(0.06)
    assert (last.waits_s, last.blamed_s) == (0.0, pytest.approx(0.06))
    assert early.waits_s == pytest.approx(0.05)


def test_without_a_common_clock_calls_tell_nothing() -> None:
    """Clocks of two machines may differ, those of containers on one do not."""
    apart = opened([(1, 10)], [(1, 70)], seat={"rank": 1, "host": "node1"})
    here, there = ({"rank": e, "host": f"{e}", "machine": "one"} for e in (0, 1))
    beside = opened([(1, 10)], [(1, 70)], first={"seat": here}, seat=there)

    assert (apart.matched, beside.matched, apart.moves_known) == (0, 1, False)
    assert "no clock is common, so nothing tells who waited" in str(apart)


def test_only_what_all_know_is_compared() -> None:
    """Times begin where the recorder of the last rank begins to know, if any do."""
    part = opened([(1, 10), (2, 50)], [(2, 60)], from_ns=40 * MS)
    first = {"until_ns": 30 * MS}
    nothing = opened([(1, 10)], [(8, 60)], first=first, from_ns=50 * MS)

    assert [each.elapsed_s for each in part.times] == pytest.approx([0.06, 0.06])
    assert (part.matched, part.took_s) == (1, pytest.approx(0.1))
    assert nothing.times == ()
    assert "no time is known of all ranks at once" in str(nothing)
