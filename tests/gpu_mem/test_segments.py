"""Segments: as records with lines and names, and what is free in them, byte by byte."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.gpu_mem.records import Block, BlockState, Segment
from gpumagic.gpu_mem.segments import (
    blocking_names,
    held_back,
    returnable_bytes,
    segments_of,
    stuck_bytes,
)
from gpumagic.report.places import CodeLine

HERE = __file__


def block(size, state="inactive", **others):
    """A block as torch has it."""
    return {"size": size, "state": state, "requested_size": size - 12, **others}


def segment(address, *blocks, **others):
    """A segment as torch has it."""
    return {
        "device": 0,
        "address": address,
        "total_size": sum(each["size"] for each in blocks),
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "blocks": list(blocks),
        **others,
    }


def frame(filename, line, name="f"):
    """A frame of a recorded stack."""
    return {"filename": filename, "line": line, "name": name}


def test_blocks_in_order():
    """A block has its place, size, state and request; a free one no request."""
    entry = segment(
        4096,
        block(512, "active_allocated"),
        block(1024),
        block(2048, "active_pending_free"),
        block(4096, "active_awaiting_free"),
    )

    (found,) = segments_of([entry])

    assert (found.device, found.address, found.nbytes) == (0, 4096, 7680)
    assert found.pool == "large"
    assert found.allocated_bytes == 512
    assert [(b.offset_bytes, b.nbytes, b.state) for b in found.blocks] == [
        (0, 512, BlockState.ALLOCATED),
        (512, 1024, BlockState.FREE),
        (1536, 2048, BlockState.PENDING),
        (3584, 4096, BlockState.PENDING),
    ]


def test_small_numbers():
    """Streams are numbered by device, pools over all; the default ones come first."""
    entries = [
        segment(0, stream=0x7F00),
        segment(1, stream=0x55),
        segment(2, stream=0),
        segment(3, stream=0x7F00, device=1),
        segment(4, segment_pool_id=(0, 9)),
        segment(5, segment_pool_id=(0, 3), segment_type="small", is_expandable=True),
        segment(6, segment_type="small"),
    ]

    found = {each.address: each for each in segments_of(entries)}

    assert [found[address].stream for address in range(4)] == [2, 1, 0, 1]
    assert [found[address].pool for address in (4, 5, 6)] == ["2", "1", "small"]
    assert found[5].expandable
    assert not found[4].expandable


# ------------------------------------------------------------------------- lines


def test_innermost_line_of_the_user():
    """Of a recorded stack the innermost line counts that is the user's own."""
    pytest.importorskip("torch")
    torch_file = sys.modules["torch"].__file__
    frames = [
        frame("??", 0),
        frame("/pytorch/aten/src/ATen/Functions.cpp", 12),
        frame(torch_file, 3),
        frame(HERE, 3),
        frame(HERE, 5),
    ]
    entry = segment(0, block(512, "active_allocated", frames=frames), block(512))

    (found,) = segments_of([entry])

    assert found.blocks[0].line == CodeLine(
        "test_segments.py, line 3", "from __future__ import annotations"
    )
    assert found.blocks[1].line is None


# ------------------------------------------------------------------------- names


def test_names_by_address():
    """A block has the names of all that lies in it; a free one has none."""
    entry = segment(
        1000, block(512, "active_allocated"), block(512), block(512, "active_allocated")
    )
    addresses = {1000: ("a",), 1511: ("b", "a"), 1512: ("gone",), 2024: ("c",)}

    (found,) = segments_of([entry], names=addresses)

    assert [b.names for b in found.blocks] == [("a", "b"), (), ("c",)]


# ----------------------------------------------------------- what is free and blocked

KIB, MIB = 1 << 10, 1 << 20
ALLOCATED, PENDING, FREE = BlockState.ALLOCATED, BlockState.PENDING, BlockState.FREE


def made_of(*blocks, stream=0, pool="large", expandable=False, device=0):
    """A segment of blocks, each a number of MiB, a state, and perhaps its names."""
    offset, made = 0, []
    for mib, state, *names in blocks:
        made.append(Block(offset, mib * MIB, state, names=tuple(names)))
        offset += mib * MIB
    return Segment(device, 0, offset, stream, pool, expandable, tuple(made))


states = st.sampled_from([ALLOCATED, PENDING, FREE])
rows = st.lists(st.tuples(st.integers(1, 30), states), min_size=1, max_size=7)
segments = st.builds(
    lambda row, stream, pool: made_of(*row, stream=stream, pool=pool),
    rows,
    st.integers(0, 2),
    st.sampled_from(["small", "large", "1"]),
)


def cells_of(each):
    """A segment as one entry for each MiB: its state."""
    return [b.state for b in each.blocks for _ in range(b.nbytes // MIB)]


@settings(deadline=None, max_examples=200)
@given(st.lists(segments, max_size=6))
def test_what_is_held_back_by_brute_force(made):
    """Counting every MiB gives the same, and no segment is counted twice."""
    rows = held_back(made)

    cells = [cells_of(each) for each in made]
    stuck = [row for row in cells if FREE in row and set(row) != {FREE}]
    free = sum(row.count(FREE) for row in stuck)
    assert sum(row.free_bytes for row in rows) == free * MIB
    assert sum(row.used_bytes for row in rows) == (sum(map(len, stuck)) - free) * MIB
    assert sum(row.segments for row in rows) == len(stuck)
    assert all(row.hole_bytes <= row.free_bytes for row in rows)


def test_names_that_can_be_deleted():
    """Those whose few blocks hold back much."""
    lone = made_of((1, ALLOCATED, "mask"), (99, FREE))
    parts = made_of((1, ALLOCATED, "model"), (11, FREE), (1, ALLOCATED, "xs"))
    crowd = made_of(*[(1, ALLOCATED, f"y{n}") for n in range(9)], (196, FREE))
    full = made_of((500, ALLOCATED, "big"))

    rows = held_back([crowd, lone, parts, full])

    assert [row.holders for row in rows] == [
        "y0 and 8 other blocks",
        "mask",
        "model and 1 other block",
    ]
    assert blocking_names(rows) == ("mask", "model", "xs")


@settings(deadline=None, max_examples=100)
@given(rows, st.sampled_from(["small", "large"]))
def test_pages_of_expandable_segments(row, pool):
    """Of an expandable segment what covers whole free pages can go back."""
    page = {"small": 2, "large": 20}[pool]
    short = -sum(mib for mib, _ in row) % page
    row = [*row, (short, ALLOCATED)] if short else row
    made = made_of(*row, pool=pool, expandable=True)

    cells = cells_of(made)
    pages = [cells[start : start + page] for start in range(0, len(cells), page)]
    free_pages = sum(set(each) == {FREE} for each in pages)
    awaited = sum(ALLOCATED not in each for each in pages)
    assert returnable_bytes(made) == free_pages * page * MIB
    assert returnable_bytes(made, after_waiting=True) == awaited * page * MIB
    assert stuck_bytes(made) == (cells.count(FREE) - free_pages * page) * MIB
