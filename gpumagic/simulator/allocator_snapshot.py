"""Counts and shows what an allocator holds and did, as torch does."""

from __future__ import annotations

import copy
import ctypes
import weakref
from collections import deque
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeAlias

from gpumagic.simulator.allocator_blocks import (
    ALLOCATED,
    END,
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
    Gather: TypeAlias = "Callable[[str, Block | None], Calls]"

_TAKES = ("alloc", "segment_alloc", "segment_map")
_ENDS = ("free_completed", "segment_free", "segment_unmap")
# What is active is what is allocated, until a block is held for another stream.
_ALIKE = {"active": "allocation", "active_bytes": "allocated_bytes"}
_FAMILIES = (
    "allocation",
    "allocated_bytes",
    "requested_bytes",
    "inactive_split",
    "inactive_split_bytes",
    "segment",
    "reserved_bytes",
)  # in the order in which a `Tally` takes them


def _nothing_known(*_: object) -> Calls:
    return list


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
        self._most = 0  # how many of the latest actions are kept
        self._gather: Gather = _nothing_known
        self._entries: deque[tuple[dict[str, Any], Calls]] = deque(maxlen=0)
        self._now_us = now_us

    def switch(
        self, most: int, gather: Gather = _nothing_known, *, clear: bool = False
    ) -> None:
        """Keep so many of the latest actions from now on; with none of them, forget.

        Each with the calls that led to it, of a block if it is about one.
        """
        self._most, self._gather = most, gather
        self.recording = bool(most or self.observers)
        if clear or not most:
            self._entries.clear()
        self._entries = deque(self._entries, maxlen=most)
        if not most:
            self.blocks.clear()
            self.segments.clear()

    def observe(self, observer: Callable[[str, Block], object]) -> None:
        """Tell somebody of each action on a block; be quick, never fail."""
        self.observers = (*self.observers, observer)
        self.recording = True

    def ignore(self, observer: Callable[[str, Block], object]) -> None:
        """Tell them no more."""
        self.observers = tuple(each for each in self.observers if each != observer)
        self.recording = bool(self._most or self.observers)

    def entries(self) -> list[dict[str, Any]]:
        """The actions as one list of torch's `device_traces`."""
        return [{**entry, "frames": calls()} for entry, calls in self._entries]

    # ---------------------------------------------------------------- what happens

    def add_block(self, action: str, block: Block) -> None:
        """Note an action on a block."""
        for observer in self.observers:
            observer(action, block)
        self._add(action, block, self.blocks, block.address, block.requested, block)

    def add_segment(self, action: str, block: Block, address: int, nbytes: int) -> None:
        """Note that memory is taken from the driver, or given back, of a block."""
        self._add(action, block, self.segments, address, nbytes, None)

    def add_oom(self, free_bytes: int, size: int, stream: int, pool: PoolId) -> None:
        """Note a request that could not be met."""
        if self._most:
            calls = self._gather("oom", None)
            self._enter("oom", size, calls, stream, pool, device_free=free_bytes)

    def add_snapshot(self, active_bytes: int) -> None:
        """Note that somebody has looked."""
        self._enter("snapshot", active_bytes, list, addr=0)

    def _add(  # noqa: PLR0913, PLR0917 -- an entry has all of these
        self,
        action: str,
        block: Block,
        known: dict[int, Calls],
        address: int,
        size: int,
        about: Block | None,
    ) -> None:
        if not self._most:
            return
        calls = self._gather(action, about)
        if action in _TAKES:
            known[address] = calls
        elif action in _ENDS:
            known.pop(address, None)
        pool = block.pool.identity
        self._enter(action, size, calls, block.stream, pool, addr=address)

    def _enter(
        self,
        action: str,
        size: int,
        calls: Calls,
        stream: int = 0,
        pool: PoolId = SHARED,
        **what: int,
    ) -> None:
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
        for unmapped, blocks in groupby(
            blocks_from(head), lambda each: each.state is UNMAPPED
        )
        if not unmapped
    ]


def blocks_from(head: Block) -> Iterator[Block]:
    """The blocks of a segment in order of address."""
    block = head
    while block is not END:
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
        "is_expandable": bool(head.expandable),
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


# ------------------------------------------------------ torch.cuda.memory_stats


class Count:
    """A figure of one pool: where it is, where it was highest, how it got here.

    `freed` is the sum of its falls. The sum of its rises follows from it, which
    spares the busy path a step: `carried` is the figure at the latest reset.
    """

    __slots__ = ("carried", "current", "freed", "peak", "total", "twin")

    def __init__(self, total: Total) -> None:
        self.current = self.peak = self.freed = self.carried = 0
        self.total = total
        self.twin = self  # the same figure of the other pool, once there is one

    @property
    def allocated(self) -> int:
        """The sum of its rises since the latest reset."""
        return self.freed + self.current - self.carried

    def shift(self, amount: int) -> None:
        """Go up, or down where the amount is negative."""
        self.current = now = self.current + amount
        if amount < 0:
            self.freed -= amount
        elif now > self.peak or now + self.twin.current > self.total.lately:
            self.peak = max(self.peak, now)
            self.total.lately = max(self.total.lately, now + self.twin.current)


class Mark:
    """A peak that is counted from a moment on, beside the user's own."""

    __slots__ = ("__weakref__", "peak")

    def __init__(self, now: int) -> None:
        self.peak = now


