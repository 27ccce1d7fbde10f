"""Shows what an allocator holds and did, as torch's snapshot does."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeAlias

from gpumagic.simulator.allocator_blocks import (
    ALLOCATED,
    INACTIVE,
    SHARED,
    UNMAPPED,
    Block,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpumagic.simulator.allocator_blocks import PoolId

    # The calls that led to an action, each with what a frame of torch's has; they are
    # put in words when somebody wants to read them.
    Calls: TypeAlias = "Callable[[], list[dict[str, Any]]]"

_TAKES = ("alloc", "segment_alloc", "segment_map")
_ENDS = ("free_completed", "segment_free", "segment_unmap")


@dataclass(frozen=True)
class Recording:
    """What to keep of each action."""

    max_entries: int = 100_000  # how many of the latest actions
    # finds the calls that led to an action, of a block if it is about one
    gather: Callable[[str, Block | None], Calls] = lambda *_: list


class History:
    """The latest actions of an allocator, oldest first."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        # whether somebody wants to know of each action: the record that is kept, or an
        # observer
        self.recording = False
        # told of each block that is handed out ("alloc"), asked back ("free_requested")
        # and free again ("free_completed")
        self.observers: tuple[Callable[[str, Block], object], ...] = ()
        self.blocks: dict[int, Calls] = {}  # where each was allocated, by address
        self.segments: dict[int, Calls] = {}
        self._kept: Recording | None = None
        self._entries: deque[tuple[dict[str, Any], Calls]] = deque()
        self._now_us = now_us

    def switch(self, recording: Recording | None, *, clear: bool = False) -> None:
        """Record from now on, keeping the latest; or stop, and forget."""
        self._kept = recording
        self.recording = recording is not None or bool(self.observers)
        if recording is None:
            self.blocks.clear()
            self.segments.clear()
            self._entries = deque()
        else:
            entries = () if clear else self._entries
            self._entries = deque(entries, maxlen=recording.max_entries)

    def observe(self, observer: Callable[[str, Block], object]) -> None:
        """Tell somebody of each action on a block; be quick, never fail."""
        self.observers = (*self.observers, observer)
        self.recording = True

    def ignore(self, observer: Callable[[str, Block], object]) -> None:
        """Tell them no more."""
        self.observers = tuple(each for each in self.observers if each != observer)
        self.recording = self._kept is not None or bool(self.observers)

    def entries(self) -> list[dict[str, Any]]:
        """The actions as one list of torch's `device_traces`."""
        return [{**entry, "frames": calls()} for entry, calls in self._entries]

    # ---------------------------------------------------------------- what happens

    def add_block(self, action: str, block: Block) -> None:
        """Note an action on a block."""
        for observer in self.observers:
            observer(action, block)
        calls = self._calls(action, block.address, self.blocks, block)
        where = block.stream, block.pool.identity
        self._enter(action, block.requested, calls, *where, addr=block.address)

    def add_segment(self, action: str, block: Block, address: int, nbytes: int) -> None:
        """Note that memory is taken from the driver, or given back, of a block."""
        calls = self._calls(action, address, self.segments, None)
        where = block.stream, block.pool.identity
        self._enter(action, nbytes, calls, *where, addr=address)

    def add_oom(self, free_bytes: int, size: int, stream: int, pool: PoolId) -> None:
        """Note a request that could not be met."""
        if self._kept is not None:
            calls = self._kept.gather("oom", None)
            self._enter("oom", size, calls, stream, pool, device_free=free_bytes)

    def add_snapshot(self, active_bytes: int) -> None:
        """Note that somebody has looked."""
        self._enter("snapshot", active_bytes, list, addr=0)

    def _calls(
        self, action: str, address: int, known: dict[int, Calls], block: Block | None
    ) -> Calls:
        if self._kept is None:
            return list
        calls = self._kept.gather(action, block)
        if action in _TAKES:
            known[address] = calls
        elif action in _ENDS:
            known.pop(address, None)
        return calls

    def _enter(
        self,
        action: str,
        size: int,
        calls: Calls,
        stream: int = 0,
        pool: PoolId = SHARED,
        **what: int,
    ) -> None:
        if self._kept is not None:
            entry = {"action": action, **what, "size": size, "stream": stream}
            entry |= {"pool_id": pool, "time_us": self._now_us()}
            self._entries.append((entry, calls))


def snapshot_of(
    device: int, heads: Iterable[Block], history: History
) -> list[dict[str, Any]]:
    """The segments that begin with these blocks, by address.

    An expandable one is shown as so many as it has runs of mapped pages.
    """
    return [
        _segment(device, list(blocks), history)
        for head in sorted(heads, key=lambda head: head.address)
        for mapped, blocks in groupby(blocks_from(head), _is_mapped)
        if mapped
    ]


def _is_mapped(block: Block) -> bool:
    return block.state is not UNMAPPED


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
        "frames": history.segments.get(head.address, list)(),
        "blocks": [
            {
                "address": each.address,
                "size": each.size,
                "requested_size": each.requested,
                "state": each.state,
                "frames": history.blocks.get(each.address, list)(),
            }
            for each in blocks
        ],
    }
