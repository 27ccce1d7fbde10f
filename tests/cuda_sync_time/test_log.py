"""The log of a notebook's timed cells, and the files it can be saved as."""

from __future__ import annotations

import csv
import json

import pytest

from gpumagic.cuda_sync_time.log import new_log
from gpumagic.cuda_sync_time.report import (
    Flag,
    FlagKind,
    Mode,
    RepeatedReport,
    Run,
    Samples,
    Setting,
    TimingReport,
)
from gpumagic.errors import GpuMagicError
from gpumagic.report.places import Code

CUDA = Setting("cuda", devices=((0, "NVIDIA H100"),), floor_s=2e-5)


def timed(number, **options):
    """One run of a cell that took as many seconds as its number says."""
    run = Run(elapsed_s=float(number), naive_s=0.001)
    return TimingReport(Code("x @ x", cell=number), CUDA, run, **options)


def test_cells_stand_in_the_order_in_which_they_ran():
    """One run, a failed one and many runs are entries of one log."""
    log = new_log()

    log.add(timed(1, flags=(Flag(FlagKind.TAIL, 0.5), Flag(FlagKind.TAIL, 0.1))))
    log.add(timed(2, failed="ValueError: no"))
    samples = Samples(Mode.LATENCY, (1.0, 2.0, 3.0), 1, warmup_calls=4)
    log.add(RepeatedReport(Code("f()", "base", 3), CUDA, samples))

    first, second, third = log.report(automatic=False).entries
    assert (first.seconds, first.naive_s, first.runs) == (1.0, 0.001, 1)
    assert first.flags == (FlagKind.TAIL,)
    assert second.failed
    assert (third.seconds, third.runs, third.naive_s) == (2.0, 7, None)
    assert third.spread == 0.5


def test_a_long_notebook_forgets_its_oldest_cells_and_says_so():
    """A thousand are kept; how many went is counted."""
    log = new_log()

    for number in range(1, 1011):
        log.add(timed(number))

    report = log.report(automatic=True)
    assert len(report.entries) == 1000
    assert report.dropped == 10
    assert report.entries[0].seconds == 11.0
    assert report.automatic


def test_it_is_saved_as_a_table(tmp_path):
    """A CSV file has a heading, then one line for each cell, newlines kept."""
    log = new_log()
    log.add(TimingReport(Code('a = "x"\nb', "two", 4), CUDA, Run(0.25, 0.125)))

    log.save(str(tmp_path / "times.csv"))

    with (tmp_path / "times.csv").open(encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["code"] == 'a = "x"\nb'
    assert (row["cell"], row["name"], row["device"]) == ("4", "two", "cuda")
    assert (row["seconds"], row["naive_seconds"]) == ("0.25", "0.125")


def test_it_is_saved_as_json(tmp_path):
    """A JSON file has the same, as plain values."""
    log = new_log()
    log.add(timed(2, flags=(Flag(FlagKind.BACKLOG, 1.0),)))

    log.save(str(tmp_path / "times.json"))

    (row,) = json.loads((tmp_path / "times.json").read_text(encoding="utf-8"))
    assert row["seconds"] == 2.0
    assert row["flags"] == FlagKind.BACKLOG.value


@pytest.mark.parametrize("file", ["times.xlsx", "times", "missing/times.csv"])
def test_what_cannot_be_written_is_told_with_what_to_do(file, tmp_path, monkeypatch):
    """Neither a strange ending nor a missing folder ends in a traceback."""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(GpuMagicError) as caught:
        new_log().save(file)

    assert file in caught.value.problem
    assert caught.value.hint
    assert not list(tmp_path.iterdir())
