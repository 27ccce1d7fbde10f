"""watch(): jobs of four ranks that watch themselves, and the pure part of it."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gpumagic import gpu_ranks
from gpumagic.errors import GpuMagicError
from gpumagic.gpu_ranks import (
    analysis,
    clocks,
    collectives_seen,
    gathering,
    watched_block,
    watching,
)
from gpumagic.gpu_ranks.collectives_seen import Seen, on_one_clock
from gpumagic.report.collectives import Offset

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
JOB = "tests.gpu_ranks.watched_job"
RANKS = 4
SLOW_S = 0.04
MS = 1_000_000
UNRECORDED = "this torch records no collectives of gloo"


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
    healthy = "summed_beside,even,slow,one,slow_ddp,many,ahead,unrecorded"
    healthy += ",summed,summed_ahead"
    jobs = f"4:{healthy},raises,hangs,fails_within,killed", "2:simulated_hang"
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


def test_nobody_is_named_where_all_are_alike(job: Job) -> None:
    """Of ranks that work alike nobody is waited for as long as a slow one."""
    waits_s = by_rank(job.report("slow"), "waits_s")
    assert max(by_rank(job.report("even"), "blamed_s")) < max(waits_s)
    assert job.report("even")["matched"] == job.report("slow")["matched"] == 16


@pytest.mark.parametrize(
    "case", ["slow", "slow_ddp", "ahead", "summed_ahead", "unrecorded"]
)
def test_straggler_is_named(job: Job, case: str) -> None:
    """The rank that is slow in each step is the one named, and is waited for."""
    report, late = job.report(case), 1 if case == "slow_ddp" else 2
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


def test_steps_are_told_by_rank(job: Job) -> None:
    """The time between two steps is told for each rank."""
    steps = dict(job.report("slow")["steps_s"])
    assert sorted(steps) == [0, 1, 2, 3]
    assert all(len(each) == 7 for each in steps.values())
    assert min(steps[2]) > SLOW_S


def test_says_what_it_does_not_know(job: Job) -> None:
    """By the recorder transfers are unknown, which is said; a profile knows them."""
    recorded, profiled = job.report("slow"), job.report("unrecorded")
    assert (recorded["told_by"], recorded["moves_known"]) == ("flight recorder", False)
    assert (profiled["told_by"], profiled["moves_known"]) == ("profiler", True)


def test_sums_of_a_job_are_what_all_of_it_comes_to(job: Job) -> None:
    """Above the limit ranks send sums, which name the same one, groups in the group."""
    whole, summed = job.report("whole"), job.report("summed")

    assert job.case("summed")["kinds"] == ["sums"] * RANKS
    assert job.case("whole")["kinds"] == ["done"] * RANKS
    assert summed["bucketed"]
    assert not whole["bucketed"]
    # 8 of all, 8 of the first pair, and twice as many of the second.
    assert (whole["matched"], whole["unmatched"]) == (32, 0)
    assert (summed["matched"], summed["unmatched"]) == (32, 0)
    assert whole["slowest"] == summed["slowest"] == 2
    assert summed["told_by"] == "flight recorder"
    assert not summed["moves_known"]
    (reduces,) = summed["collectives"]
    assert reduces["name"] == "all_reduce"
    assert reduces["count"] == 24
    assert reduces["nbytes"] == 24 * 4000
    assert reduces["last"] == 2
    for each in summed["every"]:
        parts_s = each["own_s"] + each["waits_s"] + each["moves_s"]
        assert parts_s == pytest.approx(each["elapsed_s"])


def test_sums_know_what_was_done_beside(job: Job) -> None:
    """Ranks that compare among themselves find what all that was done comes to."""
    every = job.report("summed_beside")["every"]
    said = [job.case("summed_beside", rank)["said"] for rank in range(RANKS)]
    whole = analysis.analyse(said)

    assert any(each["beside"] for each in said)
    assert [each["name"] for each in every] == [each.name for each in whole.times]
    for one, other in zip(every, whole.times, strict=True):
        for what in ("own_s", "waits_s", "moves_s", "blamed_s", "last"):
            assert one[what] == pytest.approx(getattr(other, what), abs=1e-9)


def test_where_a_rank_fails_all_is_sent(job: Job) -> None:
    """Then nothing is compared, nobody waits for it, and what is known is told."""
    report = job.report("summed_raises")

    assert not report["bucketed"]
    assert [each["name"] for each in report["unfinished"]] == [2]


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


def test_full_recorder_is_read_in_time_where_steps_are_told(job: Job) -> None:
    """With steps all collectives are known, also where there are more than it keeps."""
    report = job.report("many_steps")
    assert report["matched"] == 350
    assert report["told_s"] is None


def test_full_recorder_tells_of_the_last_part(job: Job) -> None:
    """Without steps the newest are known, and all times are of their part alone."""
    report = job.report("many")
    assert 250 <= report["matched"] <= 300
    assert max(by_rank(report, "elapsed_s")) <= report["told_s"] + 1e-9
    assert report["told_s"] < 10 * max(by_rank(report, "elapsed_s"))


# ------------------------------------------------------------------------- failure


def test_error_goes_through_and_is_told(job: Job) -> None:
    """An error of one rank reaches its code, and rank 0 names rank and line."""
    assert [job.case("raises", rank)["seen"] for rank in range(RANKS)] == [
        *(None, None, "no such batch", None)
    ]
    (failed,) = job.report("raises")["unfinished"]
    assert (failed["name"], failed["why"]) == (2, "raised")
    assert failed["text"] == "ValueError: no such batch"
    assert "watched_job.py" in failed["line"]["where"]


def test_hang_is_told_once_while_it_lasts(job: Job) -> None:
    """Rank 0 says who waits in what, who has not called it, and where that one is."""
    pytest.importorskip("gpumagic.gpu_ranks.view_where")
    told = [each for each in job.said.splitlines() if "all_reduce" in each]
    assert re.search("gpumagic: ranks? [013].* waited", told[0])
    assert "rank 2 has not called it: watched_job.py" in told[0]
    assert sum("rank 2 has not" in each for each in told) == 1
    assert job.report("hangs")["unfinished"] == []


def test_hang_of_simulated_gpus_is_told(job: Job) -> None:
    """Rank 0 waits for numbers of simulated GPUs: it says for whom, and since when."""
    lines = job.said.splitlines()
    told = [each for each in lines if "rank 1 has not called it" in each]

    assert len(told) == 1, job.said[-4000:]
    assert "rank 0 has waited" in told[0]
    assert "in all_reduce no. 0; rank 1 has not called it" in told[0]
    assert "time.sleep(3)" in told[0]


def test_others_do_not_hang_where_one_fails_within(job: Job) -> None:
    """A rank that fails before a collective leaves a report, and is told at once."""
    report = job.report("fails_within")
    why = {each["name"]: each["text"] for each in report["unfinished"]}
    assert why[1] == "ValueError: no such batch"
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


def test_can_be_called_again() -> None:
    """The function of the room stays a function once its file has been imported."""
    assert callable(gpu_ranks.watch)
    assert callable(gpu_ranks.watch)


@pytest.mark.parametrize("error", [None, ValueError("the block's")])
def test_what_fails_of_ours_ends_no_training(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception | None,
) -> None:
    """What is measured by may fail at the end: the block's own error goes through."""

    def read(_: object) -> None:
        raise KeyError("op_id")

    monkeypatch.setattr(collectives_seen.Seen, "read", read)
    monkeypatch.setattr(watched_block, "_way", lambda **_: "flight recorder")
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


