"""Segments of a memory snapshot as records, with lines and names on their blocks."""

from __future__ import annotations

import sys

import pytest

from gpumagic.gpu_mem.records import BlockState
from gpumagic.gpu_mem.segments import segments_of
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
