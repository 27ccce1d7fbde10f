"""The shares of a device's memory agree with counting byte by byte."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.gpu_mem.records import Block, BlockState, Segment
from gpumagic.gpu_mem.segments import (
    blocking_names,
    held_back,
    kept_in_pools_bytes,
    returnable_bytes,
    stuck_bytes,
)

KIB, MIB = 1 << 10, 1 << 20
ALLOCATED, PENDING, FREE = BlockState.ALLOCATED, BlockState.PENDING, BlockState.FREE


def segment(*blocks, stream=0, pool="large", expandable=False, device=0):
    """A segment of blocks, each a number of MiB, a state, and perhaps its names."""
    offset, made = 0, []
    for mib, state, *names in blocks:
        made.append(Block(offset, mib * MIB, state, names=tuple(names)))
        offset += mib * MIB
    return Segment(device, 0, offset, stream, pool, expandable, tuple(made))


states = st.sampled_from([ALLOCATED, PENDING, FREE])
rows = st.lists(st.tuples(st.integers(1, 30), states), min_size=1, max_size=7)
segments = st.builds(
    lambda row, stream, pool: segment(*row, stream=stream, pool=pool),
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
    lone = segment((1, ALLOCATED, "mask"), (99, FREE))
    parts = segment((1, ALLOCATED, "model"), (11, FREE), (1, ALLOCATED, "xs"))
    crowd = segment(*[(1, ALLOCATED, f"y{n}") for n in range(9)], (196, FREE))
    full = segment((500, ALLOCATED, "big"))

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
    made = segment(*row, pool=pool, expandable=True)

    cells = cells_of(made)
    pages = [cells[start : start + page] for start in range(0, len(cells), page)]
    free_pages = sum(set(each) == {FREE} for each in pages)
    awaited = sum(ALLOCATED not in each for each in pages)
    assert returnable_bytes(made) == free_pages * page * MIB
    assert returnable_bytes(made, after_waiting=True) == awaited * page * MIB
    assert stuck_bytes(made) == (cells.count(FREE) - free_pages * page) * MIB


def test_free_in_pools_of_graphs():
    """What graphs keep is what is free in their pools on that device."""
    made = [
        segment((4, FREE), (1, ALLOCATED), (2, FREE), pool="1"),
        segment((8, FREE), pool="2"),
        segment((16, FREE)),
        segment((32, FREE), pool="1", device=1),
    ]

    assert kept_in_pools_bytes(made, 0) == 14 * MIB
    assert kept_in_pools_bytes(made, 1) == 32 * MIB