def test_ctrl_c_at_the_end_leaves_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who does not wait for the report has nothing of ours left all the same."""
    parted = []

    def hand_over(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(watching, "_hand_over", hand_over)
    monkeypatch.setattr(gathering, "part", parted.append)
    with pytest.raises(KeyboardInterrupt), gpu_ranks.watch():
        pass

    assert len(parted) == 1


def test_error_of_one_rank_is_in_its_report() -> None:
    """The report is there also where the block has failed."""
    with pytest.raises(ZeroDivisionError), gpu_ranks.watch() as watched:
        _ = 1 / 0
    assert watched.report is not None
    assert watched.report.unfinished[0].text == "ZeroDivisionError: division by zero"


def test_ranks_that_have_not_met_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several ranks that each think they are alone are told to meet first."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(GpuMagicError, match="4 ranks"), gpu_ranks.watch():
        pass


class KernelsProfiled:
    """Stands in for torch's profiler of devices, which has seen two kernels of NCCL."""

    zero_ns = 0  # the moment that its clock counts from

    def __init__(self, activities: list[Any]) -> None:
        self.activities = activities

    def start(self) -> None:
        """Nothing is to be started."""

    def stop(self) -> None:
        """Nothing is to be stopped."""

    def export_chrome_trace(self, path: str) -> None:
        """Write them down, as Kineto does."""
        kernels = [
            {
                "ph": "X",
                "cat": "kernel",
                "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)",
                "pid": 0,
                "tid": 20,
                "ts": 20_000.0 + 100.0 * number,  # in the middle of what is watched
                "dur": 50.0,
                "args": {"device": 0, "stream": 20, "correlation": number},
            }
            for number in (1, 2)
        ]
        told = {"baseTimeNanoseconds": self.zero_ns, "traceEvents": kernels}
        Path(path).write_text(json.dumps(told))


