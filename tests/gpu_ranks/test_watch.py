"""watch(): jobs of four ranks that watch themselves, and the pure part of it."""

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

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
JOB = "tests.gpu_ranks.watched_job"
RANKS = 4
SLOW_S = 0.04
MS = 1_000_000


class Job:
    """What a job has left behind.

    Args:
        folder: Where its cases wrote what they found.

        said: What it wrote to stdout and stderr.
    """

    def __init__(self, folder: Path, said: str) -> None:
        self.folder, self.said = folder, said

    def case(self, name: str, rank: int = 0) -> dict[str, Any]:
        """What a rank wrote of a case."""
        file = self.folder / f"{name}.{rank}.json"
        assert file.exists(), self.said[-6000:]
        found: dict[str, Any] = json.loads(file.read_text())
        return found

    def report(self, name: str) -> dict[str, Any]:
        """The report that rank 0 had."""
        found: dict[str, Any] = self.case(name)["report"]
        return found


def _environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Ranks as torchrun starts them, once for all cases: to start takes longest."""
    folder = tmp_path_factory.mktemp("job")
    # A recorder with few calls is asked for those beside which ranks go on.
    healthy = "even,slow,one,many,ahead,unrecorded"
    jobs = (f"4:{healthy},hangs,fails_within,killed",)
    ran = subprocess.run(
        [sys.executable, "-m", JOB, str(folder), *jobs],
        cwd=ROOT,
        env=_environment(TORCH_FR_BUFFER_SIZE="300"),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return Job(folder, ran.stdout + ran.stderr)


def by_rank(report: Mapping[str, Any], what: str) -> list[float]:
    """A figure of each rank."""
    return [each[what] for each in report["times"]]


# ------------------------------------------------------------------ who is slow


def test_report_is_on_rank_0_alone(job: Job) -> None:
    """Rank 0 has a report of all ranks, and the others have none."""
    assert job.report("even")["ranks"] == RANKS
    assert [job.case("even", rank)["report"] for rank in (1, 2, 3)] == [None] * 3


def test_own_work_and_waits_add_up(job: Job) -> None:
    """What a rank did by itself and waited for is the time of the block."""
    for each in job.report("slow")["times"]:
        parts_s = each["own_s"] + each["waits_s"] + each["moves_s"]
        assert parts_s == pytest.approx(each["elapsed_s"])


@pytest.mark.parametrize("case", ["slow", "ahead", "unrecorded"])
def test_straggler_is_named(job: Job, case: str) -> None:
    """The rank that is slow in each step is the one named, and is waited for."""
    report, late = job.report(case), 2
    assert report["slowest"] == late
    blamed_s = by_rank(report, "blamed_s")
    least_s = 5 * SLOW_S
    assert max(blamed_s) == blamed_s[late] > least_s
    assert (
        min(s for rank, s in enumerate(by_rank(report, "waits_s")) if rank != late)
        > least_s
    )


def test_one_late_collective_is_found(job: Job) -> None:
    """A rank that is late once is named with the collective it was late to."""
    report = job.report("one")
    assert report["slowest"] == 1
    assert report["one_collective"] == 5


def test_says_what_it_does_not_know(job: Job) -> None:
    """By the recorder transfers are unknown, which is said; a profile knows them."""
    recorded, profiled = job.report("slow"), job.report("unrecorded")
    assert (recorded["told_by"], recorded["moves_known"]) == ("flight recorder", False)
    assert (profiled["told_by"], profiled["moves_known"]) == ("profiler", True)


def test_own_group_goes(job: Job) -> None:
    """Groups are as many after the block as before it, and other ranks save nothing."""
    assert job.case("even")["groups_left"] == 0
    assert sorted(each.name for each in job.folder.glob("run.*")) == ["run.0.json"]


def test_saved_report_opens_as_it_was(job: Job) -> None:
    """What was saved is the same report when it is opened."""
    saved = json.loads((job.folder / "run.0.json").read_text())
    opened = watching.opened(saved)
    assert json.loads(json.dumps(opened.to_dict())) == job.report("even")


# ---------------------------------------------------------- clocks, and full recorders


def test_clock_that_is_ahead_comes_right(job: Job) -> None:
    """A clock three seconds ahead is put right within the error that is given."""
    offset_ns = job.case("ahead")["offsets"][3]
    error_s = job.report("ahead")["clock_error_s"]
    assert abs(offset_ns / 1e9 + 3) <= error_s + 0.001
    assert 0 < error_s < SLOW_S
    assert job.case("ahead", 3)["report"] is None


def test_full_recorder_tells_of_the_last_part(job: Job) -> None:
    """Without steps the newest are known, and all times are of their part alone."""
    report = job.report("many")
    assert 250 <= report["matched"] <= 300
    assert max(by_rank(report, "elapsed_s")) <= report["told_s"] + 1e-9
    assert report["told_s"] < 10 * max(by_rank(report, "elapsed_s"))


# ------------------------------------------------------------------------- failure


def test_hang_is_told_once_while_it_lasts(job: Job) -> None:
    """Rank 0 says who waits in what, who has not called it, and where that one is."""
    told = [each for each in job.said.splitlines() if "all_reduce" in each]
    assert re.search("gpumagic: ranks? [013].* waited", told[0])
    assert "rank 2 has not called it: watched_job.py" in told[0]
    assert sum("rank 2 has not" in each for each in told) == 1
    assert job.report("hangs")["unfinished"] == []


def test_others_do_not_hang_where_one_fails_within(job: Job) -> None:
    """A rank that fails before a collective leaves a report, and is told at once."""
    report = job.report("fails_within")
    (failed,) = [each for each in report["unfinished"] if each["name"] == 1]
    assert failed["text"] == "ValueError: no such batch"
    assert "watched_job.py" in failed["line"]["where"]
    assert job.case("fails_within", 1)["error"] == "ValueError"
    assert "rank 1 has left the block: ValueError: no such batch" in job.said


def test_who_raised_first_is_not_one_of_those_that_lost_it(job: Job) -> None:
    """Ranks whose backend gives up after that have lost it, and have not raised."""
    unfinished = job.report("fails_within")["unfinished"]
    assert [each["name"] for each in unfinished if each["why"] == "raised"] == [1]
    assert any(each["why"] == "lost" for each in unfinished)


def test_killed_rank_leaves_a_report_of_the_others(job: Job) -> None:
    """Of a rank that was killed it is said that it died, in bounded time."""
    case = job.case("killed")
    why = {each["name"]: each["why"] for each in case["report"]["unfinished"]}
    assert why[3] == "died"
    assert case["report"]["ranks"] == RANKS
    assert 0 in [each["name"] for each in case["report"]["times"]]


# ------------------------------------------------------------------------ one process


def test_one_rank_without_a_group() -> None:
    """Without a group it is one rank, which waits for nobody."""
    with gpu_ranks.watch() as watched:
        watched.step()
        watched.step()
    assert watched.report is not None
    (time,) = watched.report.times
    assert (time.name, time.waits_s, time.own_s) == (0, 0.0, time.elapsed_s)
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
    assert (watched.report.told_by, len(watched.report.unfinished)) == (
        "",
        0 if error is None else 1,
    )
    assert "KeyError" in capsys.readouterr().err


def test_ranks_that_have_not_met_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several ranks that each think they are alone are told to meet first."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(GpuMagicError, match="4 ranks"), gpu_ranks.watch():
        pass


def test_profiler_that_does_not_start_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where kernels cannot be seen the block runs, and nothing is said of waits."""
    monkeypatch.setattr(watching.on_rank, "group", lambda: (0, 1, "nccl"))
    with gpu_ranks.watch() as watched:
        ran = True
    assert ran
    assert watched.report is not None
    assert (watched.report.told_by, watched.report.times[0].moves_s) == ("", 0.0)


