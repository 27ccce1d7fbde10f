"""What is said of a request comes true when it is made."""

# ruff: noqa: ARG002 -- there is one device, whatever is asked of

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.gpu_mem import api
from gpumagic.gpu_mem.api import Memory
from gpumagic.gpu_mem.name_sources import KnownNames
from gpumagic.gpu_mem.records import Block, BlockState, Cause, Segment
from gpumagic.gpu_mem.segments import segments_of
from gpumagic.gpu_mem.would_fit import answer_for, segment_bytes
from gpumagic.simulator.allocator_segments import OutOfSimulatedMemory
from gpumagic.simulator.allocator_settings import AllocatorSettings
from tests.simulator.simulated_device import DEFAULT, SIDE, Device, allocator_of

MIB, GIB = 1 << 20, 1 << 30
CAPACITY = 120 * MIB
ALLOCATED, PENDING, FREE = BlockState.ALLOCATED, BlockState.PENDING, BlockState.FREE
NUMBERS = {DEFAULT: 0, SIDE: 1}  # as segments have them

sizes = st.one_of(
    st.integers(1, 3 * MIB),
    st.integers(1, 60 * MIB),
    st.sampled_from([MIB, MIB + 1, 10 * MIB - 512, 10 * MIB, 20 * MIB]),
)
streams = st.sampled_from([DEFAULT, SIDE])


def fill(allocator, device, draw):
    """Run a random program that fills the device; what does not fit is left out."""
    blocks = []
    for _ in range(draw.randrange(12, 60)):
        stream = draw.choice([DEFAULT, DEFAULT, SIDE])
        chosen = blocks.pop(draw.randrange(len(blocks))) if blocks else None
        match draw.choice(["take", "take", "take", "free", "free", "lend"]):
            case "take":
                most = draw.choice([2 * MIB, 12 * MIB, 40 * MIB])
                with contextlib.suppress(OutOfSimulatedMemory):
                    blocks.append(allocator.allocate(draw.randint(1, most), stream))
            case "free" if chosen:
                allocator.free(chosen)
                chosen = None
            case "lend" if chosen:
                allocator.record_stream(chosen, stream)
        if chosen:
            blocks.append(chosen)
    if draw.random() < 0.3:
        device.finished |= set(NUMBERS)


def what_happens(allocator, device, nbytes, stream):
    """Make the request, and tell where it went."""
    device.calls.clear()
    try:
        allocator.allocate(nbytes, stream)
    except OutOfSimulatedMemory:
        return "nowhere"
    called = [name for name, _ in device.calls if name in ("malloc", "free")]
    if not called:
        return "hole"
    return "after releasing" if "free" in called else "driver"


def asked_about(allocator, nbytes, stream, **others):
    """The answer for a request on an allocator as it stands."""
    free_bytes, _ = allocator.mem_info()
    allowed = allocator.allowed_bytes
    cap_left = None if allowed is None else allowed - allocator.reserved_bytes
    snapshot = allocator.memory_snapshot()
    return answer_for(
        nbytes,
        segments_of(snapshot),
        device=0,
        device_free_bytes=free_bytes,
        cap_left_bytes=cap_left,
        stream=NUMBERS[stream],
        **others,
    )


@settings(deadline=None, max_examples=400)
@given(
    st.integers(0, 1 << 32),
    sizes,
    streams,
    st.sampled_from([None, None, 0.25, 0.5]),
    st.sampled_from([None, None, 20, 30]),
)
def test_answers_come_true(seed, nbytes, stream, fraction, max_split):
    """What fits goes where it was said to go, and what does not fit fails."""
    device = Device()
    conf = f"max_split_size_mb:{max_split}" if max_split else ""
    allocator = allocator_of(CAPACITY, conf=conf, device=device)
    if fraction:
        allocator.set_fraction(fraction)
    fill(allocator, device, Random(seed))  # noqa: S311, a program and no secret

    answer = asked_about(
        allocator,
        nbytes,
        stream,
        max_split_bytes=None if max_split is None else max_split * MIB,
    )
    waiting = any(
        block["state"] == "active_pending_free"
        for segment in allocator.memory_snapshot()
        for block in segment["blocks"]
    )

    happened = what_happens(allocator, device, nbytes, stream)
    if answer.place is None:
        assert waiting
    elif answer.place == "nowhere" or not waiting:
        assert answer.place == happened
    else:  # others may have finished meanwhile, which only makes room
        assert happened != "nowhere"