class Total:
    """A figure of both pools: the sum of two counts, with a peak of its own.

    Several peaks may be counted at once, from different moments on. Only the highest
    figure since the latest of these moments is kept up to date, which costs the busy
    path no more than one peak does; the peaks catch up when somebody asks.
    """

    __slots__ = ("_marks", "_users", "large", "lately", "small")

    def __init__(self) -> None:
        self.lately = self._users = 0
        self._marks: weakref.WeakSet[Mark] = weakref.WeakSet()
        self.small, self.large = Count(self), Count(self)
        self.small.twin, self.large.twin = self.large, self.small

    @property
    def current(self) -> int:
        """Where it is."""
        return self.small.current + self.large.current

    @property
    def peak(self) -> int:
        """The highest since the latest reset."""
        return max(self._users, self.lately)

    def mark(self) -> Mark:
        """Count a peak from now on, for as long as somebody holds the mark."""
        self._catch_up()
        made = Mark(self.current)
        self._marks.add(made)
        return made

    def peak_since(self, mark: Mark) -> int:
        """The highest since then, whoever has reset what."""
        return max(mark.peak, self.lately)

    def reset_peaks(self) -> None:
        """Forget how high it and its parts were."""
        self._catch_up()
        self._users = self.current
        for count in (self.small, self.large):
            count.peak = count.current

    def reset_accumulated(self) -> None:
        """Forget how it and its parts got here."""
        for count in (self.small, self.large):
            count.carried, count.freed = count.current, 0

    def _catch_up(self) -> None:
        """Let a new moment begin."""
        self._users = self.peak
        for mark in self._marks:
            mark.peak = self.peak_since(mark)
        self.lately = self.current


class Tally:
    """The counts of one pool, told what happens to its blocks."""

    def __init__(self, counts: Iterable[Count]) -> None:
        self._number, self._bytes, self._requested_bytes, *others = counts
        self._splits, self._split_bytes, self._segments, self._reserved_bytes = others
        # number and bytes of what is active, where that is not what is allocated
        self.active: tuple[Count, ...] = ()

    def hand_out(
        self, size: int, requested: int, splits: int, split_bytes: int
    ) -> None:
        """A block has got an owner, or is free again where the size is negative."""
        one = 1 if size > 0 else -1
        self._number.shift(one)
        self._bytes.shift(size)
        self._requested_bytes.shift(requested)
        if self.active:
            self.active[0].shift(one)
            self.active[1].shift(size)
        if splits:
            self._splits.shift(splits)
        if split_bytes:
            self._split_bytes.shift(split_bytes)

    def hold(self, size: int) -> None:
        """A block has lost its owner and waits for other streams."""
        self._number.shift(-1)
        self._bytes.shift(-size)

    def let_go(self, size: int, requested: int, splits: int, split_bytes: int) -> None:
        """A block that was held is free."""
        for count, amount in zip(self.active, (1, size), strict=True):
            count.shift(-amount)
        self._requested_bytes.shift(-requested)
        self._splits.shift(splits)
        self._split_bytes.shift(split_bytes)

    def reserve(self, segments: int, nbytes: int) -> None:
        """Segments have come from the driver, or gone where the number is negative."""
        self._segments.shift(segments)
        self._reserved_bytes.shift(nbytes)


class Counters:
    """All that one allocator counts."""

    def __init__(self) -> None:
        self.totals = {family: Total() for family in _FAMILIES}
        self.small = Tally(total.small for total in self.totals.values())
        self.large = Tally(total.large for total in self.totals.values())
        for family, other in _ALIKE.items():
            self.totals[family] = self.totals[other]
        names = "oversize_allocations", "oversize_segments"
        self.oversize = {name: Total() for name in names}
        self._zero_events()

    def tell_active_apart(self) -> None:
        """Count from now on what is active beside what is allocated."""
        if not self.small.active:
            number, nbytes = (copy.deepcopy(self.totals[each]) for each in _ALIKE)
            self.totals |= dict(zip(_ALIKE, (number, nbytes), strict=True))
            self.small.active = number.small, nbytes.small
            self.large.active = number.large, nbytes.large

    def reset_peaks(self) -> None:
        """Let every peak be what is there now."""
        for total in (*self.totals.values(), *self.oversize.values()):
            total.reset_peaks()

    def reset_accumulated(self) -> None:
        """Let every sum and every number of events begin anew."""
        for total in (*self.totals.values(), *self.oversize.values()):
            total.reset_accumulated()
        self._zero_events()

    def memory_stats(self, max_split_size_bytes: int) -> dict[str, int]:
        """All figures under torch's flat keys, in alphabetical order."""
        figures = {
            # no limit becomes -1, as in torch
            "max_split_size": ctypes.c_int64(max_split_size_bytes).value,
            "num_alloc_retries": self.retries,
            "num_device_alloc": self.device_allocations,
            "num_device_free": self.device_frees,
            "num_oom_rejections": 0,  # only of a policy that is off and not modelled
            "num_ooms": self.out_of_memories,
            "num_sync_all_streams": self.synchronisations,
        }
        for family, total in self.totals.items():
            figures |= _figures(f"{family}.all", total.peak, total.small, total.large)
            figures |= _figures(f"{family}.small_pool", total.small.peak, total.small)
            figures |= _figures(f"{family}.large_pool", total.large.peak, total.large)
        for name, total in self.oversize.items():
            figures |= _figures(name, total.peak, total.small, total.large)
        return dict(sorted(figures.items()))

    def _zero_events(self) -> None:
        self.retries = self.out_of_memories = self.synchronisations = 0
        self.device_allocations = self.device_frees = 0


def _figures(name: str, peak: int, *counts: Count) -> dict[str, int]:
    return {
        f"{name}.current": sum(each.current for each in counts),
        f"{name}.peak": peak,
        f"{name}.allocated": sum(each.allocated for each in counts),
        f"{name}.freed": sum(each.freed for each in counts),
    }
