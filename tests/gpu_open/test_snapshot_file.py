"""Snapshots of all versions and in all packings come out in one shape."""

from __future__ import annotations

import copy
import gzip
import io
import json
import os
import pickle
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_open import snapshot_file
from gpumagic.gpu_open.files import Opened
from gpumagic.gpu_open.growth import grown
from gpumagic.gpu_open.memory_history import device_of
from gpumagic.gpu_open.snapshot_file import read, snapshot_in

MIB = 1 << 20
ROUNDUP = "roundup_power2_divisions"
BASE = 0x7F00_0000_0000
FRAMES = [{"filename": "/home/me/train.py", "line": 7, "name": "step"}]


def entry(action, addr, size, **more):
    """One entry as torch writes it."""
    return {"action": action, "addr": addr, "size": size, "stream": 0, **more}


def newest():
    """A snapshot as torch 2.13 writes it, with one of each kind of entry."""
    block = {"address": BASE, "size": 2 * MIB, "requested_size": 2 * MIB - 5}
    rest = {"address": BASE + 2 * MIB, "size": 18 * MIB, "requested_size": 0}
    return {
        "segments": [
            {
                "device": 0,
                "address": BASE,
                "total_size": 20 * MIB,
                "allocated_size": 2 * MIB,
                "active_size": 2 * MIB,
                "requested_size": 2 * MIB - 5,
                "stream": 0,
                "segment_type": "large",
                "segment_pool_id": (0, 0),
                "is_expandable": False,
                "frames": FRAMES,
                "blocks": [
                    {**block, "state": "active_allocated", "frames": FRAMES},
                    {**rest, "state": "inactive", "frames": []},
                ],
            }
        ],
        "device_traces": [
            [
                entry("segment_alloc", BASE, 20 * MIB, time_us=1, pool_id=(0, 0)),
                entry("alloc", BASE, 2 * MIB - 5, time_us=2, frames=FRAMES),
                entry("alloc", BASE + 2 * MIB, 4, time_us=3, compile_context="N/A"),
                entry("free_requested", BASE + 2 * MIB, 4, user_metadata="x"),
                entry("free_completed", BASE + 2 * MIB, 4, time_us=3),
                {
                    "action": "oom",
                    "device_free": 5 * MIB,
                    "size": 1 << 30,
                    "stream": 0,
                    "frames": FRAMES,
                },
                entry("snapshot", 0, 2 * MIB),
            ],
            [],
        ],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"},
        "external_annotations": [],
    }


def opened(found, *, as_json=False):
    """A snapshot as a file that has been opened."""
    data = json.dumps(found).encode() if as_json else pickle.dumps(found)
    return Opened("x", "snapshot", data)


