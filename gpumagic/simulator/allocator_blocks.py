"""The pieces that simulated memory is cut into, and the lists of the free ones."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from gpumagic.simulator.allocator_settings import (
    LARGEST_SMALL_BYTES,
    SMALLEST_BLOCK_BYTES,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.simulator.allocator_counters import Tally

# The states as torch spells them in a memory snapshot.
ALLOCATED = "active_allocated"
PENDING = "active_pending_free"  # freed, while another stream may still use it
INACTIVE = "inactive"

SHARED = (0, 0)  # the identity of what no private pool owns

# A free block is found by size, then by address: both in one number.
_SIZE_SHIFT = 56


class Block:
    """A piece of a segment; the pieces of a segment are linked in order of address.

    The first piece of a segment stays the same object for the segment's life.
    `requested` is what the latest owner asked for, also after it was freed.
    """

    __slots__ = (
        "address",
        "free_since",
        "next",
        "pending_events",
        "pool",
        "previous",
        "requested",
        "size",
        "state",
        "stream",
        "uses",
    )

    def __init__(self, address: int, size: int, stream: int, pool: Pool) -> None:
        self.address = address
        self.size = size
        self.stream = stream
        self.pool = pool
        self.requested = 0
        self.state = INACTIVE
        self.previous: Block | None = None
        self.next: Block | None = None
        self.uses: list[int] | None = None  # other streams that it was lent to
        self.pending_events = 0
        self.free_since = 0  # the number of searches there had been of its pool

    def __repr__(self) -> str:
        return f"<Block {self.address:#x} of {self.size} bytes, {self.state}>"

    @property
    def allocated(self) -> bool:
        """Whether somebody owns it."""
        return self.state is ALLOCATED

    @property
    def is_split(self) -> bool:
        """Whether it is only a part of its segment."""
        return self.previous is not None or self.next is not None

    def split_off(self, size: int) -> Block:
        """Keep the front of this size; the rest as a free block of its own."""
        pool = self.pool
        rest = Block(self.address + size, self.size - size, self.stream, pool)
        rest.requested = self.requested
        rest.free_since = pool.searches
        rest.previous = self
        rest.next = following = self.next
        if following is not None:
            following.previous = rest
        self.next = rest
        self.size = size
        return rest

    def absorb(self, gone: Block) -> None:
        """Take over the room of the next block, which is no more."""
        self.size += gone.size
        self.next = following = gone.next
        if following is not None:
            following.previous = self


class FreeBlocks:
    """The free blocks of one stream in one pool, by size and then address."""

    __slots__ = ("blocks", "keys")

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.blocks: list[Block] = []

    def fit(self, size: int) -> int:
        """The position of the smallest block that is large enough, or the end."""
        return bisect_left(self.keys, size << _SIZE_SHIFT)

    def add(self, block: Block) -> None:
        """Enter a block that has become free."""
        key = block.size << _SIZE_SHIFT | block.address
        position = bisect_left(self.keys, key)
        self.keys.insert(position, key)
        self.blocks.insert(position, block)

    def find(self, block: Block) -> int:
        """The position of a block that is listed."""
        return bisect_left(self.keys, block.size << _SIZE_SHIFT | block.address)

    def remove_at(self, position: int) -> None:
        """Strike the block at this position from the list."""
        del self.keys[position]
        del self.blocks[position]

    def replace_at(self, position: int, block: Block) -> None:
        """Put a block, new or of another size, in the place of the one there."""
        keys, blocks = self.keys, self.blocks
        key = block.size << _SIZE_SHIFT | block.address
        above = position + 1
        # Mostly the order stays, and nothing has to move.
        if (not position or keys[position - 1] < key) and (
            above == len(keys) or key < keys[above]
        ):
            keys[position] = key
            blocks[position] = block
        else:
            del keys[position], blocks[position]
            position = bisect_left(keys, key)
            keys.insert(position, key)
            blocks.insert(position, block)


class Pool:
    """The small or the large half of an allocator's memory, or of a private pool."""

    __slots__ = (
        "free_by_stream",
        "identity",
        "name",
        "searches",
        "tally",
        "whole_bytes",
    )

    def __init__(
        self, name: str, tally: Tally, identity: tuple[int, int] = SHARED
    ) -> None:
        self.name = name  # "small" or "large"
        self.identity = identity
        self.tally = tally
        self.free_by_stream: dict[int, FreeBlocks] = {}
        self.searches = 0  # counted only where garbage is collected
        # A remainder up to this size is not worth splitting off.
        self.whole_bytes = (
            SMALLEST_BLOCK_BYTES - 1 if name == "small" else LARGEST_SMALL_BYTES
        )

    def enter(self, block: Block) -> tuple[int, int]:
        """Merge a block that has become free with free neighbours, and list it.

        Returns by how much that changes the number and the bytes of the inactive
        parts of segments.
        """
        block.state = INACTIVE
        free = self.free_by_stream[block.stream]
        number = nbytes = 0
        position = -1
        following, previous = block.next, block.previous
        if following is not None and following.state is INACTIVE:
            position = free.find(following)
            number, nbytes = -1, -following.size
            block.absorb(following)
        if previous is not None and previous.state is INACTIVE:
            if position >= 0:
                free.remove_at(position)
            position = free.find(previous)
            number, nbytes = number - 1, nbytes - previous.size
            previous.requested = block.requested
            previous.absorb(block)
            block, previous = previous, previous.previous
        block.free_since = self.searches
        if position >= 0:
            free.replace_at(position, block)
        else:
            free.add(block)
        if previous is not None or block.next is not None:
            return number + 1, nbytes + block.size
        return number, nbytes

    def remove(self, block: Block) -> None:
        """Strike a free block from its list."""
        free = self.free_by_stream[block.stream]
        free.remove_at(free.find(block))

    def unused_segments(self) -> list[Block]:
        """The free blocks that are whole segments, by stream, size and address."""
        return [each for each in self.free_blocks() if not each.is_split]

    def free_blocks(self) -> Iterator[Block]:
        """All free blocks by stream, size and address."""
        for stream in sorted(self.free_by_stream):
            yield from self.free_by_stream[stream].blocks
