"""What an allocator holds and what it did, in the shapes of torch's memory snapshot."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from gpumagic.simulator.allocator_blocks import ALLOCATED, INACTIVE, Block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class History:
    """The latest actions of an allocator, oldest first.

    Attributes:
        recording: Whether somebody wants to know of each action: the record that is
            kept, or an observer.

        observers: Told of each block that is handed out ("alloc"), asked back
            ("free_requested") and free again ("free_completed").
    """

    def __init__(self, now_us: Callable[[], int]) -> None:
        self.recording = False
        self.observers: tuple[Callable[[str, Block], object], ...] = ()
        self._keeping = False
        self._entries: deque[dict[str, Any]] = deque()
        self._now_us = now_us

    def switch(self, on: bool, max_entries: int) -> None:  # noqa: FBT001, a switch
        """Record from now on, keeping the latest; or stop and forget."""
        self._keeping = on
        self.recording = on or bool(self.observers)
        kept = self._entries if on else ()
        self._entries = deque(kept, maxlen=max_entries)

    def observe(self, observer: Callable[[str, Block], object]) -> None:
        """Tell somebody of each action on a block; be quick, never fail."""
        self.observers = (*self.observers, observer)
        self.recording = True

    def ignore(self, observer: Callable[[str, Block], object]) -> None:
        """Tell them no more."""
        self.observers = tuple(each for each in self.observers if each != observer)
        self.recording = self._keeping or bool(self.observers)

    def add_block(self, action: str, block: Block) -> None:
        """Note an action on a block."""
        for observer in self.observers:
            observer(action, block)
        self.add(action, block.address, block.requested, block.stream)

    def add(self, action: str, address: int, size: int, stream: int) -> None:
        """Note an action on memory at this address."""
        self._append(action, "addr", address, size, stream)

    def add_oom(self, device_free_bytes: int, size: int, stream: int) -> None:
        """Note a request that could not be met."""
        self._append("oom", "device_free", device_free_bytes, size, stream)

    def entries(self) -> list[dict[str, Any]]:
        """The actions as one list of torch's `device_traces`."""
        return [dict(each) for each in self._entries]

    def _append(
        self, action: str, what: str, value: int, size: int, stream: int
    ) -> None:
        if not self._keeping:
            return
        self._entries.append(
            {
                "action": action,
                what: value,
                "size": size,
                "stream": stream,
                "time_us": self._now_us(),
                "frames": [],
            }
        )


def snapshot_of(device: int, heads: Iterable[Block]) -> list[dict[str, Any]]:
    """The segments that begin with these blocks, by address."""
    ordered = sorted(heads, key=lambda head: head.address)
    return [_segment(device, head) for head in ordered]


def blocks_from(head: Block) -> Iterator[Block]:
    """The blocks of a segment in order of address."""
    block: Block | None = head
    while block is not None:
        yield block
        block = block.next


def _segment(device: int, head: Block) -> dict[str, Any]:
    blocks = list(blocks_from(head))
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
        "is_expandable": False,
        "frames": [],
        "blocks": [_block(each) for each in blocks],
    }


def _block(block: Block) -> dict[str, Any]:
    return {
        "address": block.address,
        "size": block.size,
        "requested_size": block.requested,
        "state": block.state,
        "frames": [],
    }
