"""Opening files however they are packed, and telling what they are."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import pickle

import pytest

from gpumagic import gpu_open
from gpumagic.errors import GpuMagicError
from gpumagic.gpu_open import files
from gpumagic.gpu_open.files import by_kind, found, kind_of, opened

TRACE = b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "name": "a"}]}'
LIST = b'\n[ {"name": "aten::mm", "ph": "X", "ts": 1, "dur": 2, "pid": 1}]'
SNAPSHOT = json.dumps({"segments": [], "device_traces": [[]]}).encode()
PICKLE = pickle.dumps({"segments": [], "device_traces": [[]]})


@pytest.fixture
def write(tmp_path):
    """Writes a file and gives its path."""

    def write(data, name="recording"):
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (TRACE, "trace"),
        (LIST, "trace"),
        (SNAPSHOT, "snapshot"),
        (PICKLE, "snapshot"),
        (b'{"a": "' + b"x" * 500_000 + b'", "traceEvents": []}', "trace"),
    ],
)
def test_the_kind_is_told_by_what_is_in_a_file_and_not_by_its_name(write, data, kind):
    """Whatever it is called, plain or packed."""
    for each in (data, gzip.compress(data)):
        assert opened(write(each, "thing.txt"))[:3] == ("thing.txt", kind, data)


@pytest.mark.parametrize(
    ("data", "name", "found", "hint"),
    [
        (b"", "a", "is empty", "copy it again"),
        (bz2.compress(TRACE), "a", "it begins with 'BZh", "export_chrome_trace"),
        (b"\x89PNG\r\n\x1a\n\x1b[31m", "a", "begins with", "export_chrome_trace"),
        (b"PK\x03\x04" + TRACE, "a", "no recording of torch", "unpack it"),
        (b"a/" + b"\0" * 255 + b"ustar", "a", "no recording of torch", "unpack it"),
        (b"version https://git-lfs.github.com", "a", "begins with", "git lfs pull"),
        (gzip.compress(TRACE)[:-9], "a", "ends in the middle", "another rank"),
        (b"\x1f\x8b\xff" + TRACE, "a", "ends in the middle", "another rank"),
    ],
    ids=range(8),
)
def test_whatever_else_it_is_two_lines_say_so(write, data, name, found, hint):
    """What was found, and what to do next."""
    with pytest.raises(GpuMagicError) as error:
        opened(write(data, name))
    assert len(error.value.lines()) == 2
    assert found in error.value.problem
    assert name in error.value.problem
    assert hint in error.value.hint
    assert error.value.problem.isprintable()


def test_what_is_too_large_is_refused_while_it_unpacks(write, monkeypatch):
    """With what may be recorded instead."""
    monkeypatch.setattr(files, "_MOST_BYTES", 50 * 1024)
    path = write(gzip.compress(TRACE + b" " * 100_000))
    with pytest.raises(GpuMagicError, match=r"larger than 50\.0 KiB"):
        opened(path)


def test_a_file_that_is_not_there_is_near_to_one_that_is(tmp_path, write):
    """A folder that is not there is told apart; a pipe might never end."""
    write(TRACE, "rank0.json")
    os.mkfifo(tmp_path / "pipe")
    for name, problem in (
        ("rank1.json", r"no file .*rank1.json\n.*mean rank0"),
        ("nowhere/rank0.json", "no folder"),
        (".", "is not a regular file"),
        ("pipe", "is not a regular file"),
    ):
        with pytest.raises(GpuMagicError, match=problem):
            opened(tmp_path / name)


def test_names_that_no_file_can_have_are_two_lines(tmp_path):
    """Links to themselves, too long names, NULs, the home of nobody, a list."""
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    long = tmp_path / ("x" * 5000)
    for name in (loop, f"{loop}*", long, "a\0b", "~nobody here/x.json", ["a"]):
        with pytest.raises(GpuMagicError) as error:
            gpu_open.read(name)
        assert len(error.value.lines()) == 2


def test_a_folder_means_the_traces_in_it_else_the_snapshots(tmp_path, write):
    """Rank 9 before rank 10; of the rest is told why it is left out."""
    with pytest.raises(GpuMagicError, match=rf"no recording in.*\n.*%ls {tmp_path}"):
        found([tmp_path])
    with pytest.raises(GpuMagicError, match="is not a file of this machine"):
        kind_of("s3://me/a.json")
    write(b"# notes", "notes.json")
    with pytest.raises(GpuMagicError, match="is no recording"):
        by_kind(found([tmp_path]))
    write(PICKLE, "snapshot.json")
    kind, among, left_out = by_kind(found([tmp_path]))
    assert (kind, [path.name for path in among]) == ("snapshot", ["snapshot.json"])
    assert [each.name for each in left_out] == ["notes.json"]
    for name in ("rank10.json", "rank9.json", "rank0.txt", ".hidden.json"):
        write(gzip.compress(TRACE), name)
    kind, among, left_out = by_kind(found([tmp_path, tmp_path / "rank9.json"]))
    assert kind == "trace"
    assert [path.name for path in among] == ["rank9.json", "rank10.json"]
    assert {each.name: each.missing for each in left_out} == {
        "notes.json": "notes.json is no recording of torch: it begins with '# notes'",
        "snapshot.json": "snapshot.json is a memory snapshot, no trace",
    }


def test_patterns_and_names_are_found_once_in_the_order_typed(tmp_path, write):
    """A file with brackets in its name is no pattern."""
    for name in ("r2.json", "r10.json", "[a].json"):
        write(TRACE, name)
    typed = [tmp_path / "[a].json", tmp_path / "r*.json", str(tmp_path / "r2.json")]
    names = [path.name for path in found(typed)]
    assert names == ["[a].json", "r2.json", "r10.json"]
    with pytest.raises(GpuMagicError, match="no file fits"):
        found([tmp_path / "x*.json"])