def test_nccl_is_told_by_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where NCCL works, devices alone are profiled, and its kernels are collectives."""
    import torch

    from gpumagic.devices import torch_profiler

    monkeypatch.setattr(watched_block.on_rank, "group", lambda: (0, 1, "nccl"))
    monkeypatch.setattr(torch_profiler, "require_startable", lambda _: None)
    monkeypatch.setattr(
        torch.profiler,
        "supported_activities",
        lambda: {torch.profiler.ProfilerActivity.CUDA},
    )
    monkeypatch.setattr(torch.profiler, "profile", KernelsProfiled)
    with gpu_ranks.watch() as watched:
        monkeypatch.setattr(KernelsProfiled, "zero_ns", time.time_ns())
        time.sleep(0.05)
    saved = watched.to_dict()
    assert saved is not None
    rows = saved["answers"][0]["collectives"]
    assert [(row[2], row[5] - row[4]) for row in rows] == [("all_reduce", 50_000)] * 2
    assert watched.report is not None
    assert watched.report.times[0].moves_s == pytest.approx(100e-6)
    assert (watched.report.told_by, watched.report.moves_known) == ("kernels", True)


def test_profiler_that_does_not_start_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where kernels cannot be seen the block runs, and nothing is said of waits."""
    monkeypatch.setattr(watched_block.on_rank, "group", lambda: (0, 1, "nccl"))
    with gpu_ranks.watch() as watched:
        ran = True
    assert ran
    assert watched.report is not None
    assert (watched.report.told_by, watched.report.times[0].moves_s) == ("", 0.0)


@pytest.mark.parametrize("saved", [{}, {"gpumagic": 2, "kind": "ranks"}])
def test_unknown_version_is_refused(saved: dict[str, Any]) -> None:
    """A file of another version, or of something else, is refused by name."""
    with pytest.raises(GpuMagicError, match="version 1"):
        watching.opened(saved)


@pytest.mark.parametrize(
    "answers", [[None], [{"version": 1, "kind": "done"}], ["x"], 3]
)
def test_garbage_in_a_file_is_named(answers: object) -> None:
    """What no rank can have meant makes no exception."""
    absent = [{"name": "x", "said": 4}, 5]
    saved = {"gpumagic": 1, "kind": "ranks", "answers": answers, "absent": absent}
    report = watching.opened(saved)
    assert report.times == ()
    assert "cannot be read" in str(report)


# ----------------------------------------------------------------------------- pure


def _answer(rank: int, *rows: tuple[int, int], **more: Any) -> dict[str, Any]:
    calls = [
        ["0", number, "all_reduce", 4, ms * MS, ms * MS, ""] for number, ms in rows
    ]
    return {
        "seat": {"rank": rank},
        "began_ns": 0,
        "ended_ns": 100 * MS,
        "offset_ns": 0,
        "collectives": calls,
        "ends": "unknown",
        **more,
    }


