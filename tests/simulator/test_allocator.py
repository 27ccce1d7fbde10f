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