@pytest.mark.parametrize("saved", [{}, {"gpumagic": 1, "kind": "ranks"}])
def test_unknown_version_is_refused(saved: dict[str, Any]) -> None:
    """A file of another version, or of something else, is refused by name."""
    with pytest.raises(GpuMagicError, match="version 2"):
        watching.opened(saved)


@pytest.mark.parametrize(
    "answers", [[None], [{"version": VERSION, "kind": "done"}], ["x"], 3]
)
def test_garbage_in_a_file_is_named(answers: object) -> None:
    """What no rank can have meant makes no exception."""
    absent = [{"name": "x", "said": 4}, 5]
    saved = {"gpumagic": 2, "kind": "ranks", "answers": answers, "absent": absent}
    report = watching.opened(saved)
    assert report.times == ()
    assert "cannot be read" in str(report)


# ----------------------------------------------------------------------------- pure


def recorded(rank: int, *rows: tuple[int, int], **more: Any) -> dict[str, Any]:
    """What a rank says whose recorder knows when it has called what."""
    calls = [["0", number, "all_reduce", 4, ms * MS, ms * MS] for number, ms in rows]
    return {
        "version": VERSION,
        "kind": "done",
        "seat": {"rank": rank, "host": f"node{rank}"},
        "began_ns": 0,
        "ended_ns": 100 * MS,
        "offset_ns": 0,
        "offset_error_ns": 10,
        "collectives": calls,
        "told_by": "flight recorder",
        "has_ends": False,
        **more,
    }