def _spans(answer: Mapping[str, Any]) -> list[tuple[float, float]]:
    return [(row[4] / MS, row[5] / MS) for row in answer["collectives"]]


def test_collective_ends_when_the_last_rank_calls_it() -> None:
    """Who comes first waits for who comes last, by one clock."""
    first, last = on_one_clock(
        [_answer(0, (1, 10)), _answer(1, (1, 70), offset_ns=-20 * MS)]
    )
    assert _spans(first) == [(10, 50)]
    assert _spans(last) == [(50, 50)]


class Kept:
    """A store."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.get: Any = None

    def set(self, key: str, value: bytes) -> None:
        """Write it down."""
        self.values[key] = value

    def check(self, keys: list[str]) -> bool:
        """Whether all are there."""
        return all(key in self.values for key in keys)


def test_rank_0_is_waited_for_no_longer_than_there_is_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where rank 0 never takes an answer, clocks are not compared a second time."""
    asked = []
    monkeypatch.setattr(clocks, "compare", lambda *_: asked.append(1))
    store = Kept()
    store.get = asked.append
    ranks = gathering.Ranks(1, 2, store, object(), ("here", "there"))

    gathering.hand_in(ranks, {}, 0.05)
    assert asked == []


def test_clocks_are_put_together_once() -> None:
    """What has been shifted to the clock of rank 0 is not shifted again."""
    now_ns, ahead_ns = 10**18, -3_000 * MS
    said = [
        {
            "version": 1,
            "kind": "done",
            "seat": {"rank": rank, "host": f"node{rank}"},
            "clock": "host",
            "began_ns": now_ns - offset_ns,
            "ended_ns": now_ns - offset_ns + 100 * MS,
            "offset_ns": offset_ns,
            "offset_error_ns": 10,
        }
        for rank, offset_ns in enumerate((0, ahead_ns))
    ]
    saved = {"gpumagic": 1, "kind": "ranks", "answers": said, "absent": []}

    assert [each.began_s for each in watching.opened(saved).times] == [0.0, 0.0]


def test_who_calls_more_meanwhile_has_worked() -> None:
    """Of collectives beside other work a rank waits from its last call on at most."""
    early, _ = on_one_clock(
        [_answer(0, (1, 10), (2, 30)), _answer(1, (1, 60), (2, 80))]
    )
    assert _spans(early) == [(30, 60), (30, 80)]


def test_without_a_common_clock_calls_tell_nothing() -> None:
    """Where clocks could not be put together no waits are made up."""
    rows = [_answer(0, (1, 10)), _answer(1, (1, 70), offset_ns=None)]
    assert [each["collectives"] for each in on_one_clock(rows)] == [[], []]


def test_only_what_all_know_is_compared() -> None:
    """Times begin where the recorder of the last rank begins to know."""
    rows = [_answer(0, (1, 10), (2, 50)), _answer(1, (2, 60), from_ns=40 * MS)]
    both = on_one_clock(rows)
    assert [each["began_ns"] for each in both] == [40 * MS, 40 * MS]
    assert [len(each["collectives"]) for each in both] == [1, 1]


@pytest.mark.parametrize("summed", [False, True])
def test_where_nothing_is_known_of_all_at_once_no_time_is_told(*, summed: bool) -> None:
    """The whole block is no stretch of which collectives are known."""
    its = {"version": 1, "kind": "done"}
    said = [
        _answer(0, (1, 10), (2, 20), until_ns=30 * MS) | its,
        _answer(1, (8, 60), (9, 70), from_ns=50 * MS) | its,
    ]
    if summed:
        zeros = dict.fromkeys(("own_s", "waits_s", "moves_s", "blamed_s"), 0.05)
        for rank, each in enumerate(said):
            collectives_seen.cut_to(each, 50 * MS, 30 * MS)
            kept = {"version": 1, "kind": "sums", "rank": rank, "elapsed_s": 0.1}
            said[rank] = kept | zeros | {"told_s": each["told_s"]}
    saved = {"gpumagic": 1, "kind": "ranks", "answers": said, "absent": []}

    report = watching.opened(saved)

    assert (report.told_s, report.times, report.every) == (0.0, (), ())
    assert "no time is known of all ranks at once" in str(report)


