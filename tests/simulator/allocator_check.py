"""Whether blocks, lists and counters of an allocator agree."""

from __future__ import annotations

from collections import Counter

from gpumagic.simulator.allocator_blocks import (
    ALLOCATED,
    END,
    INACTIVE,
    PENDING,
    UNMAPPED,
)
from gpumagic.simulator.allocator_snapshot import blocks_from


def verify(allocator):
    """Raise AssertionError at the first thing that cannot be."""
    private = [half for pair in allocator._private.values() for half in pair]
    pools = allocator._small, allocator._large, *private
    heads, held = allocator.heads, allocator._held
    awaited = [block for queue in held.queues.values() for _, block in queue]
    awaited += [block for block, streams in held._deferred for _ in streams]
    counters = allocator.counters
    _check_segments(heads)
    blocks = [block for head in heads.values() for block in blocks_from(head)]
    _check_free_lists(pools, blocks)
    _check_events(awaited, blocks)
    allocator.memory_stats()  # which counts what is active, where it differs
    for family, total in counters.totals.items():
        for name, count in (("small", total.small), ("large", total.large)):
            parts = [each for each in blocks if each.pool.name == name]
            _check_count(family, count, parts)
        _check_count(family, total, blocks)


def _check_segments(heads):
    end = 0
    for address in sorted(heads):
        previous = END
        assert address >= end, "segments overlap"
        end = address
        for block in blocks_from(heads[address]):
            assert block.address == end, f"{block!r} leaves a gap or overlaps"
            assert block.size > 0, f"{block!r} is empty"
            assert block.previous is previous, f"{block!r} is linked wrongly"
            if previous is not END:
                idle = {block.state, previous.state} <= {INACTIVE, UNMAPPED}
                merged = not idle or block.state is not previous.state
                assert merged, f"{block!r} was not merged"
                same = block.stream == previous.stream and block.pool is previous.pool
                assert same, f"{block!r} is in a foreign segment"
            previous, end = block, block.address + block.size


def _check_free_lists(pools, blocks):
    listed = {INACTIVE: [], UNMAPPED: []}
    for pool in pools:
        lists = [(UNMAPPED, stream, each) for stream, each in pool.unmapped.items()]
        for stream, free in pool.free_by_stream.items():
            keys = [free.keys[free.find(block)] for block in free.blocks]
            assert free.keys == sorted(set(free.keys)) == keys, "a list is out of order"
            lists.append((INACTIVE, stream, free.blocks))
        for state, stream, its in lists:
            for block in its:
                found = block.state, block.stream, block.pool
                assert found == (state, stream, pool), f"{block!r} is listed wrongly"
            listed[state] += its
    for state, its in listed.items():
        there = {id(each) for each in blocks if each.state is state}
        assert {id(each) for each in its} == there, f"a block that is {state} is lost"


def _check_events(awaited, blocks):
    waiting = Counter(map(id, awaited))
    for block in blocks:
        awaits = waiting.pop(id(block), 0)
        assert block.pending_events == awaits, f"{block!r} waits for other events"
        held = block.state is PENDING
        assert held == (awaits > 0), f"{block!r} is not held for its events"
    assert not waiting, "an event is awaited for a block that is no more"


def _check_count(family, count, blocks):
    owned = [each for each in blocks if each.state is ALLOCATED]
    mapped = [each for each in blocks if each.state is not UNMAPPED]
    active = [each for each in mapped if each.state is not INACTIVE]
    plain = [each for each in mapped if not each.expandable]
    parts = [each for each in plain if each.state is INACTIVE and each.is_split]
    seen = {
        "allocation": len(owned),
        "allocated_bytes": sum(each.size for each in owned),
        "active": len(active),
        "active_bytes": sum(each.size for each in active),
        "requested_bytes": sum(each.requested for each in active),
        "inactive_split": len(parts),
        "inactive_split_bytes": sum(each.size for each in parts),
        "segment": sum(each.previous is END for each in plain),
        "reserved_bytes": sum(each.size for each in mapped),
    }[family]
    assert count.current == seen, f"{family} is counted wrongly"
    assert count.peak >= count.current, f"the peak of {family} is too low"