@given(sizes)
def test_sizes_by_the_allocators_own_settings(nbytes):
    """Blocks and segments have the sizes that the allocator gives them."""
    answer = answer_for(
        nbytes, (), device=0, device_free_bytes=CAPACITY, cap_left_bytes=None
    )

    own = AllocatorSettings()
    assert answer.rounded_bytes == own.rounded_bytes(nbytes)
    assert answer.segment_bytes == own.segment_bytes(answer.rounded_bytes)
    assert segment_bytes(answer.rounded_bytes) == answer.segment_bytes


def test_nothing_needs_no_place():
    """A request of no bytes fits on a full device."""
    answer = answer_for(0, (), device=0, device_free_bytes=0, cap_left_bytes=0)

    assert (answer.place, answer.rounded_bytes) == ("hole", 0)


# ----------------------------------------------------------- by hand: made segments


def segment(*blocks, stream=0, pool="large", expandable=False, device=0):
    """A segment of blocks, each a number of MiB and a state."""
    offset, made = 0, []
    for mib, state in blocks:
        made.append(Block(offset, mib * MIB, state))
        offset += mib * MIB
    return Segment(device, 0, offset, stream, pool, expandable, tuple(made))


def place_of(mib, *segments, free=0, cap=None, **others):
    """Where so many MiB would go."""
    return answer_for(
        mib * MIB,
        segments,
        device=0,
        device_free_bytes=None if free is None else free * MIB,
        cap_left_bytes=None if cap is None else cap * MIB,
        **others,
    ).place


def test_only_its_own_group_serves_a_request():
    """Holes of another device, stream or pool are none; the driver can have them."""
    others = (
        segment((50, FREE), (1, ALLOCATED), stream=1),
        segment((50, FREE), (1, ALLOCATED), device=1),
        segment((50, FREE), (1, ALLOCATED), pool="1"),
    )

    assert place_of(30, *others) == "nowhere"
    assert place_of(30, *others, stream=1) == "hole"
    assert place_of(30, *others, segment((50, FREE), stream=1)) == "after releasing"


def test_what_other_streams_have_free_is_told_apart():
    """It is no hole for the request, however large it is; other pools are not meant."""
    theirs = segment((90, FREE), (10, ALLOCATED), stream=1)
    pool = segment((50, FREE), (10, ALLOCATED), stream=1, pool="graphs")

    answer = answer_for(
        60 * MIB,
        [segment((20, FREE), (10, ALLOCATED)), theirs, pool],
        device=0,
        device_free_bytes=0,
        cap_left_bytes=None,
    )

    assert (answer.hole_bytes, answer.elsewhere_bytes) == (20 * MIB, 90 * MIB)


def test_what_the_driver_has_is_unknown():
    """Without the driver's figure only holes and limits decide."""
    hole = segment((30, FREE), (1, ALLOCATED))

    assert place_of(30, hole, free=None) == "hole"
    assert place_of(31, hole, free=None) is None
    assert place_of(31, hole, free=None, cap=30) == "nowhere"


def test_a_limit_counts_what_goes_back():
    """Under a limit free segments make room as they do on the device."""
    idle = segment((40, FREE), stream=1)

    assert place_of(50, idle, free=100, cap=20) == "after releasing"
    assert place_of(62, idle, free=100, cap=20) == "nowhere"


def test_waiting_streams_leave_it_open():
    """A hole that appears once other streams are done makes it unknown."""
    lent = segment((10, FREE), (20, PENDING), (1, ALLOCATED))

    assert place_of(10, lent) == "hole"
    assert place_of(30, lent) is None
    assert place_of(32, lent) == "nowhere"


def test_what_waits_goes_back_as_well():
    """Before memory goes back to the driver all streams are waited for."""
    lent = segment((20, PENDING), (10, FREE), stream=1)

    assert place_of(30, lent) == "after releasing"
    assert place_of(32, lent) == "nowhere"


def test_large_blocks_that_are_not_split():
    """Above the limit for splitting, a block serves only what nearly fills it."""
    idle = segment((300, FREE))

    assert place_of(100, idle, max_split_bytes=200 * MIB) == "after releasing"
    assert place_of(280, idle, max_split_bytes=200 * MIB) == "after releasing"
    assert place_of(281, idle, max_split_bytes=200 * MIB) == "hole"
    assert place_of(100, idle, max_split_bytes=400 * MIB) == "hole"


def test_pools_of_graphs_leave_it_open():
    """Whether the segments of a graph's pool go back depends on the graph."""
    pool = segment((40, FREE), pool="1")

    assert place_of(30, pool) is None
    assert place_of(42, pool) == "nowhere"


