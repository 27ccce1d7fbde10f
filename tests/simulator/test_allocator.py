"""The simulated allocator serves, keeps and counts memory exactly as torch's does."""

from __future__ import annotations

import pytest

from tests.simulator.allocator_check import verify
from tests.simulator.simulated_device import (
    DEFAULT,
    MIB,
    SIDE,
    THIRD,
    Device,
    allocator_of,
)

# ------------------------------------------------------------ streams


def test_emptying_the_cache_waits_for_held_blocks_first():
    """empty_cache waits for all events, then returns large and then small segments."""
    device = Device()
    allocator = allocator_of(device=device)
    small = allocator.allocate(512, DEFAULT)
    large = allocator.allocate(32 * MIB, SIDE)
    allocator.record_stream(large, THIRD)
    allocator.free(large)
    allocator.free(small)
    device.calls.clear()

    allocator.empty_cache()

    assert device.calls == [("wait", THIRD), ("free", 32 * MIB), ("free", 2 * MIB)]
    stats = allocator.memory_stats()
    assert stats["num_sync_all_streams"] == 1
    assert stats["num_device_free"] == 2
    assert allocator.reserved_bytes == 0
    assert allocator.memory_snapshot() == []


# ------------------------------------------------------------ limits


@pytest.mark.parametrize(
    ("threshold", "returned"),
    [
        (0.65, [20]),  # 84 MiB are taken, 19 too many: the oldest are enough
        (0.6, [20, 34, 30]),  # 24 too many: the others are of one age, and all go
    ],
)
def test_garbage_collection_returns_what_was_unused_longest(threshold, returned):
    """Above the threshold, segments of the mean age or more go back, in rounds."""
    device = Device()
    conf = f"garbage_collection_threshold:{threshold}"
    allocator = allocator_of(100 * MIB, conf=conf, device=device)
    allocator.set_fraction(1.0)
    old, young = (allocator.allocate(size * MIB, DEFAULT) for size in (20, 34))
    allocator.free(old)
    allocator.free(allocator.allocate(30 * MIB, SIDE))
    allocator.free(young)
    device.calls.clear()

    allocator.allocate(16 * MIB, THIRD)

    frees = [("free", size * MIB) for size in returned]
    assert device.calls == [*frees, ("malloc", 16 * MIB)]
    verify(allocator)


@pytest.mark.parametrize(
    ("wanted", "returned", "retries"),
    [
        (70, [], 0),  # the 80 MiB serve it
        (150, [100, 80], 0),  # the largest until they suffice
        (250, [100, 80, 60, 40], 1),  # all 240 are too few: then everything goes
    ],
)
def test_oversize_blocks_go_back_before_everything_does(wanted, returned, retries):
    """With a split limit, only enough oversize blocks are returned for a request."""
    device = Device()
    allocator = allocator_of(400 * MIB, conf="max_split_size_mb:50", device=device)
    for block in [allocator.allocate(n * MIB, DEFAULT) for n in (60, 80, 100, 40)]:
        allocator.free(block)
    device.calls.clear()

    allocator.allocate(wanted * MIB, DEFAULT)

    frees = [("free", size * MIB) for size in returned]
    assert device.calls[: len(frees)] == frees
    assert len(device.calls) == (len(frees) + 1 if frees else 0)
    stats = allocator.memory_stats()
    assert stats["num_alloc_retries"] == retries
    assert stats["max_split_size"] == 50 * MIB
    assert stats["oversize_allocations.current"] == 1
    assert stats["oversize_allocations.allocated"] == 4
    assert stats["oversize_segments.freed"] == sum(size > 50 for size in returned)


def test_pages_that_are_given_back_one_after_the_other_become_one_gap():
    """What lies before an unmapped range is joined with it, and each is counted."""
    device = Device()
    allocator = allocator_of(conf="expandable_segments:True", device=device)
    blocks = [allocator.allocate(40 * MIB, DEFAULT) for _ in range(3)]
    for block in blocks[:2]:
        allocator.free(block)
        allocator.empty_cache()
        verify(allocator)

    assert device.calls[-2:] == [("free", 40 * MIB)] * 2
    assert allocator.memory_stats()["num_device_free"] == 2
    assert allocator.reserved_bytes == 40 * MIB
    again = allocator.allocate(80 * MIB, DEFAULT)
    assert again.address == blocks[0].address
