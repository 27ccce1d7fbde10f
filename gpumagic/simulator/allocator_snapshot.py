"""Shows what an allocator holds and did, as torch's snapshot does."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import IntEnum
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