def opened(*answers: dict[str, Any]) -> Any:
    """The report of what was saved."""
    saved = {"gpumagic": watching.SAVED, "kind": "ranks", "answers": [*answers]}
    return watching.opened(saved)


def test_collective_ends_when_the_last_rank_calls_it() -> None:
    """Who comes first waits for who comes last, by one clock."""
    ahead = {"offset_ns": -20 * MS, "began_ns": 20 * MS, "ended_ns": 120 * MS}
    first, last = opened(recorded(0, (1, 10)), recorded(1, (1, 70), **ahead)).times

    assert first.waits_s == pytest.approx(0.04)
    assert (last.waits_s, last.blamed_s) == (0.0, pytest.approx(0.04))


def test_who_calls_more_meanwhile_has_worked() -> None:
    """Of collectives beside other work a rank waits from its last call on at most."""
    early, _ = opened(
        recorded(0, (1, 10), (2, 30)), recorded(1, (1, 60), (2, 80))
    ).times

    assert early.waits_s == pytest.approx(0.05)


def test_without_a_common_clock_calls_tell_nothing() -> None:
    """Where clocks could not be put together no waits are made up."""
    report = opened(recorded(0, (1, 10)), recorded(1, (1, 70), offset_ns=None))

    assert (report.matched, report.moves_known) == (0, False)
    assert "no clock is common, so nothing tells who waited" in str(report)


def test_only_what_all_know_is_compared() -> None:
    """Times begin where the recorder of the last rank begins to know."""
    report = opened(
        recorded(0, (1, 10), (2, 50)), recorded(1, (2, 60), from_ns=40 * MS)
    )

    assert [each.elapsed_s for each in report.times] == pytest.approx([0.06, 0.06])
    assert (report.matched, report.told_s) == (1, pytest.approx(0.06))


def test_where_nothing_is_known_of_all_at_once_no_time_is_told() -> None:
    """The whole block is no stretch of which collectives are known."""
    report = opened(
        recorded(0, (1, 10), (2, 20), until_ns=30 * MS),
        recorded(1, (8, 60), (9, 70), from_ns=50 * MS),
    )

    assert (report.told_s, report.times) == (0.0, ())
    assert "no time is known of all ranks at once" in str(report)