def packed(data):
    """The same file plain, in gzip and in zip."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("inside", data)
    return data, gzip.compress(data), buffer.getvalue()


# ----------------------------------------------------------------------- what is read


NAMES = st.text('"\\\\{}[]:, af', max_size=6)
STACKS = st.lists(st.dictionaries(NAMES, NAMES | st.lists(NAMES), max_size=2))
LIKE_SNAPSHOTS = st.recursive(
    NAMES | st.integers(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(NAMES | st.just("frames"), STACKS | inner, max_size=3)
    ),
)


@settings(max_examples=300)
@given(LIKE_SNAPSHOTS, st.sampled_from([None, 1]), st.booleans())
def test_reading_stacks_once_reads_what_is_there(found, indent, marked):
    """Whatever is in names, and however it is written."""
    data = json.dumps(found, indent=indent).encode("utf-8-sig" if marked else "utf-8")
    assert snapshot_file._decoded(data) == found


def test_a_stack_that_comes_again_is_read_once():
    """Most of a snapshot is a few stacks; a name in them may look like an end."""
    stack = [{"name": "f(auto)::{lambda()#1}] [clone .isra.0]", "filename": "a.py"}]
    found = snapshot_file._decoded(json.dumps([{"frames": stack}] * 9).encode())
    assert found == [{"frames": stack}] * 9
    assert len({id(each["frames"]) for each in found}) == 1


@pytest.mark.parametrize("value", ["5", "-1", "0.5", "null", '"x"', "[]", "{}"])
def test_no_file_can_hold_what_stands_for_a_stack(monkeypatch, value):
    """It is made up anew for each: what stood in the last file is a key like others."""
    drawn, marks = os.urandom, []
    monkeypatch.setattr(os, "urandom", lambda n: marks.append(drawn(n)) or marks[-1])
    snapshot_file._decoded(b'[{"frames":[]}]')
    mark = marks[0].hex()
    written = f'"\\u{ord(mark[0]):04x}{mark[1:]}"'
    text = f'[{{"frames":[]}},{{{written}:{value}}}]'

    assert snapshot_file._decoded(text.encode()) == json.loads(text)


@pytest.mark.parametrize("packing", range(3))
@pytest.mark.parametrize(
    "write", [pickle.dumps, lambda each: json.dumps(each).encode()]
)
def test_pickle_and_json_say_the_same(tmp_path, write, packing):
    """However it is packed and written, the same comes out, and where it is from."""
    path = tmp_path / "oom.pickle"
    path.write_bytes(packed(write(newest()))[packing])

    found = read(path)

    assert found.segments[0] == {
        "device": 0,
        "address": BASE,
        "total_size": 20 * MIB,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": FRAMES,
        "blocks": newest()["segments"][0]["blocks"],
    }
    assert [each["action"] for each in found.device_traces[0]] == [
        each["action"] for each in newest()["device_traces"][0]
    ]
    assert (found.devices, found.settings) == ((0,), "expandable_segments:False")
    assert (found.file.name, found.file.events) == ("oom.pickle", 7)
    assert found.file.nbytes == len(write(newest()))
    assert (found.file.missing, found.file.unknown) == (None, ())


def test_a_list_of_segments_is_a_snapshot():
    """What `torch.cuda.memory_snapshot()` returns has segments alone."""
    found = snapshot_in(opened(newest()["segments"]))

    assert len(found.segments) == 1
    assert (found.device_traces, found.settings) == ([], None)
    assert device_of(found, 0).allocated_bytes == 2 * MIB


def test_first_versions_are_read():
    """Torch 1.13 and 2.0 keep size and stack of a block in its history."""
    old = newest()["segments"][0]
    for new_key in ("segment_pool_id", "is_expandable", "requested_size", "frames"):
        del old[new_key]
    old["blocks"] = [
        {
            "size": 2 * MIB,
            "state": "active_allocated",
            "history": [{"addr": BASE, "real_size": 2 * MIB - 5, "frames": FRAMES}],
        },
        {"size": 512, "state": "active_awaiting_free"},
        {"size": 18 * MIB - 512, "state": "inactive"},
    ]

    found = snapshot_in(opened({"segments": [old]}))

    first, second, third = found.segments[0]["blocks"]
    assert (first["requested_size"], first["frames"]) == (2 * MIB - 5, FRAMES)
    assert (second["state"], second["requested_size"]) == ("active_pending_free", None)
    assert third["address"] == BASE + 2 * MIB + 512
    line = device_of(found, 0).lines[0].line
    assert line is not None
    assert line.where == "train.py, line 7"


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (None, None),
        ({}, ""),
        ({"PYTORCH_CUDA_ALLOC_CONF": " max_split_size_mb:50 "}, "max_split_size_mb:50"),
        ({"expandable_segments": True}, "expandable_segments:True"),
        ({"max_split_size": 50 * MIB}, "max_split_size_mb:50"),
        ({"garbage_collection_threshold": 0.8}, "garbage_collection_threshold:0.8"),
        ({"max_split_size": (1 << 63) - 1, "garbage_collection_threshold": 0.0}, ""),
        ({ROUNDUP: {str(1 << n): 8 for n in range(16)}}, f"{ROUNDUP}:8"),
        ({ROUNDUP: {"1": 0, "2": 4}}, f"{ROUNDUP}:[1:0,2:4]"),
        ({ROUNDUP: {str(1 << n): 0 for n in range(16)}}, ""),
        ({"max_split_size": [], ROUNDUP: {"1": [], (1, 2): 3}}, ""),
    ],
    ids=str,
)  # fmt: skip
def test_settings_are_told_as_they_are_typed(told, text):
    """Settings are what PYTORCH_CUDA_ALLOC_CONF would say, however they were made."""
    found = newest() | {"allocator_settings": told}

    assert snapshot_in(opened(found)).settings == text


# ------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ({"traceEvents": [], "x": 1}, "its keys are traceEvents, x"),
        ({}, "it has no keys"),
        (7, "it holds one int"),
        ("text", "it holds one str"),
        ({"segments": 3}, "its segments are no list but one int"),
        ({"device_traces": [3]}, "its device_traces are no list but one int"),
        ([1, 2, [3]], "not as torch writes them: 3 segments"),
        (
            {"device_traces": [[{"action": "alloc"}]]},
            "not as torch writes them: 1 entry",
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("as_json", [True, False])
def test_other_files_are_refused(found, says, as_json):
    """An error says what was found and what writes a snapshot."""
    with pytest.raises(GpuMagicError) as refused:
        snapshot_in(opened(found, as_json=as_json and not isinstance(found, str | int)))

    assert says in refused.value.problem
    assert "_dump_snapshot" in refused.value.hint


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b'{"segments": [',
        b"[" * 100_000,
        b'{"segments": [' + b"9" * 5000 + b"]}",
        b'{"segments": "\xff"}',
    ],
    ids=lambda each: repr(each[:20]),
)
def test_broken_files_are_refused_in_two_lines(data):
    """Cut, deep and wrongly encoded JSON and an empty file are errors of two lines."""
    with pytest.raises(GpuMagicError) as refused:
        snapshot_in(Opened("x", "snapshot", data, missing="the end is missing"))

    assert len(refused.value.lines()) == 2
    assert "the end is missing" in refused.value.problem or not data


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("as_json", [False, True])
def test_a_cut_file_still_tells_what_was_in_use(protocol, as_json):
    """Segments stand before the history: where that is cut, they are told alone."""
    whole = newest()
    whole["segments"] *= 3
    whole["device_traces"][0] *= 3000
    data = json.dumps(whole).encode() if as_json else pickle.dumps(whole, protocol)

    found = snapshot_in(Opened("x", "snapshot", data[: -len(data) // 4]))

    assert len(found.segments) == 3
    assert found.segments[0]["blocks"] == newest()["segments"][0]["blocks"]
    assert found.device_traces == []
    assert found.file.missing == "the file ends in the middle: the history is missing"
    with pytest.raises(GpuMagicError):
        snapshot_in(Opened("x", "snapshot", data[:300]))


def test_a_trace_is_no_snapshot():
    """A trace of the profiler is named as what it is."""
    with pytest.raises(GpuMagicError, match="it is a trace of the profiler"):
        snapshot_in(Opened("x", "trace", b"{}"))


def test_what_cannot_be_used_is_left_out_and_counted():
    """Entries that nobody knows are told by name, and broken ones by number."""
    found = newest()
    found["device_traces"][0] += [
        entry("teleport", 1, 2),
        entry("teleport\x1b", 1, 2),
        entry("alloc", -1, 2),
        entry("alloc", 1, float("nan")),
        "no entry",
        entry("alloc", 1 << 80, 2),
    ]
    found["segments"] += [{"address": "here"}]
    found["segments"][0]["blocks"] += [{"size": 5, "state": ["x"]}]

    read_again = snapshot_in(opened(found)).file

    assert read_again.events == 7
    assert read_again.unknown == (("teleport", 1), ("teleport?", 1))
    assert read_again.missing is not None
    for told in ("1 segment", "1 block", "4 entries"):
        assert told in read_again.missing


def test_lists_that_are_named_again_and_again_are_refused():
    """A small pickle whose lists are in each other a million times is not walked."""
    blocks = newest()["segments"][0]["blocks"] * 500
    segment = newest()["segments"][0] | {"blocks": blocks}
    trace = newest()["device_traces"][0] * 500
    for bomb in ({"segments": [segment] * 20_000}, {"device_traces": [trace] * 20_000}):
        with pytest.raises(GpuMagicError, match="more often than a snapshot does"):
            snapshot_in(opened(bomb))


wrong = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**66), 2**66),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)


def places_in(found, path=()):
    """The way to each value inside."""
    inside = found.items() if isinstance(found, dict) else enumerate(found)
    for key, value in inside:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places_in(value, (*path, key))


@given(st.data())
def test_any_value_may_be_missing_or_wrong(data):
    """Whatever stands in the place of any value, there is an answer or two lines."""
    found = copy.deepcopy(newest())
    for _ in range(data.draw(st.integers(1, 3))):
        *way, key = data.draw(st.sampled_from(sorted(places_in(found), key=str)))
        owner = found
        for step in way:
            owner = owner[step]
        if data.draw(st.booleans()):
            del owner[key]
        else:
            owner[key] = data.draw(wrong)
        if not found:
            return
    try:
        snapshot = snapshot_in(opened(found, as_json=data.draw(st.booleans())))
    except GpuMagicError as error:
        lines = error.lines()
    else:
        lines = ["", ""]
        devices = [device_of(snapshot, each) for each in snapshot.devices]
        json.dumps([each.to_dict() for each in devices])
        grown(snapshot_in(opened(newest())), snapshot)
        grown(snapshot, snapshot_in(opened(newest())))
    assert len(lines) == 2
