"""A copy of torch's CUDA caching allocator that hands out made-up addresses.

Which block serves a request, what is split, kept, merged and returned, and every
figure of it follow torch to the byte. Time is somebody else's business: whatever
costs time on a device is a call of the driver, as `machine.TimedDriverCalls` has them.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from gpumagic.simulator.allocator_blocks import (
    ALLOCATED,
    END,
    SHARED,
    UNMAPPED,
    Block,
    FreeBlocks,
    HeldBlocks,
    Pool,
)
from gpumagic.simulator.allocator_segments import DeviceMemory
from gpumagic.simulator.allocator_settings import (
    LARGE_SEGMENT_BYTES,
    LARGEST_SMALL_BYTES,
    NO_LIMIT_BYTES,
    SMALLEST_BLOCK_BYTES,
)
from gpumagic.simulator.allocator_snapshot import snapshot_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.simulator.allocator_blocks import PoolId
    from gpumagic.simulator.allocator_settings import AllocatorSettings

_ROUND_UP, _ROUND_DOWN = SMALLEST_BLOCK_BYTES - 1, -SMALLEST_BLOCK_BYTES
_LEAST_REST_BYTES = SMALLEST_BLOCK_BYTES - 1  # up to it, a rest is not split off


class CachingAllocator(DeviceMemory):
    """The memory of one simulated device."""

    def __init__(self, device: int, capacity_bytes: int, **machine: Any) -> None:
        super().__init__(device, capacity_bytes, **machine)
        self._small = Pool("small", self.counters.small)
        self._large = Pool("large", self.counters.large)
        # the large and the small half of each private pool, as torch goes through
        # them, and how many use it
        self._private: dict[PoolId, tuple[Pool, Pool]] = {}
        self._uses: Counter[PoolId] = Counter()
        # which pool takes what is asked for on which streams just now, during a capture
        self._diverted: tuple[PoolId, Callable[[int], bool]] | None = None
        self._held = HeldBlocks(self._driver, self._let_go)
        self.reset_peaks = self.counters.reset_peaks
        self.reset_accumulated = self.counters.reset_accumulated
        self.mark_peak = self._allocated.mark
        self.beginning = self.mark_peak()
        self.peak_since = self._allocated.peak_since
        self.record_history = self._history.switch
        self.observe, self.ignore = self._history.observe, self._history.ignore
        self.configure(self.settings)

    # ------------------------------------------------------------ taking and giving

    def allocate(  # noqa: C901, PLR0912 -- written out, since every tensor comes this way
        self, nbytes: int, stream: int
    ) -> Block:
        """A block for so many bytes, at least one, of work on a stream.

        Raises `OutOfSimulatedMemory` where even an emptied cache leaves no room.
        """
        if self._held.queues and not self._diverted:
            self._held.let_go_of_done()
        if self._plain_rounding:
            size = (nbytes + _ROUND_UP) & _ROUND_DOWN
        else:
            size = self.settings.rounded_bytes(nbytes)
        if size <= LARGEST_SMALL_BYTES:
            pool, unsplit_bytes = self._small, _LEAST_REST_BYTES
        else:
            pool, unsplit_bytes = self._large, self._unsplit_bytes
        if self._diverted and self._diverted[1](stream):
            pool = self._private[self._diverted[0]][pool is self._small]
        if self._ages:
            pool.searches += 1
        free = pool.free_by_stream[stream]
        position = free.fit(size)
        if self._is_choosy:
            position = self._choose(free, position, size)
        if position == len(free.keys):
            position = self._add_segment(free, pool, size, stream)
        block = free.blocks[position]
        rest_size = block.size - size
        # How many more parts of segments lie idle, and bytes of such parts.
        splits = split_bytes = 0
        if not (block.previous is block.next is END):
            splits, split_bytes = -1, -block.size
        free.remove_at(position)
        if rest_size > unsplit_bytes and size < self._whole_from_bytes:
            free.add(block.split_off(size))
            splits, split_bytes = splits + 1, split_bytes + rest_size
        else:
            size = block.size
        if block.expandable:  # whose parts torch does not count
            splits = split_bytes = 0
        block.state = ALLOCATED
        block.requested = nbytes
        pool.tally.hand_out(size, nbytes, splits, split_bytes)
        if size >= self._max_split_bytes:
            self.counters.oversize["oversize_allocations"].large.shift(1)
        if self._history.recording:
            self._history.add_block("alloc", block)
        return block

    def free(self, block: Block) -> None:
        """Take back a block; one that other streams use is kept until they are done."""
        if block.state is not ALLOCATED:
            raise ValueError(f"{block!r} is not allocated")
        size, requested = block.size, block.requested
        if self._history.recording:
            self._history.add_block("free_requested", block)
        if size >= self._max_split_bytes:
            self.counters.oversize["oversize_allocations"].large.shift(-1)
        pool = block.pool
        if block.uses:
            self.counters.tell_active_apart()
            pool.tally.hold(size)
            self._held.hold(block, defer=bool(self._diverted))
            return
        if self._history.recording:
            self._history.add_block("free_completed", block)
        splits, split_bytes = pool.enter(block)
        pool.tally.hand_out(-size, -requested, splits, split_bytes)

    def record_stream(self, block: Block, stream: int) -> None:
        """Another stream uses the block: its later free waits for that stream."""
        if stream not in (block.stream, *block.uses):
            block.uses += (stream,)

    def empty_cache(self) -> None:
        """Wait for held blocks, then give unused segments back to the driver."""
        idle = [identity for identity in self._private if not self._uses[identity]]
        pools = [half for identity in idle for half in self._private[identity]]
        if not self._diverted:  # else only what no capture can be using
            self.counters.synchronisations += 1
            self._held.wait_for_all()
            pools = [self._large, self._small, *pools]
        for pool in pools:
            unused = pool.unused_segments()
            expandable = pool.free_blocks(expandable=True)
            for block in unused:
                self.give_back(block)
            for block in expandable:
                self.unmap(block)
        for identity in idle:
            if all(head.pool.identity != identity for head in self.heads.values()):
                del self._private[identity]

    # ------------------------------------------------------------ private pools

    def release_pool(self, identity: PoolId) -> None:
        """One user less; without any, `empty_cache` takes its memory as well.

        Nothing is moved here: this may be called by a collection of garbage, in the
        middle of anything.
        """
        self._uses[identity] -= 1

    def divert(self, identity: PoolId, accepts: Callable[[int], bool]) -> None:
        """Serve from a private pool what is asked for on streams that it accepts.

        Until that ends, no event is made: a capture is underway.
        """
        if identity not in self._private:
            large = Pool("large", self.counters.large, identity)
            small = Pool("small", self.counters.small, identity)
            self._private[identity] = large, small
        self._uses[identity] += 1
        self._diverted = identity, accepts

    def end_diversion(self) -> None:
        """Serve from the shared memory again; the pool keeps its user."""
        self._diverted = None
        self._held.hold_deferred()

    # ------------------------------------------------------------ asking

    @property
    def allocated_bytes(self) -> int:
        """What has an owner."""
        return self._allocated.current

    @property
    def peak_allocated_bytes(self) -> int:
        """The most that had an owner since the latest reset."""
        return self._allocated.peak

    @property
    def reserved_bytes(self) -> int:
        """What has been taken from the driver."""
        return self._reserved.current

    @property
    def peak_reserved_bytes(self) -> int:
        """The most that was taken from the driver since the latest reset."""
        return self._reserved.peak

    def mem_info(self) -> tuple[int, int]:
        """Free and total bytes, as the driver tells them."""
        return self.free_bytes, self.capacity_bytes

    def memory_stats(self) -> dict[str, int]:
        """Every figure under torch's flat keys."""
        return self.counters.memory_stats(self.settings.max_split_size_bytes)

    def memory_snapshot(self, pool: PoolId = SHARED) -> list[dict[str, Any]]:
        """The segments in torch's own shape, by address."""
        heads = [
            each for each in self.heads.values() if pool in (SHARED, each.pool.identity)
        ]
        segments = snapshot_of(self.device, heads, self._history)
        if self._history.recording:
            active_bytes = sum(each["active_size"] for each in segments)
            self._history.add_snapshot(active_bytes)
        return segments

    @property
    def history(self) -> list[dict[str, Any]]:
        """What was recorded, oldest first, in the shape of torch's `device_traces`."""
        return self._history.entries()

    # ------------------------------------------------------------ setting

    def set_fraction(self, fraction: float) -> None:
        """Allow this process only a share of the device's total."""
        self.allowed_bytes = int(fraction * self.capacity_bytes)
        self.configure(self.settings)

    def configure(self, settings: AllocatorSettings) -> None:
        """Round, split and keep by these settings from now on."""
        self.settings = settings
        self._plain_rounding = settings.roundup_power2_divisions < 2
        limit = settings.max_split_size_bytes
        expands = settings.expandable_segments
        self._max_split_bytes = self._whole_from_bytes = limit
        # Whether the best fit need not be the block that is taken.
        self._is_choosy = limit < NO_LIMIT_BYTES or expands or self.has_expandable
        self._unsplit_bytes = LARGEST_SMALL_BYTES
        if expands:  # every block is split, down to the least rest
            self._whole_from_bytes = NO_LIMIT_BYTES
            self._unsplit_bytes = _LEAST_REST_BYTES
        # Whether garbage is collected, for which blocks have ages.
        collects = settings.garbage_collection_threshold > 0
        self._ages = collects and self.allowed_bytes < NO_LIMIT_BYTES

    # ------------------------------------------------------------ inside

    def _choose(self, free: FreeBlocks, position: int, size: int) -> int:
        """Which block serves a request, from the best fit on; the end is none.

        Of an expandable segment the size counts that it can grow to, so that one that
        is nearly used up goes first.
        """
        blocks, end = free.blocks, len(free.blocks)
        if position < end and blocks[position].expandable:
            if self.settings.expandable_segments:
                while (
                    blocks[position].expandable
                    and position + 1 < end
                    and _grown_bytes(blocks[position + 1])
                    < _grown_bytes(blocks[position])
                ):
                    position += 1
            else:  # they were switched off, and serve nothing new
                while position < end and blocks[position].expandable:
                    position += 1
        # The best fit must not serve what it would be wasted on.
        refused_bytes = limit = self._max_split_bytes
        if size >= limit:
            refused_bytes = size + LARGE_SEGMENT_BYTES
        if position < end and blocks[position].size >= refused_bytes:
            return end
        return position

    def _add_segment(self, free: FreeBlocks, pool: Pool, size: int, stream: int) -> int:
        """Where a new segment for this size stands in its list of free blocks."""
        if self._ages:
            self.collect_garbage(self._large)
        block = self.take(size, pool, stream)
        if not block and self.give_back_oversize(free, size):
            block = self.take(size, pool, stream)
        if not block and not self._diverted:  # else a capture is underway,
            self.empty_cache()  # which may not wait for the device
            self.counters.retries += 1
            block = self.take(size, pool, stream)
        if not block:
            halves = (half for pair in self._private.values() for half in pair)
            lists = (free for half in halves for free in half.free_by_stream.values())
            idle_bytes = sum(each.size for free in lists for each in free.blocks)
            raise self.shortage(size, stream, pool.identity, idle_bytes)
        return free.find(block)

    def _let_go(self, block: Block) -> None:
        """Free a block that was held."""
        if self._history.recording:
            self._history.add_block("free_completed", block)
        size, requested, tally = block.size, block.requested, block.pool.tally
        splits, split_bytes = block.pool.enter(block)
        tally.let_go(size, requested, splits, split_bytes)


def _grown_bytes(block: Block) -> int:
    """How large a free block is with the addresses behind it that have no memory."""
    following = block.next
    return block.size + following.size * (following.state is UNMAPPED)
