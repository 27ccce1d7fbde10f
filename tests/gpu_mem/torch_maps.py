"""Maps, answers and causes on simulated machines, which know the truth.

Run by test_in_process.py, in a process of its own.
"""

from __future__ import annotations

import pytest
import torch

import gpumagic
from gpumagic.devices.opening import open_runtime
from gpumagic.gpu_mem.answer_why import verdict_of
from gpumagic.gpu_mem.balance import find_holdings
from gpumagic.gpu_mem.counters import device_memories
from gpumagic.gpu_mem.names import Sources
from gpumagic.gpu_mem.oom import read_oom
from gpumagic.gpu_mem.records import NO_OOM, Cause
from gpumagic.gpu_mem.segments import (
    answer_for,
    held_back,
    segments_of,
    segments_with_names,
)

MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture
def small():
    """A simulated H100 with 2 GiB."""
    with gpumagic.simulate("h100", memory="2GiB") as machine:
        yield machine


def take(mib):
    """A tensor of so many MiB."""
    return torch.empty(mib * MIB, dtype=torch.uint8, device="sim")


def fill(mib):
    """Tensors of so many MiB each, until there is no room for another."""
    kept = []
    while True:
        try:
            kept.append(take(mib))
        except torch.OutOfMemoryError:
            return kept


def look(box):
    """The segments and the memory of the first device."""
    runtime = open_runtime("sim")
    return (
        segments_of(runtime.memory_snapshot() or ()),
        device_memories(runtime, box.driver)[0],
    )


def failure(mib):
    """The text of the error that so many MiB raise."""
    with pytest.raises(torch.OutOfMemoryError) as raised:
        take(mib)
    return str(raised.value)


def causes_now(box, mib, **others):
    """What the failure of so many MiB comes down to."""
    oom = read_oom(failure(mib))
    segments, memory = look(box)
    answer = fits(segments, memory, oom.requested_bytes)
    assert answer.place == "nowhere"
    causes = verdict_of(oom, answer, memory, **others).causes
    # What would fail is told before it is tried as it is told after.
    assert verdict_of(NO_OOM, answer, memory, **others).causes == causes
    return causes


def fits(segments, memory, nbytes):
    """The answer for so many bytes on the device as it stands."""
    reserved, cap = memory.counters.reserved_bytes, memory.cap_bytes
    return answer_for(
        nbytes,
        segments,
        device=0,
        device_free_bytes=memory.free_bytes,
        cap_left_bytes=None if cap is None else cap - reserved,
    )


# ------------------------------------------------------------------ out of memory


def test_fragmentation(small):
    """Where every other piece is free there is enough, but in no piece."""
    kept = fill(8)
    anchors = kept[::2]
    kept.clear()
    namespace = {"anchor": anchors[3]}
    free_before = torch.sim.memory_reserved() - torch.sim.memory_allocated()
    assert free_before > 500 * MIB

    causes = causes_now(small, 300)
    sources = Sources(namespace, "sim", modules=False)
    segments = segments_with_names(open_runtime("sim").memory_snapshot(), sources)
    rows = held_back(segments)

    assert causes == (Cause.FRAGMENTED,)
    assert max(row.hole_bytes for row in rows) < 20 * MIB
    assert any("anchor" in row.names for row in rows)


def held(namespace):
    """What these names hold of the machine that is on."""
    runtime = open_runtime("sim")
    allocated = {
        n: runtime.memory_stats(n)["allocated_bytes.all.current"]
        for n in runtime.devices_in_use()
    }
    where = Sources(namespace, "sim", modules=False)
    return find_holdings(where, allocated, snapshot=runtime.memory_snapshot())


def test_memory_of_a_machine_that_is_off_is_nobodys():
    """Something else lies at its address now, and no old name is said to hold that."""
    with gpumagic.simulate("2xh100"):
        old = [torch.ones(MIB, device=f"sim:{n}") for n in (0, 1)]
    with gpumagic.simulate("2xh100"):
        new = torch.ones(MIB, device="sim:0")

        found = held({"old": old, "new": new})

    assert [(each.name, each.own_bytes) for each in found.holders] == [("new", 4 * MIB)]
    assert found.holders[0].shares_with == ""
    assert found.remarks == ()
