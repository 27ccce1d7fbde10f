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


def take(nbytes, stream=DEFAULT):
    """The step that allocates."""
    return lambda bench: bench.take(nbytes, stream)


def free(number):
    """The step that frees a block by its number."""
    return lambda bench: bench.free(number)


def empty(bench):
    """The step that empties the cache."""
    bench.empty()


# What is done, and then: allocated, reserved, segments, inactive splits, their bytes.
SMALL = [
    (take(1), (512, 2 * MIB, 1, 1, 2_096_640)),
    (take(513), (1_536, 2 * MIB, 1, 1, 2_095_616)),
    (take(MIB), (1_050_112, 2 * MIB, 1, 1, 1_047_040)),
    (take(MIB), (2_098_688, 4 * MIB, 2, 2, 2_095_616)),
    (free(0), (2_098_176, 4 * MIB, 2, 3, 2_096_128)),
    (free(1), (2_097_152, 4 * MIB, 2, 3, 2_097_152)),
    (free(2), (1_048_576, 4 * MIB, 2, 1, 1_048_576)),
    (free(3), (0, 4 * MIB, 2, 0, 0)),
    (empty, (0, 0, 0, 0, 0)),
]
LAST_512_BYTES = [
    (take(MIB), (1_048_576, 2 * MIB, 1, 1, 1_048_576)),
    (take(MIB - 512), (2_096_640, 2 * MIB, 1, 1, 512)),
    (take(1), (2_097_152, 2 * MIB, 1, 0, 0)),
]
SHARED_LARGE = [
    (take(MIB + 1), (1_049_088, 20 * MIB, 1, 1, 19_922_432)),
    (take(9 * MIB), (10_486_272, 20 * MIB, 1, 1, 10_485_248)),
    (take(10 * MIB - 1_536), (20_971_520, 20 * MIB, 1, 0, 0)),
]
ROUNDED_TO_10_MIB = [(take(10 * MIB - 1), (10_485_760, 10 * MIB, 1, 0, 0))]
JUST_BELOW_10_MIB = [(take(10 * MIB - 512), (10_485_248, 20 * MIB, 1, 1, 10_486_272))]
KEPT_REMAINDER = [
    (take(2 * MIB), (2_097_152, 20 * MIB, 1, 1, 18_874_368)),
    (take(17 * MIB), (20_971_520, 20 * MIB, 1, 0, 0)),
    (take(17 * MIB + 1), (39_845_888, 38 * MIB, 2, 0, 0)),
]
HELD_BY_ONE_BLOCK = [
    (take(100 * MIB), (104_857_600, 100 * MIB, 1, 0, 0)),
    (free(0), (0, 100 * MIB, 1, 0, 0)),
    (take(40 * MIB), (41_943_040, 100 * MIB, 1, 1, 62_914_560)),
    (take(61 * MIB), (106_954_752, 162 * MIB, 2, 1, 62_914_560)),
    (empty, (106_954_752, 162 * MIB, 2, 1, 62_914_560)),
    (free(1), (65_011_712, 162 * MIB, 2, 0, 0)),
    (empty, (65_011_712, 62 * MIB, 1, 0, 0)),
]
ANOTHER_STREAM = [
    (take(4 * MIB), (4_194_304, 20 * MIB, 1, 1, 16_777_216)),
    (free(0), (0, 20 * MIB, 1, 0, 0)),
    (take(4 * MIB, SIDE), (4_194_304, 40 * MIB, 2, 1, 16_777_216)),
]
MAX_SPLIT = [
    (take(300 * MIB), (314_572_800, 300 * MIB, 1, 0, 0)),
    (free(0), (0, 300 * MIB, 1, 0, 0)),
    (take(100 * MIB), (104_857_600, 400 * MIB, 2, 0, 0)),
    (take(281 * MIB), (419_430_400, 400 * MIB, 2, 0, 0)),
    (free(2), (104_857_600, 400 * MIB, 2, 0, 0)),
    (take(280 * MIB), (398_458_880, 680 * MIB, 3, 0, 0)),
]


