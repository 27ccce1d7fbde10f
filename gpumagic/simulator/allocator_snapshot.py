"""Shows what an allocator holds and did, as torch's snapshot does, and checks it."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from gpumagic.simulator.allocator_blocks import (
    ALLOCATED,
    INACTIVE,
    PENDING,
    SHARED,
    UNMAPPED,
    Block,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gpumagic.simulator.allocator_blocks import Pool
    from gpumagic.simulator.allocator_counters import Count, Counters, Total

if TYPE_CHECKING:
    # The calls that led to an action, each with what a frame of torch's has.
    Calls: TypeAlias = "Callable[[], list[dict[str, Any]]]"

_MOST_ENTRIES = 100_000


class Context(IntEnum):
    """For which actions the calls that led there are kept; each includes the former."""

    NEVER = 0
    STATE = 1  # for what is allocated
    ALLOC = 2  # in the entries of allocations
    ALL = 3  # in those of frees, too


def _no_calls(action: str, block: Block | None) -> Calls:
    del action, block
    return list


@dataclass(frozen=True)
class Recording:
    """What to keep of each action."""

    max_entries: int = _MOST_ENTRIES  # how many of the latest actions
    context: Context = Context.NEVER  # of which ones to keep the calls that led there
    # finds these calls for an action, of a block if it is about one; they are put in
    # words when somebody wants to read them
    gather: Callable[[str, Block | None], Calls] = _no_calls
    skipped: frozenset[str] = frozenset()  # the actions of which nothing is kept


class History:
    """The latest actions of an allocator, oldest first."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        # whether somebody wants to know of each action: the record that is kept, or an
        # observer
        self.recording = False
        # told of each block that is handed out ("alloc"), asked back ("free_requested")
        # and free again ("free_completed")
        self.observers: tuple[Callable[[str, Block], object], ...] = ()
        self._kept: Recording | None = None
        self._entries: deque[tuple[dict[str, Any], Calls]] = deque()
        self._allocated: dict[int, Calls] = {}  # by the address of a block
        self._segments: dict[int, Calls] = {}
        self._now_us = now_us

    def switch(self, recording: Recording | None, *, clear: bool = False) -> None:
        """Record from now on, keeping the latest; or stop, and forget."""
        self._kept = recording
        self.recording = recording is not None or bool(self.observers)
        if recording is None:
            self._allocated.clear()
            self._segments.clear()
        keeps = recording is not None and not clear
        maxlen = recording.max_entries if recording is not None else None
        self._entries = deque(self._entries if keeps else (), maxlen=maxlen)

    def observe(self, observer: Callable[[str, Block], object]) -> None:
        """Tell somebody of each action on a block; be quick, never fail."""
        self.observers = (*self.observers, observer)
        self.recording = True

    def ignore(self, observer: Callable[[str, Block], object]) -> None:
        """Tell them no more."""
        self.observers = tuple(each for each in self.observers if each != observer)
        self.recording = self._kept is not None or bool(self.observers)

    # ---------------------------------------------------------------- what happens

    def add_block(self, action: str, block: Block) -> None:
        """Note an action on a block."""
        for observer in self.observers:
            observer(action, block)
        kept = self._kept
        if kept is None:
            return
        if action == "alloc":
            calls = self._allocated[block.address] = self._gather(
                action, Context.STATE, block
            )
            if kept.context < Context.ALLOC:
                calls = list
        else:  # torch names who took it, where who gives it back is not asked for
            calls = self._allocated.get(block.address, list)
            if kept.context >= Context.ALL:
                calls = kept.gather(action, block)
            if kept.context < Context.ALLOC:
                calls = list
            if action == "free_completed":
                self._allocated.pop(block.address, None)
        self._append(action, block, block.requested, calls)

    def add_segment(self, action: str, block: Block, address: int, nbytes: int) -> None:
        """Note that memory is taken from the driver, or given back, of a block."""
        kept = self._kept
        if kept is None:
            return
        calls = self._gather(action, Context.STATE, None)
        if action in ("segment_alloc", "segment_map"):
            self._segments[address] = calls
        else:
            own = self._segments.pop(address, list)
            calls = calls if kept.context >= Context.ALL else own
        if kept.context < Context.ALLOC:
            calls = list
        pool = block.pool.identity
        self._enter(action, "addr", address, nbytes, block.stream, pool, calls)

    def add_oom(
        self, device_free_bytes: int, size: int, stream: int, pool: tuple[int, int]
    ) -> None:
        """Note a request that could not be met."""
        if self._kept is not None:
            calls = self._gather("oom", Context.ALLOC, None)
            self._enter(
                "oom", "device_free", device_free_bytes, size, stream, pool, calls
            )

    def add_snapshot(self, active_bytes: int) -> None:
        """Note that somebody has looked."""
        self._enter("snapshot", "addr", 0, active_bytes, 0, SHARED, list)

    # ------------------------------------------------------------------ what is told

    def entries(self) -> list[dict[str, Any]]:
        """The actions as one list of torch's `device_traces`."""
        return [{**entry, "frames": calls()} for entry, calls in self._entries]

    def frames_of(self, block: Block) -> list[dict[str, Any]]:
        """Where a block was allocated."""
        return self._allocated.get(block.address, list)()

    def frames_of_segment(self, head: Block) -> list[dict[str, Any]]:
        """Where the segment that begins with a block was taken from the driver."""
        return self._segments.get(head.address, list)()

    # --------------------------------------------------------------------- its parts

    def _gather(self, action: str, least: Context, block: Block | None) -> Calls:
        kept = self._kept
        if kept is None or kept.context < least:
            return list
        return kept.gather(action, block)

    def _append(self, action: str, block: Block, size: int, calls: Calls) -> None:
        pool = block.pool.identity
        self._enter(action, "addr", block.address, size, block.stream, pool, calls)

    def _enter(  # noqa: PLR0913, PLR0917 -- an entry has as many parts
        self,
        action: str,
        what: str,
        value: int,
        size: int,
        stream: int,
        pool: tuple[int, int],
        calls: Calls,
    ) -> None:
        kept = self._kept
        if kept is None or action in kept.skipped:
            return
        entry = {
            "action": action,
            what: value,
            "size": size,
            "stream": stream,
            "pool_id": pool,
            "time_us": self._now_us(),
        }
        self._entries.append((entry, calls))


