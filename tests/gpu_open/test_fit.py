"""What is said of one more allocation comes true when it is made."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.gpu_mem.segments import segments_of
from gpumagic.gpu_open.fit import would_fit
from gpumagic.gpu_open.memory_records import SnapshotOfDevice
from gpumagic.simulator.allocator_segments import OutOfSimulatedMemory
from tests.gpu_open.recorded_programs import CAPACITY, Program
from tests.simulator.simulated_device import DEFAULT, MIB, allocator_of

SETTINGS = ("", "expandable_segments:True", "max_split_size_mb:20")


def _device(allocator, total_bytes):
    return SnapshotOfDevice(
        device=0,
        allocated_bytes=allocator.allocated_bytes,
        reserved_bytes=allocator.reserved_bytes,
        segments=segments_of(allocator.memory_snapshot()),
        total_bytes=total_bytes,
    )


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 1 << 32),
    st.one_of(st.integers(1, 3 * MIB), st.integers(1, 90 * MIB)),
    st.sampled_from(SETTINGS),
)
def test_answers_come_true(seed, nbytes, conf):
    """Where it is said to fit it does, from the cache or not; else memory runs out."""
    program = Program(seed, conf, CAPACITY, streams=(DEFAULT,))
    program.run(40)
    answer = would_fit(_device(program.allocator, CAPACITY), nbytes, settings=conf)
    taken = program.allocator.counters.device_allocations
    try:
        program.allocator.allocate(nbytes, DEFAULT)
    except OutOfSimulatedMemory:
        assert answer.fits is not True
    else:
        assert answer.fits is not False
        asked = program.allocator.counters.device_allocations > taken
        assert answer.into_cache is not asked


@pytest.mark.parametrize(
    ("total_bytes", "fits"), [(None, None), (60 * MIB, True), (59 * MIB, False)]
)
def test_the_driver_decides_where_the_cache_does_not(total_bytes, fits):
    """Unknown memory leaves it open; the amount given goes before what is known."""
    allocator = allocator_of()
    kept = allocator.allocate(30 * MIB, DEFAULT)
    answer = would_fit(_device(allocator, None), 30 * MIB, total_bytes)
    assert (answer.fits, answer.into_cache) == (fits, False)
    assert answer.from_driver_bytes == 30 * MIB
    known = would_fit(_device(allocator, 40 * MIB), 30 * MIB, total_bytes)
    assert known.fits is (fits or False)
    allocator.free(kept)
    assert would_fit(_device(allocator, None), 30 * MIB).into_cache


def test_settings_of_another_torch_change_nothing():
    """Words that are not known are left aside; those that are round as torch does."""
    allocator = allocator_of(conf="roundup_power2_divisions:4")
    allocator.free(allocator.allocate(40 * MIB, DEFAULT))
    device = _device(allocator, None)
    assert would_fit(device, 33 * MIB, settings="roundup_power2_divisions:4").into_cache
    assert not would_fit(
        device, 41 * MIB, settings="roundup_power2_divisions:4"
    ).into_cache
    assert would_fit(device, 33 * MIB, settings="of_a_later_torch:True").into_cache
