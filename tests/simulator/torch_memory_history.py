"""torch's memory history on the simulated GPU: what, when, and from where."""

from __future__ import annotations

import pickle

import pytest
import torch

MIB = 1 << 20


@pytest.fixture(scope="module")
def machine():
    """Two H100 with little memory that stand in for CUDA."""
    return {"machine": "2xh100", "as_cuda": True, "memory": "1GiB"}


def own_calls(frames):
    """The names of this file's functions in the frames, up to the test's own."""
    names = [each["name"] for each in frames if each["filename"] == __file__]
    tests = [place for place, name in enumerate(names) if name.startswith("test_")]
    return names[: tests[0]]


def entries(device=0):
    """What was recorded of a device."""
    return torch.cuda.memory._snapshot()["device_traces"][device]


def make(device="cuda"):
    """A tensor of 30 MiB."""
    return torch.empty(30 * MIB, dtype=torch.uint8, device=device)


def drop(tensors):
    """Let go of tensors that nobody else has."""
    tensors.clear()


@pytest.mark.usefixtures("box")
def test_the_calls_are_recorded_that_took_and_gave_back():
    """Each action has the calls that led to it; a free those of the tensor's end."""
    torch.cuda.memory._record_memory_history()
    tensors = [make()]
    drop(tensors)
    make("cuda:1")

    found = {each["action"]: each for each in entries()}
    assert [*found] == ["segment_alloc", "alloc", "free_requested", "free_completed"]
    assert entries()[-1]["action"] == "snapshot"  # noted when it had been taken
    assert own_calls(found["segment_alloc"]["frames"]) == ["make"]
    assert own_calls(found["alloc"]["frames"]) == ["make"]
    assert own_calls(found["free_requested"]["frames"]) == ["drop"]
    assert own_calls(found["free_completed"]["frames"]) == ["drop"]
    assert found["alloc"]["frames"][0]["name"] == "make"
    assert found["alloc"]["pool_id"] == (0, 0)
    assert [each["action"] for each in entries(1)][:2] == ["segment_alloc", "alloc"]


@pytest.mark.usefixtures("box")
def test_the_snapshot_is_read_by_torchs_viewer(tmp_path):
    """The dumped file has what the viewer of torch wants."""
    from torch.cuda import _memory_viz

    torch.cuda.memory._record_memory_history()
    kept = make()
    file = tmp_path / "snapshot.pickle"
    torch.cuda.memory._dump_snapshot(str(file))

    with file.open("rb") as opened:
        snapshot = pickle.load(opened)  # noqa: S301 -- our own

    assert kept.data_ptr() == snapshot["segments"][0]["address"]
    assert "30.0MiB" in _memory_viz.trace(snapshot)
    assert "make" in _memory_viz.memory(snapshot, format_flamegraph=str)
    torch.cuda.memory._record_memory_history(enabled=False)
    assert not entries()