class Recorder:
    """A recorder that keeps the newest ten calls of one group."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.reads = self.sent = 0

    def call(self, group: str = "0", count: int = 1) -> None:
        """Record calls."""
        for _ in range(count):
            number = len(self.entries) + 1
            self.entries.append(
                {
                    "record_id": number - 1,
                    "process_group": [group, ""],
                    "profiling_name": "gloo:all_reduce",
                    "collective_seq_id": number,
                    "op_id": number + self.sent,
                    "time_created_ns": number,
                    "input_sizes": [[2, 3]],
                    "input_dtypes": ["Float"],
                }
            )

    def dump(self, with_calls: bool, _: bool) -> str:  # noqa: FBT001 -- as torch's
        """What the recorder says."""
        self.reads += with_calls
        last = {"last_enqueued_collective": str(len(self.entries))}
        return json.dumps({"pg_status": {"0": last}, "entries": self.entries[-10:]})


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Stands in for torch's."""
    found = Recorder()
    torchs = SimpleNamespace(_dump_fr_trace_json=found.dump)
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", torchs)
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "10")
    monkeypatch.setattr(collectives_seen, "_READING_S", 0.0)
    return found


def test_only_what_comes_after_the_beginning_counts(recorder: Recorder) -> None:
    """What was called before the block, or by the group beside, is not of it."""
    recorder.call(count=3)
    seen = Seen(4, most=100)
    recorder.call(count=2)
    recorder.call("")
    seen.read()
    assert [row[:4] for row in seen.rows] == [
        ["0", 4, "all_reduce", 24],
        ["0", 5, "all_reduce", 24],
    ]
    assert seen.from_ns is None


@pytest.mark.parametrize("calls", [1, 2, 4])
def test_steps_read_before_the_ring_is_full(recorder: Recorder, calls: int) -> None:
    """Steps of any size lose nothing, and the recorder is not read at each of them."""
    seen = Seen(0, most=1000)
    for _ in range(40):
        recorder.call(count=calls)
        seen.step()
    seen.read()
    assert [row[1] for row in seen.rows] == [*range(1, 40 * calls + 1)]
    assert recorder.reads <= 2 + 40 * calls / 5


