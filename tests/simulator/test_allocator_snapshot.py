"""What the simulated allocator says of itself reads as what torch's says."""

from __future__ import annotations

import random

import pytest

from gpumagic.simulator.allocator_segments import OutOfSimulatedMemory
from gpumagic.simulator.allocator_snapshot import Recording
from tests.simulator.simulated_device import (
    DEFAULT,
    GIB,
    MIB,
    SIDE,
    allocator_of,
)

ADVICE = (
    "is reserved by PyTorch but unallocated. If reserved but unallocated memory is "
    "large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation.  See documentation for Memory Management  "
    "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)


def test_the_error_reads_as_torch_writes_it():
    """The text of a full device is torch's, part by part and space by space."""
    allocator = allocator_of(index=1, context_bytes=500 * MIB)
    allocator.allocate(4 * GIB, DEFAULT)
    allocator.allocate(1, DEFAULT)

    with pytest.raises(OutOfSimulatedMemory) as caught:
        allocator.allocate(4 * GIB - 1, DEFAULT)

    assert str(caught.value) == (
        "CUDA out of memory. Tried to allocate 4.00 GiB. GPU 1 has a total capacity "
        "of 8.00 GiB of which 3.51 GiB is free. "
        "Including non-PyTorch memory, this process has 4.49 GiB memory in use. "
        "Of the allocated memory 4.00 GiB is allocated by PyTorch, and 2.00 MiB "
        f"{ADVICE}"
    )
    assert caught.value.shortage.segment_bytes == 4 * GIB


# ------------------------------------------------------------ figures


def test_peaks_since_marks():
    """Each mark has the highest figure since it was made, through resets and marks."""
    draw = random.Random(5)  # noqa: S311 -- the same steps each time
    allocator, owned = allocator_of(), []
    marks, users = [], 0
    for _ in range(3000):
        step = draw.random()
        if step < 0.45 or not owned:
            owned.append(allocator.allocate(draw.randrange(1, 4 * MIB), DEFAULT))
        elif step < 0.9:
            allocator.free(owned.pop(draw.randrange(len(owned))))
        elif step < 0.94:
            allocator.reset_peaks()
            users = 0
        elif step < 0.98:
            marks.append([allocator.mark_peak(), 0])
        elif marks:
            del marks[draw.randrange(len(marks))]
        now = sum(block.size for block in owned)
        users = max(users, now)
        for pair in marks:
            pair[1] = max(pair[1], now)
            assert allocator.peak_since(pair[0]) == pair[1]
        assert allocator.peak_allocated_bytes == users


def test_a_history_tells_every_action_in_order():
    """Once switched on, actions are noted with the sizes that torch notes."""
    clock = iter(range(100))
    allocator = allocator_of(64 * MIB, now_us=lambda: next(clock))
    allocator.free(allocator.allocate(1, DEFAULT))
    allocator.record_history(Recording())
    block = allocator.allocate(30 * MIB - 5, SIDE)
    allocator.free(block)
    allocator.memory_snapshot()
    with pytest.raises(OutOfSimulatedMemory):
        allocator.allocate(65 * MIB - 5, SIDE)

    entries = allocator.history
    assert [(each["action"], each["size"], each["stream"]) for each in entries] == [
        ("segment_alloc", 30 * MIB, SIDE),
        ("alloc", 30 * MIB - 5, SIDE),
        ("free_requested", 30 * MIB - 5, SIDE),
        ("free_completed", 30 * MIB - 5, SIDE),
        ("snapshot", 0, 0),
        ("segment_free", 30 * MIB, SIDE),
        ("segment_free", 2 * MIB, DEFAULT),
        ("oom", 65 * MIB, SIDE),
    ]
    assert [each["time_us"] for each in entries] == list(range(8))
    assert entries[1]["addr"] == block.address
    assert entries[-1]["device_free"] == 64 * MIB
    assert "addr" not in entries[-1]

    allocator.record_history(None)
    assert allocator.history == []
