"""What is said of a request comes true when it is made."""

from __future__ import annotations

import contextlib
import math
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.gpu_mem.records import BlockState
from gpumagic.gpu_mem.segments import answer_for, segments_of
from gpumagic.simulator.allocator_segments import OutOfSimulatedMemory
from tests.gpu_mem.test_segments import made_of
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
    cap_left = allocator.allowed_bytes - allocator.reserved_bytes
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
        max_split_bytes=(max_split or math.inf) * MIB,
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


# ----------------------------------------------------------- by hand: made segments


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


def test_pools_of_graphs_leave_it_open():
    """Whether the segments of a graph's pool go back depends on the graph."""
    pool = made_of((40, FREE), pool="1")

    assert place_of(30, pool) is None
    assert place_of(42, pool) == "nowhere"


def test_an_expandable_segment_grows_behind_its_free_end():
    """New pages are needed for what does not fit there; which one grows is open."""
    grown = made_of((5, FREE), (10, ALLOCATED), (25, FREE), expandable=True)

    assert place_of(50, grown, free=60) == "driver"
    assert place_of(50, grown, free=40) is None
    assert place_of(50, grown, free=4) == "nowhere"


def test_an_expandable_segment_gives_back_whole_pages():
    """Free pages in the middle make room for pages at the end."""
    cut = made_of((10, ALLOCATED), (45, FREE), (25, ALLOCATED), expandable=True)

    assert place_of(50, cut, free=40) == "after releasing"
    assert place_of(50, cut, free=29) == "nowhere"
