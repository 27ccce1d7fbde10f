"""The pieces that simulated memory is cut into: free, in pools, or freed but in use."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict, deque
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.simulator.allocator_snapshot import Tally

    Expandable: TypeAlias = tuple[int, ...]  # nothing where it does not expand

# The states as torch spells them in a memory snapshot.
ALLOCATED = "active_allocated"
PENDING = "active_pending_free"  # freed, while another stream may still use it
INACTIVE = "inactive"
# Ours alone: addresses of an expandable segment without memory, which torch's snapshot
# leaves out.
UNMAPPED = "unmapped"
# Ours as well: what lies before the first piece of a segment, and behind the last.
AT_THE_END = "at the end"
SHARED = (0, 0)  # the identity of what no private pool owns
# A free block is found by size, then by the age of its segment, as newer versions of
# torch (pytorch#183591) choose among equal ones, then by address: all in one number.
_AGE_SHIFT = 56
_SIZE_SHIFT = 96
PoolId: TypeAlias = "tuple[int, int]"
_by_address = attrgetter("address")


class _End:
    """In the place of a neighbour that a piece has not."""

    state, size = AT_THE_END, 0


END: Any = _End()


class Block:
    """A piece of a segment; the pieces of a segment are linked in order of address.

    The first piece of a segment stays the same object for the segment's life.
    `age` is the number of the segment, those that came later have higher ones.
    `requested` is what the latest owner asked for, also after it was freed. In an
    expandable segment, `expandable` is where that begins, and the bytes of its pages.
    """

    __slots__ = (
        "address",
        "age",
        "expandable",
        "free_since",
        "next",
        "pending_events",
        "pool",
        "previous",
        "rank",
        "requested",
        "size",
        "state",
        "stream",
        "uses",
    )

    def __init__(  # noqa: PLR0913, PLR0917, a piece is all of these
        self,
        address: int,
        size: int,
        stream: int,
        pool: Pool,
        age: int,
        expandable: Expandable = (),
    ) -> None:
        self.address = address
        self.age = age
        self.rank = age << _AGE_SHIFT | address  # among free blocks of its size
        self.size = size
        self.stream = stream
        self.pool = pool
        self.expandable = expandable
        self.requested = 0
        self.state = INACTIVE
        self.previous: Block = END
        self.next: Block = END
        self.uses: tuple[int, ...] = ()  # other streams that it was lent to
        self.pending_events = 0
        self.free_since = 0  # the number of searches there had been of its pool

    def __repr__(self) -> str:
        return f"<Block {self.address:#x} of {self.size} bytes, {self.state}>"

    @property
    def is_split(self) -> bool:
        """Whether it is only a part of its segment."""
        return not (self.previous is self.next is END)

    def split_off(self, size: int) -> Block:
        """Keep the front of this size; the rest as a free block of its own."""
        pool = self.pool
        rest = Block(
            self.address + size,
            self.size - size,
            self.stream,
            pool,
            self.age,
            self.expandable,
        )
        rest.requested = self.requested
        rest.free_since = pool.searches
        rest.previous = self
        rest.next = following = self.next
        if following is not END:
            following.previous = rest
        self.next = rest
        self.size = size
        return rest

    def absorb(self, gone: Block) -> None:
        """Take over the room of the next block, which is no more."""
        self.size += gone.size
        self.next = following = gone.next
        if following is not END:
            following.previous = self


class FreeBlocks:
    """The free blocks of one stream in one pool, by size, then age, then address."""

    __slots__ = ("blocks", "keys")

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.blocks: list[Block] = []

    def fit(self, size: int) -> int:
        """The position of the smallest block that is large enough, or the end."""
        return bisect_left(self.keys, size << _SIZE_SHIFT)

    def find(self, block: Block) -> int:
        """The position of a block that is listed, or where it belongs."""
        return bisect_left(self.keys, block.size << _SIZE_SHIFT | block.rank)

    def add(self, block: Block) -> None:
        """Enter a block that has become free."""
        key = block.size << _SIZE_SHIFT | block.rank
        position = bisect_left(self.keys, key)
        self.keys.insert(position, key)
        self.blocks.insert(position, block)

    def remove_at(self, position: int) -> None:
        """Strike the block at this position from the list."""
        del self.keys[position], self.blocks[position]


class Pool:
    """The small or the large half of an allocator's memory, or of a private pool."""

    def __init__(self, name: str, tally: Tally, identity: PoolId = SHARED) -> None:
        self.name = name  # "small" or "large"
        self.identity = identity
        self.tally = tally
        self.free_by_stream: defaultdict[int, FreeBlocks] = defaultdict(FreeBlocks)
        # What has no memory of expandable segments, by stream, in order of address.
        self.unmapped: dict[int, list[Block]] = {}
        self.searches = 0  # counted only where garbage is collected

    def enter(self, block: Block) -> tuple[int, int]:
        """Merge a block that has become free with free neighbours, and list it.

        Returns by how much that changes the number and the bytes of the inactive
        parts of segments.
        """
        block.state = INACTIVE
        number = nbytes = 0
        following, previous = block.next, block.previous
        if following.state is INACTIVE:
            self.remove(following)
            number, nbytes = -1, -following.size
            block.absorb(following)
        if previous.state is INACTIVE:
            self.remove(previous)
            number, nbytes = number - 1, nbytes - previous.size
            previous.requested = block.requested
            previous.absorb(block)
            block = previous
        block.free_since = self.searches
        self.free_by_stream[block.stream].add(block)
        if block.expandable:  # whose parts torch does not count
            return 0, 0
        if block.is_split:
            return number + 1, nbytes + block.size
        return number, nbytes

    def remove(self, block: Block) -> None:
        """Strike a free block from its list."""
        free = self.free_by_stream[block.stream]
        free.remove_at(free.find(block))

    def add_unmapped(self, block: Block) -> None:
        """List a block as without memory."""
        block.state = UNMAPPED
        insort(self.unmapped.setdefault(block.stream, []), block, key=_by_address)

    def remove_unmapped(self, block: Block) -> None:
        """Strike a block from what is without memory."""
        self.unmapped[block.stream].remove(block)

    def free_blocks(self, *, expandable: bool) -> list[Block]:
        """Those of expandable segments, or of others, by stream, size and age."""
        return [
            block
            for stream in sorted(self.free_by_stream)
            for block in self.free_by_stream[stream].blocks
            if bool(block.expandable) is expandable
        ]

    def unused_segments(self) -> list[Block]:
        """The free blocks that are whole segments."""
        free = self.free_blocks(expandable=False)
        return [block for block in free if not block.is_split]


