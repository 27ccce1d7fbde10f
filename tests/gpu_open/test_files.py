"""Opening files however they are packed, and telling what they are."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import os
import pickle
import random
import tarfile
import zipfile

import pytest

from gpumagic import gpu_open
from gpumagic.errors import GpuMagicError
from gpumagic.gpu_open import files
from gpumagic.gpu_open.files import found, kind_of, opened

TRACE = b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "name": "a"}]}'
LIST = b'\n[ {"name": "aten::mm", "ph": "X", "ts": 1, "dur": 2, "pid": 1}]'
SNAPSHOT = json.dumps({"segments": [], "device_traces": [[]]}).encode()
SEGMENTS = json.dumps([{"device": 0, "segment_type": "large", "blocks": []}]).encode()
PICKLE = pickle.dumps({"segments": [], "device_traces": [[]]})


def noise(nbytes, seed):
    """Text that does not become much smaller when it is packed."""
    return random.Random(seed).randbytes(nbytes).hex().encode()  # noqa: S311


def zipped(members, **how):
    """A zip file of these members, the same at any time: tests are named after it."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, **how) as archive:
        for name, data in members.items():
            entry = zipfile.ZipInfo(name)
            archive.writestr(entry, data, compress_type=zipfile.ZIP_DEFLATED)
    return packed.getvalue()


@pytest.fixture
def write(tmp_path):
    """Writes a file and gives its path."""

    def write(data, name="recording"):
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


@pytest.fixture
def refused(write):
    """The two lines that opening a file with these bytes gives."""

    def refused(data, name="recording"):
        with pytest.raises(GpuMagicError) as error:
            opened(write(data, name))
        assert len(error.value.lines()) == 2
        assert name in error.value.problem
        return error.value

    return refused


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (TRACE, "trace"),
        (b"\xef\xbb\xbf" + TRACE, "trace"),
        (LIST, "trace"),
        (SNAPSHOT, "snapshot"),
        (SEGMENTS, "snapshot"),
        (PICKLE, "snapshot"),
        (b'{"schemaVersion": 1, "deviceProperties": [], "trace', "trace"),
        (b'{"a": "' + b"x" * 500_000 + b'", "traceEvents": []}', "trace"),
    ],
)
def test_the_kind_is_told_by_what_is_in_a_file_and_not_by_its_name(write, data, kind):
    """Whatever it is called, plain or packed."""
    packed = gzip.compress(data)
    ways = (data, packed, gzip.compress(packed), zipped({"a.json": data}))
    for each in (*ways, zipped({"a.json.gz": packed})):
        file = opened(write(each, "thing.txt"))
        assert (file.name, file.kind) == ("thing.txt", kind)
        assert (file.data, file.missing) == (data, None)


def test_gzip_of_several_members_is_one_file(write):
    """As `cat` and parallel packers write it, also filled up with zeros."""
    members = [gzip.compress(TRACE[:30]), gzip.compress(b""), gzip.compress(TRACE[30:])]
    file = opened(write(b"".join(members) + b"\0" * 512))
    assert (file.data, file.missing) == (TRACE, None)


def test_what_stands_behind_a_gzip_file_is_no_part_of_it(write):
    """As gzip itself has it."""
    assert opened(write(gzip.compress(TRACE) + b"signed")).data == TRACE


