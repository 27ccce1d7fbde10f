"""The memory of one device: the driver's, segments taken of it, the error when full."""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from gpumagic.simulator.allocator_blocks import (
    END,
    INACTIVE,
    UNMAPPED,
    Block,
)
from gpumagic.simulator.allocator_settings import (
    LARGE_SEGMENT_BYTES,
    NO_LIMIT_BYTES,
    SEGMENT_STEP_BYTES,
    SMALL_SEGMENT_BYTES,
    AllocatorSettings,
)
from gpumagic.simulator.allocator_snapshot import Counters, History

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.simulator.allocator_blocks import FreeBlocks, Pool, PoolId

_KIB = 1 << 10
# The exact words of torch 2.6 and later, double spaces included: people search for
# them, and programs parse them.
_ADVICE = (
    " If reserved but unallocated memory is large try setting"
    " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
    "  See documentation for Memory Management "
    " (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
_FIRST_ADDRESS = 0x7F00_0000_0000
_FIRST_EXPANDABLE_ADDRESS = 0x3_0000_0000


class DeviceMemory:
    """A device's memory, of which segments are taken whole and given back whole."""

    def __init__(  # noqa: PLR0913 -- a device is made of these
        self,
        device: int,
        capacity_bytes: int,
        *,
        driver: Any,  # what it is asked for: `machine.TimedDriverCalls`
        settings: AllocatorSettings | None = None,
        context_bytes: Callable[[], int] = lambda: 0,
        now_us: Callable[[], int] = lambda: 0,
        addresses: AddressSpace | None = None,
    ) -> None:
        self.device = device  # the index that error texts and snapshots name
        self.capacity_bytes = capacity_bytes
        self.allowed_bytes = NO_LIMIT_BYTES  # the most that this process may take
        # the first block of every segment, by address; that of an expandable one may
        # have no memory
        self.heads: dict[int, Block] = {}
        self.has_expandable = False  # whether there ever was an expandable segment
        self.settings = settings or AllocatorSettings()
        self.counters = Counters()
        self._context_bytes = context_bytes
        self._driver = driver
        self._allocated = self.counters.totals["allocated_bytes"]
        self._reserved = self.counters.totals["reserved_bytes"]
        self._history = History(now_us)
        # where the driver puts segments, the same in every run; and what it sets aside
        # for expandable ones, for each more than a whole device
        self._addresses = addresses or AddressSpace(_FIRST_ADDRESS + (device << 40))
        self._ranges = AddressSpace(_FIRST_EXPANDABLE_ADDRESS + (device << 43))
        self._age = 0  # of the latest segment

    @property
    def used_bytes(self) -> int:
        """What this process takes in all."""
        return self._context_bytes() + self._reserved.current

    @property
    def free_bytes(self) -> int:
        """What the driver has left."""
        return max(self.capacity_bytes - self.used_bytes, 0)

    def take(self, size: int, pool: Pool, stream: int) -> Block | None:
        """A free block for this size in new memory; None if there is no room."""
        nbytes = self.settings.segment_bytes(size)
        if self._reserved.current + nbytes > self.allowed_bytes:
            return None
        if self.settings.expandable_segments:
            return self._expand(size, pool, stream)
        if nbytes > self.free_bytes:
            return None
        self._driver.malloc(nbytes)
        address = self._addresses.take(nbytes)
        block = Block(address, nbytes, stream, pool, self._next_age())
        self.heads[block.address] = block
        self._count(block, 1)
        self.counters.device_allocations += 1
        if self._history.recording:
            self._history.add_segment("segment_alloc", block, block.address, nbytes)
        pool.free_by_stream[stream].add(block)
        return block

    def give_back(self, block: Block) -> None:
        """Return a listed free block that is a whole segment."""
        if self._history.recording:
            history = self._history
            history.add_segment("segment_free", block, block.address, block.size)
        self._driver.free(block.size)
        block.pool.remove(block)
        del self.heads[block.address]
        self._addresses.give_back(block.address, block.size)
        self._count(block, -1)
        self.counters.device_frees += 1

    def give_back_oversize(self, free: FreeBlocks, size: int) -> bool:
        """Return one block that makes enough room, or the largest until they do."""
        limit = self.settings.max_split_size_bytes
        wanted_bytes, released_bytes = max(size, limit), 0
        idle = [
            block
            for block in free.blocks[free.fit(limit) :]
            if not (block.expandable or block.is_split)
        ]
        enough = [block for block in idle if block.size >= wanted_bytes]
        for block in enough[:1] or reversed(idle):
            if released_bytes < wanted_bytes:
                released_bytes += block.size
                self.give_back(block)
        return released_bytes >= wanted_bytes

    def collect_garbage(self, pool: Pool) -> None:
        """Return the segments that were unused for longest, once too much is taken."""
        share = self.settings.garbage_collection_threshold
        excess_bytes = self._reserved.current - int(share * self.allowed_bytes)
        idle = pool.unused_segments()
        while idle and excess_bytes > 0:
            mean_age = sum(pool.searches - each.free_since for each in idle) / len(idle)
            kept = []
            # A round is finished even when it has already returned enough.
            for block in idle:
                if pool.searches - block.free_since >= mean_age:
                    excess_bytes -= block.size
                    self.give_back(block)
                else:
                    kept.append(block)
            idle = kept

    def shortage(
        self, size: int, stream: int, pool: PoolId, private_bytes: int
    ) -> OutOfSimulatedMemory:
        """The error for a segment that cannot be had, counted and noted."""
        self.counters.out_of_memories += 1
        if self._history.recording:
            self._history.add_oom(self.free_bytes, size, stream, pool)
        return OutOfSimulatedMemory(
            shortage_text(
                device=self.device,
                segment_bytes=self.settings.segment_bytes(size),
                total_bytes=self.capacity_bytes,
                free_bytes=self.free_bytes,
                used_bytes=self.used_bytes,
                allocated_bytes=self._allocated.current,
                reserved_bytes=self._reserved.current,
                allowed_bytes=self.allowed_bytes,
                private_bytes=private_bytes,
            )
        )

    # Expandable segments follow the native allocator of torch 2.6 and later
    # (pytorch@001074d, c10/cuda/CUDACachingAllocator.cpp, "Note [Expandable Segments]";
    # with max_split_size_mb as in its newest). Their pages are 2 MiB in the small pool
    # and 20 MiB in the large one.

    def unmap(self, block: Block) -> None:
        """Return the pages that lie in a listed free block of an expandable segment."""
        if not block.expandable:
            return
        start, page = block.expandable
        begin = start - (start - block.address) // page * page
        end = start + (block.address + block.size - start) // page * page
        if begin >= end:
            return
        pool, stream = block.pool, block.stream
        free = pool.free_by_stream[stream]
        self._driver.free(end - begin)
        pool.remove(block)
        middle = block
        if begin > block.address:
            middle = block.split_off(begin - block.address)
            block.free_since = pool.searches
            free.add(block)
        if end < middle.address + middle.size:
            free.add(middle.split_off(end - begin))
        following, previous = middle.next, middle.previous
        if following.state is UNMAPPED:
            pool.remove_unmapped(following)
            middle.absorb(following)
        if previous.state is UNMAPPED:
            previous.absorb(middle)
            middle = previous
        else:
            pool.add_unmapped(middle)
        pool.tally.reserve(0, begin - end)
        self.counters.device_frees += 1
        if self._history.recording:
            self._history.add_segment("segment_unmap", middle, begin, end - begin)
        if not middle.is_split:
            pool.remove_unmapped(middle)
            del self.heads[start]
            self._ranges.give_back(start, middle.size)

    def _expand(self, size: int, pool: Pool, stream: int) -> Block | None:
        """A free block for this size, grown by the pages that it lacks.

        What has been mapped before there is no more room stays, as free memory.
        """
        block = self._lowest_to_grow(size, pool, stream)
        if block.state is UNMAPPED and not self._map(block, min(size, block.size)):
            return None
        while block.size < size:
            following = block.next  # which is merged with it, once it is mapped
            if following is END or not self._map(
                following, min(size - block.size, following.size)
            ):
                return None
        return block

    def _lowest_to_grow(self, size: int, pool: Pool, stream: int) -> Block:
        """Where this size fits if pages are mapped, at the lowest address."""
        for block in pool.unmapped.get(stream, ()):
            first = block
            if block.previous.state is INACTIVE:
                first = block.previous
            if _can_grow_to(first, size):
                return first
        page = {"small": SMALL_SEGMENT_BYTES, "large": LARGE_SEGMENT_BYTES}[pool.name]
        # An eighth more than there is memory, as pages may lie in the wrong place.
        wanted_bytes = max(self.capacity_bytes + self.capacity_bytes // 8, size)
        room_bytes = -(-wanted_bytes // page) * page
        address = self._ranges.take(room_bytes)
        expandable = address, page
        aside = Block(address, room_bytes, stream, pool, self._next_age(), expandable)
        self.heads[address] = aside
        self.has_expandable = True
        pool.add_unmapped(aside)
        return aside

    def _map(self, block: Block, nbytes: int) -> bool:
        """Give memory to the front of a block that has none; it is merged and listed.

        Returns whether there is room for as many pages.
        """
        pool, address = block.pool, block.address
        _, page = block.expandable
        nbytes = -(-nbytes // page) * page
        if nbytes > self.free_bytes:
            return False
        self._driver.malloc(nbytes)
        pool.remove_unmapped(block)
        if nbytes < block.size:
            pool.add_unmapped(block.split_off(nbytes))
        pool.enter(block)
        pool.tally.reserve(0, nbytes)
        self.counters.device_allocations += 1
        if self._history.recording:
            self._history.add_segment("segment_map", block, address, nbytes)
        return True

    def _next_age(self) -> int:
        self._age += 1
        return self._age

    def _count(self, block: Block, segments: int) -> None:
        block.pool.tally.reserve(segments, segments * block.size)
        if block.size >= self.settings.max_split_size_bytes:
            self.counters.oversize["oversize_segments"].large.shift(segments)


class AddressSpace:
    """Made-up addresses: the lowest that came back in its size, or new ones."""

    def __init__(self, start: int) -> None:
        self._end = start  # nothing above was ever taken
        self._returned: defaultdict[int, list[int]] = defaultdict(list)  # by size

    def take(self, size: int) -> int:
        """The start of a range that is now in use."""
        size = -(-size // SEGMENT_STEP_BYTES) * SEGMENT_STEP_BYTES
        if self._returned[size]:
            return self._returned[size].pop(0)
        self._end += size
        return self._end - size

    def give_back(self, address: int, size: int) -> None:
        """Let a range be taken again."""
        size = -(-size // SEGMENT_STEP_BYTES) * SEGMENT_STEP_BYTES
        insort(self._returned[size], address)


def _can_grow_to(block: Block, size: int) -> bool:
    """Whether so much lies there from this block on that is free or has no memory."""
    found_bytes = 0
    each = block
    while found_bytes < size:
        if each.state not in (INACTIVE, UNMAPPED):
            return False
        found_bytes += each.size
        each = each.next
    return True


class OutOfSimulatedMemory(Exception):
    """A simulated device cannot give what was asked of it, in torch's words."""


def shortage_text(  # noqa: PLR0913 -- torch's text has all of these
    *,
    device: int,
    segment_bytes: int,  # what the driver would have had to give
    total_bytes: int,
    free_bytes: int,
    used_bytes: int,  # by this process, all in all
    allocated_bytes: int,
    reserved_bytes: int,
    allowed_bytes: int = NO_LIMIT_BYTES,  # by this process
    private_bytes: int = 0,  # unused in private pools: torch calls it allocated
) -> str:
    """What was asked of a device and what it had, as torch words it."""
    allowed = private = ""
    if allowed_bytes < NO_LIMIT_BYTES:
        allowed = f"{_size_text(allowed_bytes)} allowed; "
    if private_bytes:
        private = (
            f"with {_size_text(private_bytes)} allocated in private pools "
            "(e.g., CUDA Graphs), "
        )
    allocated_bytes += private_bytes
    return (
        f"CUDA out of memory. Tried to allocate {_size_text(segment_bytes)}. GPU "
        f"{device} has a total capacity of {_size_text(total_bytes)} of which "
        f"{_size_text(free_bytes)} is free. Including non-PyTorch memory, this process "
        f"has {_size_text(used_bytes)} memory in use. {allowed}Of the allocated memory "
        f"{_size_text(allocated_bytes)} is allocated by PyTorch, {private}and "
        f"{_size_text(reserved_bytes - allocated_bytes)} is reserved by PyTorch but "
        f"unallocated.{_ADVICE}"
    )


def _size_text(nbytes: int) -> str:
    """A size as torch writes it in this error: 1024 KiB are no MiB."""
    if nbytes <= _KIB:
        return f"{nbytes} bytes"
    for power, unit in enumerate(("KiB", "MiB"), 1):
        if nbytes <= _KIB ** (power + 1):
            return f"{nbytes / _KIB**power:.2f} {unit}"
    return f"{nbytes / _KIB**3:.2f} GiB"
