"""Files become a report by what is in them, and by how many there are."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gpumagic import gpu_open
from gpumagic.errors import GpuMagicError
from gpumagic.gpu_open import api
from tests.gpu_open.test_snapshot_file import newest
from tests.gpu_open.written import write_job, write_snapshot, write_trace

REPOSITORY = Path(__file__).parents[2]
READ = """
import sys
from gpumagic import gpu_open
print([each.rank for each in gpu_open.read(*sys.argv[1:]).ranks])
"""


@pytest.fixture
def in_processes(monkeypatch):
    """Each file is read by a process of its own, however small it is."""
    monkeypatch.setattr(api, "_WORTH_A_PROCESS_BYTES", 0)
    monkeypatch.setattr(api, "_processors", lambda: 4)


@pytest.mark.parametrize("rank", [None, 3])
def test_two_files_of_one_rank_are_two_runs(tmp_path, rank):
    """So are two of which neither tells a rank; the first is before."""
    before = write_trace(tmp_path / "b.json", rank=rank)
    after = write_trace(tmp_path / "a.json", rank=rank, own_us=600, last_us=600)

    report = gpu_open.read(before, after)

    assert report.together is None
    (change, *_) = report.comparison.kernels
    assert change.after_s - change.before_s == pytest.approx(4 * 100e-6)
    before.write_text(json.dumps([{"ph": "X", "cat": "cpu_op", "ts": 1, "dur": 2}]))
    with pytest.raises(GpuMagicError, match=r"b\.json has no GPU work"):
        gpu_open.compare(before, after)


def test_two_files_of_two_ranks_are_one_job_unless_it_is_said(tmp_path):
    """`compare` makes two runs of them; a rank that is there twice is refused."""
    files = write_job(tmp_path, 3)

    assert gpu_open.read(*files[:2]).comparison is None
    assert gpu_open.read(*files[:2]).together.matched == 4
    assert gpu_open.compare(*files[:2]).comparison is not None
    again = write_trace(tmp_path / "again.json", rank=1)
    with pytest.raises(GpuMagicError, match=r"rank 1 is in 2 files.*\n.*--compare"):
        gpu_open.read(*files, again)


def test_a_snapshot_may_be_compared_with_another(tmp_path):
    """What `compare` means for traces, two snapshots mean anyway."""
    first, second = (write_snapshot(tmp_path / name) for name in ("a.pickle", "b.pkl"))

    assert gpu_open.compare(first, second).grown == ()
    with pytest.raises(GpuMagicError, match="3 memory snapshots"):
        gpu_open.read(first, second, write_snapshot(tmp_path / "c.pickle"))


def test_devices_without_a_history_are_left_out_of_a_replay(tmp_path):
    """The first line names whose it is; where none has one, an error says so."""
    file, found = tmp_path / "two.pickle", newest()
    found["segments"] += [{**found["segments"][0], "device": n} for n in (1, 1)]
    file.write_bytes(pickle.dumps(found))
    report = gpu_open.read(file, replay=True)
    assert [each.device for each in report.replays] == [0]
    assert report.headline.startswith("cuda:0: ")
    assert "cuda:1, by pool" not in str(report.show("map"))
    file.write_bytes(pickle.dumps(found | {"device_traces": []}))
    with pytest.raises(GpuMagicError, match=r"no requests of cuda:1.*\n.*_record_mem"):
        gpu_open.read(file, replay=True)


def test_what_lies_in_a_folder_and_is_not_opened_is_told(tmp_path):
    """Jobs are killed while they write; where none can be read, one error says why."""
    files = write_job(tmp_path, 3)
    files[1].write_bytes(b"")
    write_snapshot(tmp_path / "oom.pickle")

    report = gpu_open.read(tmp_path)

    assert [each.rank for each in report.ranks] == [0, 2]
    assert "left out: rank1.json.gz is empty" in str(report)
    assert "also oom.pickle" in str(report)
    with pytest.raises(GpuMagicError, match="needs two files, not 1"):
        gpu_open.read(files[0], tmp_path / "." / "rank0.json.gz", compare=True)
    with pytest.raises(GpuMagicError, match=r"rank1\.json\.gz is empty"):
        gpu_open.compare(*files[:2])
    for file in files:
        file.write_bytes(b"")
    with pytest.raises(GpuMagicError, match=r"rank0\.json\.gz is empty"):
        gpu_open.read(*files)


# ------------------------------------------------------------------- many processes


@pytest.mark.usefixtures("in_processes")
def test_processes_of_their_own_tell_the_same(tmp_path):
    """Ranks, errors and progress are as if all were read here."""
    files = write_job(tmp_path, 8, slow=5)
    files[2].write_bytes(b'{"traceEvents": [')
    told = []

    report = gpu_open.read(*files, progress=told.append)

    here = [api.rank_in(file) for file in files if file != files[2]]
    assert list(report.ranks) == here
    assert [each.name for each in report.left_out] == ["rank2.json.gz"]
    assert told == [number / 8 for number in range(1, 9)]


def test_processes_need_no_more_than_this_one(tmp_path):
    """What lies in the current folder under the name of a module is not imported."""
    files = write_job(tmp_path / "job", 2, padding=api._WORTH_A_PROCESS_BYTES)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "zipfile.py").write_text("raise SystemExit('imported')")
    (elsewhere / "gpumagic").mkdir()
    program = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}){READ}"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}

    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *map(str, files)],
        cwd=elsewhere,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.stdout, done.stderr) == ("[0, 1]\n", "")


@pytest.mark.usefixtures("in_processes")
def test_ctrl_c_leaves_no_process_behind(tmp_path, monkeypatch):
    """It comes through while they read, and ends them all; none begins afterwards."""
    files = write_job(tmp_path, 8)
    main, begun, popen = threading.main_thread().ident, [], subprocess.Popen

    def endless(words, **options):
        program = "import time; time.sleep(100)"
        begun.append(popen([words[0], "-c", program], **options))
        return begun[-1]

    def interrupt():
        while len(begun) < 4:
            time.sleep(0.01)
        signal.pthread_kill(main, signal.SIGINT)

    monkeypatch.setattr(api.subprocess, "Popen", endless)
    threading.Thread(target=interrupt).start()
    began_s = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            gpu_open.read(*files)
        assert time.monotonic() - began_s < 60
        assert [each.poll() is None for each in begun] == [False] * 4
    finally:
        for each in begun:
            each.kill()
            each.wait()
