"""The simulated allocator serves, keeps, counts and speaks exactly as torch's does."""

from __future__ import annotations

import random

import pytest

from gpumagic.errors import GpuMagicError
from gpumagic.simulator.allocator_segments import OutOfSimulatedMemory
from gpumagic.simulator.allocator_settings import AllocatorSettings
from tests.simulator.allocator_check import verify
from tests.simulator.simulated_device import (
    DEFAULT,
    GIB,
    MIB,
    SIDE,
    THIRD,
    Device,
    allocator_of,
)

ADVICE = (
    "is reserved by PyTorch but unallocated. If reserved but unallocated memory is "
    "large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation.  See documentation for Memory Management  "
    "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
GRAPH = (1, 0)


def every_stream(_):
    """What is asked for on any stream belongs to the pool."""
    return True


# ------------------------------------------------------------ limits


def test_garbage_collection_returns_what_was_unused_longest():
    """Above the threshold, segments of the mean age or more go back, in rounds."""
    device = Device()
    conf = "garbage_collection_threshold:0.6"
    allocator = allocator_of(100 * MIB, conf=conf, device=device)
    allocator.set_fraction(1.0)
    old, young = (allocator.allocate(size * MIB, DEFAULT) for size in (20, 34))
    allocator.free(old)
    allocator.free(allocator.allocate(30 * MIB, SIDE))
    allocator.free(young)
    device.calls.clear()

    allocator.allocate(16 * MIB, THIRD)

    # 24 of 84 MiB are too many: the oldest is not enough, and the others are of one age
    frees = [("free", size * MIB) for size in (20, 34, 30)]
    assert device.calls == [*frees, ("malloc", 16 * MIB)]
    verify(allocator)


# ------------------------------------------------------------ private pools


def test_a_diverted_request_is_served_by_its_pool_alone():
    """Free memory of others is no use to a pool, nor the pool's to others."""
    allocator = allocator_of()
    allocator.free(allocator.allocate(32 * MIB, DEFAULT))
    shared = allocator.memory_snapshot()[0]["address"]

    allocator.divert(GRAPH, every_stream)
    inside = allocator.allocate(32 * MIB, DEFAULT)
    allocator.free(inside)
    allocator.end_diversion()
    outside = allocator.allocate(32 * MIB, DEFAULT)

    assert inside.address != shared
    assert outside.address == shared
    pools = [each["segment_pool_id"] for each in allocator.memory_snapshot()]
    assert pools == [(0, 0), GRAPH]
    allocator.divert(GRAPH, every_stream)
    assert allocator.allocate(32 * MIB, DEFAULT).address == inside.address
    verify(allocator)


def test_a_pool_is_emptied_once_nobody_uses_it():
    """`empty_cache` leaves a pool in use alone, and forgets one that is not."""
    device = Device()
    allocator = allocator_of(device=device)
    allocator.divert(GRAPH, every_stream)
    block = allocator.allocate(MIB, DEFAULT)
    allocator.free(allocator.allocate(32 * MIB, DEFAULT))
    allocator.end_diversion()

    allocator.empty_cache()
    assert allocator.reserved_bytes == 34 * MIB
    allocator.release_pool(GRAPH)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 2 * MIB  # a tensor of the graph still lives
    allocator.free(block)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0
    assert allocator._private == {}
    verify(allocator)


def test_no_event_is_made_and_none_is_asked_for_during_a_capture():
    """What is freed for another stream waits until the last capture is over."""
    device = Device()
    allocator = allocator_of(device=device)
    before, within = (allocator.allocate(MIB, DEFAULT) for _ in range(2))
    for block in (before, within):
        allocator.record_stream(block, SIDE)
    allocator.free(before)
    device.finished = {SIDE}
    device.calls.clear()

    allocator.divert(GRAPH, every_stream)
    allocator.free(within)
    allocator.allocate(MIB, DEFAULT)
    allocator.empty_cache()
    assert device.calls == [("malloc", 2 * MIB)]
    assert allocator.memory_stats()["active.all.current"] == 3
    verify(allocator)

    allocator.end_diversion()
    assert device.calls[1:] == [("record", SIDE)]
    allocator.allocate(MIB, DEFAULT)
    assert allocator.memory_stats()["active.all.current"] == 2
    verify(allocator)


# ------------------------------------------------------------ PYTORCH_ALLOC_CONF


@pytest.mark.parametrize(
    ("nbytes", "rounded"),
    [
        (5_000, (6_144, 5_120, 5_120, 5_120)),
        (84 * MIB, (96 * MIB, 96 * MIB, 88 * MIB, 84 * MIB)),
        (400 * MIB, (512 * MIB, 448 * MIB, 416 * MIB, 400 * MIB)),
        (256 * MIB, (256 * MIB,) * 4),
    ],
)
def test_sizes_are_rounded_to_steps_between_powers_of_two(nbytes, rounded):
    """roundup_power2_divisions makes a block as large as torch makes it."""
    for divisions, expected in zip((2, 4, 8, 16), rounded, strict=True):
        allocator = allocator_of(conf=f"roundup_power2_divisions:{divisions}")
        assert allocator.allocate(nbytes, DEFAULT).size == expected


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ("backend:cudaMallocAsync", "does not model backend:cudaMallocAsync"),
        ("max_split_size:200", "did you mean max_split_size_mb?"),
        ("max_split_size_mb", "not a list of key:value pairs"),
        ("max_split_size_mb:10", "not a whole number from 20 on"),
        ("garbage_collection_threshold:1.5", "not a number between 0 and 1"),
        ("roundup_power2_divisions:3", "not a power of two"),
        ("roundup_power2_divisions:[64:8,>:4]", "does not model roundup_power2"),
        ("expandable_segments:yes", "not True or False"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(conf, said):
    """A setting that is unknown, malformed or not modelled is named, with a way out."""
    with pytest.raises(GpuMagicError) as caught:
        AllocatorSettings.parse(conf)
    assert said in str(caught.value)
    assert caught.value.hint


def test_the_environment_is_asked_where_nothing_else_is_said(monkeypatch):
    """The newer of torch's two names goes first; a refusal names the variable."""
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:much")
    with pytest.raises(GpuMagicError) as refused:
        AllocatorSettings.asked_for(None)
    assert refused.value.problem.endswith("; PYTORCH_CUDA_ALLOC_CONF asks for it")
    assert "%env PYTORCH_CUDA_ALLOC_CONF=" in refused.value.hint

    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:200")
    assert AllocatorSettings.asked_for(None).max_split_size_bytes == 200 * MIB
    assert AllocatorSettings.asked_for("") == AllocatorSettings()


# ------------------------------------------------------------ what it says


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
    allocator.record_history(100_000)
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

    allocator.record_history(0)
    assert allocator.history == []