def test_a_truncated_gzip_file_gives_what_it_holds(write):
    """And the sentence says that it is not whole."""
    data = TRACE + noise(300_000, seed=1)
    packed = gzip.compress(data)
    for cut in (len(packed) // 2, len(packed) - 4):
        file = opened(write(packed[:cut]))
        assert data.startswith(file.data)
        assert len(file.data) > len(data) * 0.4
        assert "ends too early" in file.missing


@pytest.mark.parametrize("at", [0.3, 0.9])
def test_damaged_gzip_gives_what_comes_before_the_damage(write, at):
    """To the last byte, although the whole is packed as one."""
    data = TRACE + noise(300_000, seed=2)
    packed = bytearray(gzip.compress(data))
    place = int(len(packed) * at)
    packed[place : place + 400] = b"\xff" * 400
    file = opened(write(bytes(packed)))
    intact = int(len(data) * at * 0.9)
    assert file.data[:intact] == data[:intact]
    assert "damaged" in file.missing


def test_packed_data_that_is_damaged_at_once_is_two_lines(refused):
    """Nothing of it is there to be told."""
    assert "could be unpacked" in refused(gzip.compress(TRACE)[:10]).problem
    assert "ends too early" in refused(gzip.compress(TRACE)[:12]).problem
    assert "damaged" in refused(b"\x1f\x8b\xff" + TRACE).problem


def test_a_wrong_checksum_loses_nothing_but_is_said(write):
    """All that could be unpacked is there."""
    packed = bytearray(gzip.compress(TRACE))
    packed[-6] ^= 1
    file = opened(write(bytes(packed)))
    assert file.data == TRACE
    assert "damaged" in file.missing


def test_the_only_file_of_a_zip_is_meant_whatever_a_mac_adds(write):
    """Folders and what the Finder puts beside are no files."""
    members = {"traces/": b"", "traces/r.json": TRACE, "__MACOSX/traces/._r.json": b"x"}
    assert opened(write(zipped(members))).data == TRACE


def test_several_files_in_a_zip_are_named(refused):
    """And the next step is to unpack it."""
    error = refused(zipped({"a.json": TRACE, "b.json": TRACE}))
    assert "2 files: a.json and b.json" in error.problem
    assert "unzip" in error.hint


@pytest.mark.parametrize(
    ("data", "found", "hint"),
    [
        (b"", "is empty: 0 bytes", "download it again"),
        (b"\0" * 4096, "of nothing", "download it again"),
        (b" \n", "of nothing", "download it again"),
        (b"<!DOCTYPE html><title>Log in</title>", '"Log in"', "log in"),
        (b"\n<?xml version='1.0'?><Error>", "web page", "download"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS", "git lfs pull"),
        (b"/annex/objects/SHA256E-s1--2.json", "git-annex", "git annex get"),
        (b"\x28\xb5\x2f\xfd" + b"x" * 9, "zstd", "zstd -d"),
        (bz2.compress(TRACE), "bzip2", "bzip2 -d"),
        (b"SQLite format 3\0", "Nsight Systems", "export_chrome_trace"),
        (b'{"schema": "1.0.2", "nodes": []}', "schema and nodes", "_dump_snapshot"),
        (b"[]", "begins with '[]'", "export_chrome_trace"),
        (b'{"cells": [], "nbformat": 4}', "is a notebook", "was recorded in it"),
        (b"<html><script src='MemoryViz.js'>", "memory_viz", "open the snapshot"),
        (b'{"schema": "1.0.3-chakra.0.0.4"}', "execution trace", "export_chrome"),
        (b"[[-1, 1, 37888, 7]]", "export_memory_timeline", "_dump_snapshot"),
        (
            b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.",
            "written by torch.save",
            "_dump_snapshot",
        ),
        (b"\x89PNG\r\n\x1a\n\x1b[31m", "begins with", "export_chrome_trace"),
        (zipped({}), "zip file of no files", "unzip"),
        (zipped({"archive/data.pkl": PICKLE}), "torch.save", "_dump_snapshot"),
        (zipped({"a": TRACE})[:60], "without its end", "download it again"),
        (zipped({"a": zipped({"b": TRACE})}), "within another", "unpack"),
    ],
)
def test_whatever_else_it_is_two_lines_say_so(refused, data, found, hint):
    """What was found, and what to do next."""
    is_zip = data.startswith(b"PK")
    for each in (data,) if is_zip else (data, gzip.compress(data)):
        error = refused(each)
        assert found in error.problem
        assert hint in error.hint
        assert error.problem.isprintable()


@pytest.mark.parametrize(
    ("name", "program", "hint"),
    [
        ("run.nsys-rep", "Nsight Systems", "export_chrome_trace"),
        ("run.qdrep", "Nsight Systems", "export_chrome_trace"),
        ("events.out.tfevents.17.host", "TensorBoard", ".pt.trace.json"),
        ("run.pftrace", "Perfetto", "ui.perfetto.dev"),
        ("host.xplane.pb", "JAX", "ui.perfetto.dev"),
    ],
)
def test_files_of_other_programs_are_known_by_their_names(refused, name, program, hint):
    """Their beginnings say nothing to anybody."""
    error = refused(b"\x9e\x01\x07", name)
    assert program in error.problem
    assert hint in error.hint


def test_a_trace_of_jax_is_named_as_what_it_is(refused):
    """It is a trace like torch's, with other words: nothing of it would be found."""
    process = '{"ph":"M","pid":701,"name":"process_name","args":{"name":"/host:CPU"}}'
    error = refused(
        b'{"displayTimeUnit":"ns","metadata":{"highres-ticks":true},"traceEvents":['
        + process.encode(),
        "host.trace.json",
    )
    assert "JAX" in error.problem
    assert "ui.perfetto.dev" in error.hint


def test_an_address_is_to_be_downloaded_first():
    """It is told as it was typed, with both of its slashes."""
    with pytest.raises(GpuMagicError) as refused:
        kind_of("https://host/trace.json")
    assert refused.value.problem.startswith("https://host/trace.json is no file")
    assert "download" in refused.value.hint


def test_a_tar_archive_is_to_be_unpacked(refused):
    """Also when it is packed by gzip, as clusters do."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        member = tarfile.TarInfo("trace.json")
        member.size = len(TRACE)
        archive.addfile(member, io.BytesIO(TRACE))
    error = refused(packed.getvalue(), "traces.tgz")
    assert "tar -xf traces.tgz" in error.hint


def test_a_locked_zip_needs_another_program(refused):
    """Its flag says so before anything is read."""
    data = bytearray(zipped({"a.json": TRACE}))
    data[6] |= 1
    data[data.index(b"PK\1\2") + 8] |= 1
    assert "password" in refused(bytes(data)).problem


def test_a_bomb_is_stopped_while_it_unpacks(write, monkeypatch):
    """By how much more it is than its file, however deep it is packed."""
    monkeypatch.setattr(files, "_HARMLESS", 2**22)
    bomb = gzip.compress(b'{"traceEvents": [' + b" " * 2**25)
    for each in (bomb, gzip.compress(bomb), zipped({"a": LIST + b" " * 2**25})):
        with pytest.raises(GpuMagicError, match="times its"):
            opened(write(each))


def test_more_than_was_allowed_is_refused(write):
    """With what may be recorded instead."""
    path = write(gzip.compress(TRACE + b" " * 100_000))
    with pytest.raises(GpuMagicError, match=r"larger than 50\.0 KiB"):
        opened(path, most_bytes=50 * 1024)
    assert len(opened(path, most_bytes=200_000).data) == len(TRACE) + 100_000


def test_a_file_that_is_not_there_is_near_to_one_that_is(tmp_path, write):
    """A folder that is not there is told apart."""
    write(TRACE, "rank0.json")
    with pytest.raises(GpuMagicError, match=r"no file .*rank1.json\n.*mean rank0"):
        opened(tmp_path / "rank1.json")
    with pytest.raises(GpuMagicError, match="no folder"):
        opened(tmp_path / "nowhere" / "rank0.json")
    with pytest.raises(GpuMagicError, match="cannot be read"):
        opened("a\0b")


@pytest.mark.parametrize("way", ["name", "pattern"])
def test_names_that_no_file_can_have_are_two_lines(tmp_path, way):
    """Links to themselves, too long names, NULs, and the home of nobody."""
    (tmp_path / "loop").symlink_to("loop")
    names = [tmp_path / "loop"]
    if way == "name":
        names += [tmp_path / ("x" * 5000), "a\0b", "~nobody here/x.json"]
    for name in names:
        with pytest.raises(GpuMagicError) as error:
            gpu_open.read(f"{name}*" if way == "pattern" else name)
        assert len(error.value.lines()) == 2


def test_a_folder_and_a_pipe_are_no_files(tmp_path):
    """Reading a pipe might never end."""
    with pytest.raises(GpuMagicError, match="is a folder"):
        opened(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(GpuMagicError, match="pipe"):
        opened(tmp_path / "pipe")


def test_a_file_of_somebody_else_says_whom_to_ask(write, monkeypatch):
    """The right to read it is missing."""
    path = write(TRACE)

    def denied(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "open", denied)
    with pytest.raises(GpuMagicError, match=r"may not be read by you\n.*ls -l"):
        opened(path)


def test_a_folder_means_the_traces_in_it_by_their_numbers(tmp_path, write):
    """What else is named as recordings are is told, and why it is left out."""
    for name in ("rank10.json", "rank9.json", "rank0.txt"):
        write(gzip.compress(TRACE), name)
    write(PICKLE, "snapshot.json")
    write(b"# notes", "notes.json")
    write(b"", "rank3.json.gz")
    write(b"# notes", "notes.txt")
    write(TRACE, ".hidden.json")
    among = found([tmp_path, tmp_path])
    names = [path.name for path in among.files]
    assert names == ["rank0.txt", "rank9.json", "rank10.json"]
    assert {each.name: each.missing for each in among.left_out} == {
        "notes.json": "notes.json is no recording: it begins with '# notes'",
        "rank3.json.gz": "rank3.json.gz is empty: 0 bytes were found in it",
        "snapshot.json": "snapshot.json is a memory snapshot, no trace",
    }


def test_a_folder_without_traces_means_the_snapshots_in_it(tmp_path, write):
    """One is opened, of two is told what grew."""
    write(PICKLE, "oom.pickle")
    write(b"", "other.pickle")
    among = found([tmp_path])
    assert [each.name for each in among.files] == ["oom.pickle"]
    assert [each.name for each in among.left_out] == ["other.pickle"]
    # What is named itself is opened, and told there if it cannot be.
    among = found([tmp_path, tmp_path / "other.pickle"])
    assert [each.name for each in among.files] == ["oom.pickle", "other.pickle"]
    assert among.left_out == []


def test_patterns_and_names_are_found_once_in_the_order_typed(tmp_path, write):
    """A file with brackets in its name is no pattern."""
    for name in ("r2.json", "r10.json", "[a].json"):
        write(TRACE, name)
    typed = [tmp_path / "[a].json", tmp_path / "r*.json", str(tmp_path / "r2.json")]
    names = [path.name for path in found(typed).files]
    assert names == ["[a].json", "r2.json", "r10.json"]
    with pytest.raises(GpuMagicError, match="no file fits"):
        found([tmp_path / "x*.json"])


def test_a_folder_without_recordings_says_what_is_there(tmp_path, write):
    """And names a folder within it, or what is wrong with the first."""
    write(b"", "rank0.json")
    with pytest.raises(GpuMagicError, match=r"1 file and no folders(.|\n)*is empty"):
        found([tmp_path])
    (tmp_path / "iteration_10").mkdir()
    with pytest.raises(GpuMagicError, match=r"1 file and 1 folder(.|\n)*iteration_10"):
        found([tmp_path])


def test_telling_the_kind_reads_but_the_beginning(write):
    """A folder of large files is looked through in a moment."""
    path = write(b'{"traceEvents": [' + b" " * 2**22)
    assert kind_of(path) == "trace"
    with files.unpacking(path) as file:
        assert file.share < 0.01


@pytest.mark.parametrize("seed", range(60))
def test_damaged_bytes_give_a_file_or_two_lines(write, seed):
    """Whatever is done to a packed file."""
    chance = random.Random(seed)  # noqa: S311
    whole = TRACE + chance.randbytes(2000)
    packed = (gzip.compress(whole), zipped({"a.json": whole}), PICKLE, whole)
    data = bytearray(packed[seed % 4])
    for _ in range(chance.randint(1, 20)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    path = write(bytes(data[: chance.randint(1, len(data))]))
    error = opened_or_error(path)
    assert error is None or len(error.lines()) == 2


def opened_or_error(path):
    """The error that opening a file gives, or None."""
    try:
        opened(path)
    except GpuMagicError as error:
        return error
    return None