class HeldBlocks:
    """Blocks that lie still until the device has passed an event on every stream."""

    def __init__(self, driver: Any, let_go: Callable[[Block], None]) -> None:
        # Events in the order of their stream, with the block that waits for each.
        self.queues: dict[int, deque[tuple[Any, Block]]] = {}
        # Freed while no event may be made, with the streams to make one for each.
        self._deferred: list[tuple[Block, tuple[int, ...]]] = []
        self._driver = driver
        self._let_go = let_go

    def hold(self, block: Block, *, defer: bool) -> None:
        """Keep a block until the streams that use it have done what they have now.

        Their events are deferred where a capture would swallow them.
        """
        streams, block.uses = block.uses, ()
        block.state = PENDING
        block.pending_events = len(streams)
        if defer:
            self._deferred.append((block, streams))
        else:
            self._await(block, streams)

    def hold_deferred(self) -> None:
        """Make the events that had to wait for the end of all captures."""
        while self._deferred:
            self._await(*self._deferred.pop(0))

    def let_go_of_done(self) -> None:
        """Look at each stream's oldest events, up to one the device has not passed."""
        for stream, queue in list(self.queues.items()):
            while queue and self._driver.done(queue[0][0]):
                self._count_event(queue.popleft()[1])
            if not queue:
                del self.queues[stream]

    def wait_for_all(self) -> None:
        """The host waits for every event; nothing is held afterwards."""
        for queue in self.queues.values():
            for event, block in queue:
                self._driver.wait(event)
                self._count_event(block)
        self.queues.clear()

    def _await(self, block: Block, streams: tuple[int, ...]) -> None:
        for stream in streams:
            queue = self.queues.setdefault(stream, deque())
            queue.append((self._driver.record(stream), block))

    def _count_event(self, block: Block) -> None:
        block.pending_events -= 1
        if not block.pending_events:
            self._let_go(block)
