"""Private pools: memory of graphs, served, kept and given back as torch does it."""

from __future__ import annotations

from tests.simulator.allocator_check import verify
from tests.simulator.simulated_device import DEFAULT, MIB, SIDE, Device, allocator_of

GRAPH, OTHER = (1, 0), (2, 0)


def every_stream(_):
    """What is asked for on any stream belongs to the pool."""
    return True


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