def test_an_expandable_segment_grows_behind_its_free_end():
    """New pages are needed only for what does not fit into the free end."""
    grown = segment((5, FREE), (10, ALLOCATED), (25, FREE), expandable=True)

    answer = answer_for(
        50 * MIB, [grown], device=0, device_free_bytes=40 * MIB, cap_left_bytes=None
    )

    assert (answer.place, answer.segment_bytes) == ("driver", 40 * MIB)
    assert place_of(50, grown, free=39) == "nowhere"


def test_an_expandable_segment_gives_back_whole_pages():
    """Free pages in the middle make room for pages at the end."""
    cut = segment((10, ALLOCATED), (45, FREE), (25, ALLOCATED), expandable=True)

    answer = answer_for(
        50 * MIB, [cut], device=0, device_free_bytes=40 * MIB, cap_left_bytes=None
    )

    assert answer.releasable_bytes == 20 * MIB
    assert answer.place == "after releasing"
    assert place_of(50, cut, free=39) == "nowhere"


def test_which_segment_grows_is_not_known():
    """Where only growing the right one of two segments would do, it is unknown."""
    ends = [
        segment((10, ALLOCATED), (10, FREE), expandable=True),
        segment((1, ALLOCATED), (19, FREE), expandable=True),
    ]

    assert place_of(39, *ends, free=20) is None
    assert place_of(39, *ends, free=40) == "driver"
    assert place_of(60, *ends, free=20) == "nowhere"


@pytest.mark.parametrize(("expandable", "asked"), [(False, 26), (True, 40), (None, 26)])
def test_expandable_from_the_settings(expandable, asked):
    """Before there is a segment only the settings tell how much is taken."""
    answer = answer_for(
        25 * MIB,
        (),
        device=0,
        device_free_bytes=None,
        cap_left_bytes=None,
        expandable=expandable,
    )

    assert answer.segment_bytes == asked * MIB


# ------------------------------------------------- with what the device has now


@dataclass
class Now:
    """A runtime with one device of 80 GiB, of which its allocator has some segments."""

    segments: list[dict[str, Any]]
    free_bytes: int
    kind: str = "virtual"
    simulated: bool = False
    in_use: bool = True

    def started(self):
        """Whether it is in use."""
        return self.in_use

    def devices_in_use(self):
        """The one."""
        return (0,)

    def device_name(self, device):
        """A name."""
        return f"GPU {device}"

    def memory_snapshot(self):
        """Its segments."""
        return self.segments

    def memory_stats(self, device):
        """What the segments come to."""
        reserved = sum(each["total_size"] for each in self.segments)
        active = sum(each["active_size"] for each in self.segments)
        return {
            "reserved_bytes.all.current": reserved,
            "allocated_bytes.all.current": active,
            "active_bytes.all.current": active,
        }

    def memory_bytes(self, device):
        """What the driver says."""
        return self.free_bytes, 80 * GIB


def told(nbytes, *, address, pool=(0, 0), used=0):
    """A large segment, in torch's own shape, whose first bytes are in use."""
    states = [("active_allocated", used), ("inactive", nbytes - used)]
    return {
        "device": 0,
        "address": address,
        "total_size": nbytes,
        "active_size": used,
        "segment_type": "large",
        "segment_pool_id": pool,
        "stream": 0,
        "blocks": [{"state": state, "size": size} for state, size in states if size],
    }


@pytest.fixture
def fit(monkeypatch):
    """Whether some bytes fit on a device."""
    driver = SimpleNamespace(simulated=False)

    def fit(device, nbytes):
        monkeypatch.setattr(api, "runtime_now", lambda: device)
        return Memory(KnownNames({}), lambda: driver).fit(nbytes)

    return fit


def test_what_graphs_keep_for_themselves_is_told_as_the_reason(fit):
    """Memory that lies free in the pool of a graph would do, and is not given."""
    kept = [told(10 * GIB, address=1 << 40, pool=(0, 1), used=GIB)]

    report = fit(Now(kept, free_bytes=2 * GIB), 8 * GIB)

    assert Cause.PRIVATE_POOL in report.causes


def test_without_a_graph_no_pool_is_blamed(fit):
    """The same memory in use by tensors is no pool's fault."""
    kept = [told(10 * GIB, address=1 << 40, used=10 * GIB)]

    report = fit(Now(kept, free_bytes=2 * GIB), 8 * GIB)

    assert Cause.PRIVATE_POOL not in report.causes