@pytest.mark.parametrize(
    ("conf", "rows"),
    [
        pytest.param("", SMALL, id="small blocks share 2 MiB"),
        pytest.param("", LAST_512_BYTES, id="512 bytes are a remainder"),
        pytest.param("", SHARED_LARGE, id="large blocks share 20 MiB"),
        pytest.param("", ROUNDED_TO_10_MIB, id="10 MiB have their own segment"),
        pytest.param("", JUST_BELOW_10_MIB, id="less than 10 MiB have not"),
        pytest.param("", KEPT_REMAINDER, id="1 MiB is no remainder"),
        pytest.param("", HELD_BY_ONE_BLOCK, id="one block holds its segment"),
        pytest.param("", ANOTHER_STREAM, id="streams do not share"),
        pytest.param("max_split_size_mb:200", MAX_SPLIT, id="max_split_size"),
    ],
)
def test_every_step_leaves_what_torch_would_have(conf, rows):
    """After each step the bytes, segments and splits are torch's, to the byte."""
    bench = Bench(allocator_of(conf=conf))
    for number, (step, expected) in enumerate(rows):
        step(bench)
        verify(bench.allocator)
        assert bench.state() == expected, f"after step {number}"


def test_a_full_device_gives_back_its_cache_before_it_fails():
    """Unused segments make room for a request that does not fit beside them."""
    bench = Bench(allocator_of(100 * MIB))
    for _ in range(10):
        bench.take(10 * MIB)
    for number in range(0, 10, 2):
        bench.free(number)

    bench.take(20 * MIB)

    assert bench.state() == (73_400_320, 70 * MIB, 6, 0, 0)
    assert bench.allocator.memory_stats()["num_alloc_retries"] == 1


# ------------------------------------------------------------ streams


def test_memory_that_another_stream_uses_waits_for_it():
    """A recorded block stays active until its stream is done and memory is wanted."""
    device = Device()
    allocator = allocator_of(device=device)
    block = allocator.allocate(MIB, DEFAULT)
    allocator.record_stream(block, SIDE)
    allocator.record_stream(block, THIRD)
    allocator.free(block)

    assert device.calls[1:] == [("record", SIDE), ("record", THIRD)]
    assert _active(allocator) == (0, MIB, MIB)
    assert allocator.memory_snapshot()[0]["blocks"][0]["state"] == "active_pending_free"
    verify(allocator)

    device.finished = {SIDE}  # one of two is not enough
    other = allocator.allocate(MIB, DEFAULT)
    assert other is not block
    device.finished = {SIDE, THIRD}  # and nobody looks before the next allocation
    assert _active(allocator) == (MIB, 2 * MIB, 2 * MIB)

    assert allocator.allocate(MIB, DEFAULT).address == block.address
    assert _active(allocator) == (2 * MIB, 2 * MIB, 2 * MIB)
    verify(allocator)


def _active(allocator):
    stats = allocator.memory_stats()
    families = "allocated_bytes", "active_bytes", "requested_bytes"
    return tuple(stats[f"{each}.all.current"] for each in families)


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


def test_addresses_are_made_up_the_same_way_every_time():
    """Each device has its range, and a freed range is taken again, lowest first."""
    runs = []
    for _ in range(2):
        allocator = allocator_of(index=3)
        first, second, third = (allocator.allocate(n << 20, 0) for n in (30, 20, 40))
        allocator.free(first)
        allocator.free(third)
        allocator.empty_cache()
        again = allocator.allocate(12 * MIB, DEFAULT)
        runs.append([each.address for each in (first, second, third, again)])
    assert runs[0] == runs[1]
    start = 0x7F00_0000_0000 + 3 * (1 << 40)
    assert runs[0] == [start, start + 30 * MIB, start + 50 * MIB, start]


# ------------------------------------------------------------- segments that expand
