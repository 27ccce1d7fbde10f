"""Whether blocks, lists and counters of an allocator agree."""

from __future__ import annotations

from collections import Counter

from gpumagic.simulator.allocator_blocks import ALLOCATED, INACTIVE, PENDING, UNMAPPED
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
        previous = None
        _demand(address >= end, "segments overlap")
        end = address
        for block in blocks_from(heads[address]):
            _demand(block.address == end, f"{block!r} leaves a gap or overlaps")
            _demand(block.size > 0, f"{block!r} is empty")
            _demand(block.previous is previous, f"{block!r} is linked wrongly")
            if previous is not None:
                idle = block.state is previous.state
                idle = idle and block.state in (INACTIVE, UNMAPPED)
                _demand(not idle, f"{block!r} was not merged")
                same = block.stream == previous.stream and block.pool is previous.pool
                _demand(same, f"{block!r} is in a foreign segment")
            previous, end = block, block.address + block.size


def _check_free_lists(pools, blocks):
    listed = unmapped = 0
    for pool in pools:
        for stream, without in pool.unmapped.items():
            unmapped += len(without)
            addresses = [each.address for each in without]
            _demand(addresses == sorted(addresses), "unmapped blocks are out of order")
            for block in without:
                _demand(block.state is UNMAPPED, f"{block!r} is listed as unmapped")
                _demand(block.stream == stream, f"{block!r} is in a foreign list")
                _demand(block.pool is pool, f"{block!r} is in a foreign pool")
        for stream, free in pool.free_by_stream.items():
            _demand(free.keys == sorted(set(free.keys)), "a free list is out of order")
            _demand(len(free.keys) == len(free.blocks), "a free list has lost a key")
            listed += len(free.keys)
            for position, block in enumerate(free.blocks):
                _demand(block.state is INACTIVE, f"{block!r} is listed as free")
                _demand(block.stream == stream, f"{block!r} is in a foreign list")
                _demand(block.pool is pool, f"{block!r} is in a foreign pool")
                _demand(free.find(block) == position, f"{block!r} has a wrong key")
    idle = sum(each.state is INACTIVE for each in blocks)
    _demand(listed == idle, f"{idle} blocks are free and {listed} are listed")
    without_memory = sum(each.state is UNMAPPED for each in blocks)
    _demand(unmapped == without_memory, "a block without memory is not listed")


def _check_events(awaited, blocks):
    waiting = Counter(map(id, awaited))
    for block in blocks:
        _demand(
            block.pending_events == waiting.pop(id(block), 0),
            f"{block!r} waits for another number of events",
        )
        _demand(
            (block.state is PENDING) == (block.pending_events > 0),
            f"{block!r} is not held for its events",
        )
    _demand(not waiting, "an event is awaited for a block that is no more")


def _check_count(family, count, blocks):
    owned = [each for each in blocks if each.state is ALLOCATED]
    mapped = [each for each in blocks if each.state is not UNMAPPED]
    active = [each for each in mapped if each.state is not INACTIVE]
    plain = [each for each in mapped if each.expandable is None]
    parts = [each for each in plain if each.state is INACTIVE and each.is_split]
    seen = {
        "allocation": len(owned),
        "allocated_bytes": sum(each.size for each in owned),
        "active": len(active),
        "active_bytes": sum(each.size for each in active),
        "requested_bytes": sum(each.requested for each in active),
        "inactive_split": len(parts),
        "inactive_split_bytes": sum(each.size for each in parts),
        "segment": sum(each.previous is None for each in plain),
        "reserved_bytes": sum(each.size for each in mapped),
    }[family]
    _demand(
        count.current == seen, f"{family} is counted as {count.current} and is {seen}"
    )
    _demand(count.peak >= count.current, f"the peak of {family} is too low")


def _demand(holds, sentence):
    if not holds:
        raise AssertionError(sentence)
