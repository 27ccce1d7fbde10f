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


class Bench:
    """An allocator whose blocks are known by the order of their allocation."""

    def __init__(self, allocator):
        self.allocator = allocator
        self.blocks = []

    def take(self, nbytes, stream=DEFAULT):
        """Allocate the next block."""
        self.blocks.append(self.allocator.allocate(nbytes, stream))

    def free(self, number):
        """Free the block of this number."""
        self.allocator.free(self.blocks[number])

    def empty(self):
        """Empty the cache."""
        self.allocator.empty_cache()

    def state(self):
        """Allocated, reserved, segments, inactive splits and their bytes."""
        stats = self.allocator.memory_stats()
        families = "allocated_bytes", "reserved_bytes", "segment"
        splits = "inactive_split", "inactive_split_bytes"
        return tuple(stats[f"{each}.all.current"] for each in (*families, *splits))


def free(number):
    """The step that frees a block by its number."""
    return lambda bench: bench.free(number)


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


@pytest.mark.parametrize("chosen", [[0, 2], [1], None])
def test_what_is_unused_can_be_returned_without_a_wait(chosen):
    """Of all segments or of some; what streams still use, and what is in use, stays."""
    device = Device()
    allocator = allocator_of(device=device)
    blocks = [allocator.allocate(n * MIB, DEFAULT) for n in (20, 30, 40, 50, 60)]
    allocator.record_stream(blocks[3], SIDE)
    for block in blocks[:4]:
        allocator.free(block)
    device.calls.clear()
    unused = {block.address for block in blocks[:3]}
    wanted = None if chosen is None else [blocks[each].address for each in chosen]

    assert allocator.returnable == unused
    allocator.give_back(wanted)

    assert allocator.returnable == unused - set(wanted or unused)
    assert {what for what, _ in device.calls} == {"free"}
    assert len(device.calls) == len(wanted or unused)
    assert blocks[3].address in {
        each["address"] for each in allocator.memory_snapshot()
    }
    verify(allocator)


def test_pages_are_returned_with_all_that_is_unused():
    """Segments that expand have no address of their own to be chosen by."""
    bench = Bench(allocator_of(conf="expandable_segments:True"))
    bench.take(30 * MIB)
    bench.free(0)
    bench.allocator.give_back([bench.blocks[0].address])
    assert bench.allocator.reserved_bytes == 40 * MIB
    bench.allocator.give_back()
    assert bench.allocator.reserved_bytes == 0


def test_what_is_there_serves_a_request_only_on_its_own_stream():
    """Asking whether it would takes nothing, and asks no driver."""
    device = Device()
    allocator = allocator_of(device=device)
    allocator.free(allocator.allocate(20 * MIB, DEFAULT))
    device.calls.clear()

    assert allocator.serves(20 * MIB, DEFAULT)
    assert not allocator.serves(20 * MIB + 1, DEFAULT)
    assert not allocator.serves(1, DEFAULT)  # small ones lie elsewhere
    assert not allocator.serves(20 * MIB, SIDE)
    assert device.calls == []


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


# ------------------------------------------------------------ addresses


# ------------------------------------------------------------- segments that expand