def test_what_is_dear_is_not_read(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where calls come too often, steps read nothing: the end alone does."""
    monkeypatch.setattr(collectives_seen, "_READING_S", 1.0)
    seen = Seen(0, most=1000)
    reads = recorder.reads
    for _ in range(40):
        recorder.call()
        seen.step()
    assert recorder.reads == reads
    seen.read()
    assert [row[1] for row in seen.rows] == [*range(31, 41)]


class Word:
    """What one rank says to the others."""

    def __init__(self, *, is_ours: bool, said: list[int | None]) -> None:
        self.is_ours = is_ours
        self._said, self._heard = said, 0

    def say(self, step: int | None) -> None:
        """Say it."""
        self._said.append(step)

    def heard(self) -> tuple[int | None] | None:
        """What is new."""
        if self._heard == len(self._said):
            return None
        self._heard = len(self._said)
        return (self._said[-1],)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("own_s", [10.0, 0.0])
def test_all_ranks_read_at_the_steps_that_one_has_said(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, own_s: float, order: int
) -> None:
    """Near the limit it is one clock that says whether reading is dear, for all."""
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "40")
    monkeypatch.setattr(collectives_seen, "_READING_S", 1e-3)
    clock = SimpleNamespace(monotonic=lambda: clock.now_s, now_s=0.0)
    monkeypatch.setattr(collectives_seen, "time", clock)
    said: list[int | None] = []
    ranks = [
        Seen(0, most=1000, schedule=Word(is_ours=rank == 0, said=said))
        for rank in range(3)
    ]
    read_at: list[list[int]] = [[] for _ in ranks]
    for step in range(60):
        recorder.call()
        for rank, seen in list(enumerate(ranks))[::order]:
            clock.now_s = (own_s if rank == 0 else 10.0 - own_s) * step
            before = recorder.reads
            seen.step()
            if recorder.reads > before:
                read_at[rank].append(step)

    assert read_at[0] == read_at[1] == read_at[2]
    assert len(read_at[0]) == (2 if own_s else 0)


def test_a_rank_that_hears_nothing_reads_in_time(recorder: Recorder) -> None:
    """Who calls more than the one that says when loses nothing for it."""
    seen = Seen(0, most=1000, schedule=Word(is_ours=False, said=[]))
    for _ in range(40):
        recorder.call()
        seen.step()
    seen.read()
    assert [row[1] for row in seen.rows] == [*range(1, 41)]
    assert recorder.reads <= 8


def test_what_two_ranks_send_each_other_is_counted(recorder: Recorder) -> None:
    """What the recorder leaves out between two collectives shows in their numbers."""
    recorder.call(count=2)
    recorder.sent = 3
    recorder.call(count=2)
    seen = Seen(0, most=100)
    seen.read()
    assert (len(seen.rows), seen.sends) == (4, 3)


def test_what_is_lost_is_said(recorder: Recorder) -> None:
    """Where the ring has lost calls, what is known begins after them."""
    seen = Seen(0, most=100)
    recorder.call(count=25)
    seen.read()
    assert [row[1] for row in seen.rows] == [*range(16, 26)]
    assert seen.from_ns == 16


def test_no_more_are_kept_than_are_wanted(recorder: Recorder) -> None:
    """Of too many the first are kept, until the first that is left out."""
    seen = Seen(0, most=4)
    recorder.call(count=6)
    seen.read()
    recorder.call(count=2)
    seen.read()
    assert [row[1] for row in seen.rows] == [1, 2, 3, 4]
    assert seen.until_ns == 5


@pytest.mark.parametrize("hosts", [2, 40])
def test_very_many_clocks_are_compared_in_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch, hosts: int
) -> None:
    """Each is asked as often as there is time for, and once at least."""
    ways = collections.defaultdict(queue.SimpleQueue)
    own = threading.local()
    clock = {"ns": 0}
    ahead_ns = 7_000_000_000

    def send(slots: list[Any], to: int, _: int) -> Any:
        clock["ns"] += 5 * MS  # a slow network
        ways[own.rank, to].put(int(slots[0].item()))
        return SimpleNamespace(wait=lambda: None)

    def recv(slots: list[Any], sender: int, _: int) -> Any:
        def wait() -> None:
            slots[0][0] = ways[sender, own.rank].get(timeout=20)

        return SimpleNamespace(wait=wait)

    group = SimpleNamespace(send=send, recv=recv)
    monkeypatch.setattr(
        clocks, "now_ns", lambda: clock["ns"] + (ahead_ns if own.rank else 0)
    )
    timer = SimpleNamespace(monotonic=lambda: clock["ns"] / 1e9)
    monkeypatch.setattr(clocks, "time", timer)
    names = [f"host {rank}" for rank in range(hosts)]
    found = {}

    def run(rank: int) -> None:
        own.rank = rank
        found[rank] = clocks.compare(names, group, rank)

    threads = [threading.Thread(target=run, args=(each,)) for each in range(hosts)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(30)

    assert sorted(found[0]) == sorted(names)
    assert all(
        abs(each.ns + ahead_ns) <= each.error_ns
        for name, each in found[0].items()
        if name != names[0]
    )
    assert clock["ns"] <= 10 * MS * (20 if hosts == 2 else 100 + hosts)


def test_drift_is_part_of_the_error() -> None:
    """What clocks drift apart during a block is in the error of their offset."""
    first, last = {"a": Offset(100, 5), "b": Offset(7, 1)}, {"a": Offset(140, 9)}
    assert clocks.between(first, last) == {"a": Offset(120, 29), "b": Offset(7, 1)}


def test_what_was_saved_is_opened_as_any_recording(tmp_path):
    """`%gpu_open` shows a saved run; the report is the one that was there."""
    from gpumagic import gpu_open

    file = tmp_path / "run.json"
    with gpu_ranks.watch() as watched:
        sum(range(1000))
    watched.save(file)

    report = gpu_open.read(file)

    assert type(report).__name__ == "RanksReport"
    assert report.to_dict()["times"] == watched.report.to_dict()["times"]