def snapshot_of(
    device: int, heads: Iterable[Block], history: History
) -> list[dict[str, Any]]:
    """The segments that begin with these blocks, by address.

    An expandable one is shown as so many as it has runs of mapped pages.
    """
    ordered = sorted(heads, key=lambda head: head.address)
    return [
        _segment(device, blocks, history)
        for head in ordered
        for blocks in _mapped_runs(head)
    ]


def _mapped_runs(head: Block) -> Iterator[list[Block]]:
    run: list[Block] = []
    for block in blocks_from(head):
        if block.state is not UNMAPPED:
            run.append(block)
        elif run:
            yield run
            run = []
    if run:
        yield run


def blocks_from(head: Block) -> Iterator[Block]:
    """The blocks of a segment in order of address."""
    block: Block | None = head
    while block is not None:
        yield block
        block = block.next


def _segment(device: int, blocks: Sequence[Block], history: History) -> dict[str, Any]:
    head = blocks[0]
    active = [each for each in blocks if each.state is not INACTIVE]
    return {
        "device": device,
        "address": head.address,
        "total_size": sum(each.size for each in blocks),
        "allocated_size": sum(each.size for each in active if each.state is ALLOCATED),
        "active_size": sum(each.size for each in active),
        "requested_size": sum(each.requested for each in active),
        "stream": head.stream,
        "segment_type": head.pool.name,
        "segment_pool_id": head.pool.identity,
        "is_expandable": head.expandable is not None,
        "frames": history.frames_of_segment(head),
        "blocks": [_block(each, history) for each in blocks],
    }


def _block(block: Block, history: History) -> dict[str, Any]:
    return {
        "address": block.address,
        "size": block.size,
        "requested_size": block.requested,
        "state": block.state,
        "frames": history.frames_of(block),
    }


def verify(
    pools: Sequence[Pool],
    heads: Mapping[int, Block],
    awaited: Iterable[Block],
    counters: Counters,
) -> None:
    """Raise AssertionError at the first thing that cannot be."""
    _check_segments(heads)
    blocks = [block for head in heads.values() for block in blocks_from(head)]
    _check_free_lists(pools, blocks)
    _check_events(awaited, blocks)
    for family, total in counters.families().items():
        for name, count in (("small", total.small), ("large", total.large)):
            parts = [each for each in blocks if each.pool.name == name]
            _check_count(family, count, parts)
        _check_count(family, total, blocks)


def _check_segments(heads: Mapping[int, Block]) -> None:
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


def _check_free_lists(pools: Sequence[Pool], blocks: Sequence[Block]) -> None:
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


def _check_events(awaited: Iterable[Block], blocks: Sequence[Block]) -> None:
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


def _check_count(family: str, count: Count | Total, blocks: Sequence[Block]) -> None:
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


def _demand(holds: bool, sentence: str) -> None:  # noqa: FBT001, a plain truth
    if not holds:
        raise AssertionError(sentence)
