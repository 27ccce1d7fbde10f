"""Snapshots of all versions and in all packings come out in one shape."""

from __future__ import annotations

import copy
import gzip
import json
import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_open.files import Opened
from gpumagic.gpu_open.memory_history import device_of, grown
from gpumagic.gpu_open.snapshot_file import read, snapshot_in

MIB = 1 << 20
BASE = 0x7F00_0000_0000
FRAMES = [{"filename": "/home/me/train.py", "line": 7, "name": "step"}]


def entry(action, addr, size, **more):
    """One entry as torch writes it."""
    return {"action": action, "addr": addr, "size": size, "stream": 0, **more}


def newest():
    """A snapshot as torch 2.13 writes it, with one of each kind of entry."""
    block = {"address": BASE, "size": 2 * MIB, "requested_size": 2 * MIB - 5}
    block |= {"state": "active_allocated", "frames": FRAMES}
    rest = {"address": BASE + 2 * MIB, "size": 18 * MIB, "requested_size": 0}
    rest |= {"state": "inactive", "frames": []}
    place = {"device": 0, "address": BASE, "total_size": 20 * MIB, "stream": 0}
    kind = {"segment_type": "large", "segment_pool_id": (0, 0)}
    known = {**kind, "is_expandable": False}
    failed = {"action": "oom", "device_free": 5 * MIB, "size": 1 << 30, "stream": 0}
    failed |= {"frames": FRAMES}
    return {
        "segments": [{**place, **known, "frames": FRAMES, "blocks": [block, rest]}],
        "device_traces": [
            [
                entry("segment_alloc", BASE, 20 * MIB, time_us=1, pool_id=(0, 0)),
                entry("alloc", BASE, 2 * MIB - 5, time_us=2, frames=FRAMES),
                entry("alloc", BASE + 2 * MIB, 4, time_us=3, compile_context="N/A"),
                entry("free_requested", BASE + 2 * MIB, 4, user_metadata="x"),
                entry("free_completed", BASE + 2 * MIB, 4, time_us=3),
                failed,
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


@pytest.mark.parametrize(
    "write", [pickle.dumps, lambda each: json.dumps(each).encode()]
)
def test_pickle_and_json_say_the_same(tmp_path, write):
    """However it is written; entries of a later torch, or without a place, are not."""
    path, newer = tmp_path / "oom.pickle", newest()
    newer["device_traces"][0] += [entry("teleport", 1, 2), entry("alloc", None, 2)]
    path.write_bytes(gzip.compress(write(newer)))

    found = read(path)

    (segment,) = newest()["segments"]
    del segment["frames"]
    assert found.segments[0] == {**segment, "segment_pool_id": (0, 0)}
    actions = [each["action"] for each in found.device_traces[0]]
    assert actions == [each["action"] for each in newest()["device_traces"][0][:-1]]
    assert (found.devices, found.settings) == ((0,), "expandable_segments:False")
    told = found.file.name, found.file.events, found.file.nbytes
    assert told == ("oom.pickle", 6, len(write(newer)))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b'{"traceEvents": [], "x": 1}', "it has no segments"),
        (b'{"segments": 3}', r"got `int` - at `\$.segments`"),
        (b'{"device_traces": [[{"size": 5}]]}', "missing required field `action`"),
        (b'{"segments": [{"address": -1, "total_size": 1}]}', "`int` >= 0"),
        (b'{"segments": [', "ends in the middle"),
        (pickle.dumps(newest())[:-40], "ends in the middle"),
        (b"[" * 100_000, "no whole JSON"),
        (b"\x80\x04q.", "no whole pickle"),
    ],
    ids=lambda each: repr(each[:20]),
)
def test_other_files_are_refused_in_two_lines(data, says):
    """What was found there; cut, deep and wrongly encoded ones."""
    with pytest.raises(GpuMagicError, match=says) as refused:
        snapshot_in(Opened("x", "snapshot", data))

    assert len(refused.value.lines()) == 2


class Runs:
    """An object whose pickle would run something where it is read."""

    def __reduce__(self):
        return os.system, ("touch ran",)


@pytest.mark.parametrize("protocol", [2, 5])
@pytest.mark.parametrize("inside", [Runs(), len, 1j], ids=["runs", "len", "1j"])
def test_nothing_of_a_pickle_is_run(inside, protocol, tmp_path, monkeypatch):
    """What has a name is refused by it, however harmless; the error says a way out."""
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps({"segments": [inside]}, protocol)

    with pytest.raises(GpuMagicError, match="reading it runs nothing") as refused:
        snapshot_in(Opened("x.pickle", "snapshot", data))

    assert "if you trust it" in refused.value.hint
    assert not any(tmp_path.iterdir())


@given(st.binary(max_size=60), st.integers(2, 5))
def test_any_bytes_behind_a_protocol_are_an_answer_or_two_lines(data, protocol):
    """Whatever a pickle of somebody else says."""
    error = None
    try:
        snapshot_in(Opened("x", "snapshot", b"\x80" + bytes([protocol]) + data + b"."))
    except GpuMagicError as raised:
        error = raised
    assert error is None or len(error.lines()) == 2


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
