"""Whatever is asked in whatever order, a plain list of blocks answers the same."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.simulator.allocator import CachingAllocator
from gpumagic.simulator.allocator_segments import OutOfSimulatedMemory
from gpumagic.simulator.allocator_settings import NO_LIMIT_BYTES, AllocatorSettings
from tests.simulator.allocator_check import verify
from tests.simulator.naive_allocator import (
    CAPACITY,
    MIB,
    STREAMS,
    Clocks,
    NaiveAllocator,
)
from tests.simulator.naive_expandable import NaiveExpandable

STATES = {
    "active_allocated": "owned",
    "active_pending_free": "held",
    "inactive": "free",
}


def _outline(allocator):
    return [
        (
            block["address"],
            block["size"],
            STATES[block["state"]],
            block["requested_size"],
        )
        for segment in allocator.memory_snapshot()
        for block in segment["blocks"]
    ]


SIZES = st.one_of(
    st.integers(1, 5_000),
    st.integers(1, 3 * MIB),
    st.integers(1, 60).map(lambda number: number * MIB),
    st.sampled_from((MIB, MIB + 1, 10 * MIB - 512, 10 * MIB, 17 * MIB, 19 * MIB)),
)
NUMBERS = st.integers(0, 1 << 16)
STEPS = st.one_of(
    st.tuples(st.just("allocate"), SIZES, st.sampled_from(STREAMS)),
    st.tuples(st.just("allocate"), SIZES, st.just(0)),
    st.tuples(st.just("free"), NUMBERS, st.none()),
    st.tuples(st.just("free"), NUMBERS, st.none()),
    st.tuples(st.just("record"), NUMBERS, st.sampled_from(STREAMS)),
    st.tuples(st.just("catch up"), st.none(), st.sampled_from(STREAMS)),
    st.tuples(st.just("empty"), st.none(), st.none()),
    st.tuples(st.just("reset"), st.booleans(), st.none()),
)
# Mostly so large that a device is soon full.
LARGE_STEPS = st.one_of(
    STEPS,
    st.tuples(
        st.just("allocate"),
        st.integers(1, 60).map(lambda number: number * MIB),
        st.just(0),
    ),
)


class Pair:
    """Both allocators, doing the same, on streams of their own that do the same."""

    def __init__(self, max_split, naive=NaiveAllocator, *, expandable=False):
        self.clocks = Clocks(), Clocks()
        self.real = CachingAllocator(
            0,
            CAPACITY,
            driver=self.clocks[0],
            settings=AllocatorSettings(
                max_split_size_bytes=max_split, expandable_segments=expandable
            ),
        )
        arguments = () if naive is NaiveExpandable else (max_split,)
        self.naive = naive(self.clocks[1], *arguments)
        self.owned = []

    def do(self, what, value, stream):
        """Take one step with both."""
        if what == "allocate":
            self.allocate(value, stream)
        elif what == "catch up":
            for clocks in self.clocks:
                clocks.reached = dict(clocks.reached)
                clocks.reached[stream] = clocks.recorded[stream]
        elif what == "empty":
            self.real.empty_cache()
            self.naive.empty()
        elif what == "reset" and isinstance(self.naive, NaiveAllocator):
            self.naive.stats.reset(peaks=value)
            (self.real.reset_peaks if value else self.real.reset_accumulated)()
        elif self.owned and what != "reset":
            self.with_a_block(what, value % len(self.owned), stream)

    def allocate(self, nbytes, stream):
        """Both find the same block, or both are full."""
        try:
            block = self.real.allocate(nbytes, stream)
        except OutOfSimulatedMemory:
            block = None
        twin = self.naive.allocate(nbytes, stream)
        assert (block is None) == (twin is None)
        if block is not None:
            assert (block.address, block.size) == (twin["address"], twin["size"])
            self.owned.append((block, twin))

    def with_a_block(self, what, number, stream):
        """Free or lend the same block in both."""
        if what == "free":
            block, twin = self.owned.pop(number)
            self.real.free(block)
            self.naive.free(twin)
            return
        block, twin = self.owned[number]
        self.real.record_stream(block, stream)
        if stream != twin["stream"] and stream not in twin["uses"]:
            twin["uses"].append(stream)

    def compare(self):
        """Both hold the same blocks and have counted the same."""
        verify(self.real)
        assert _outline(self.real) == self.naive.outline()
        stats = self.real.memory_stats()
        for key, figure in self.naive.stats.flat().items():
            assert stats[key] == figure, key


@settings(max_examples=120, deadline=None)
@given(
    st.lists(STEPS, min_size=20, max_size=60),
    st.sampled_from((NO_LIMIT_BYTES, 20 * MIB, 45 * MIB)),
)
def test_any_sequence_ends_as_with_a_plain_list(steps, max_split):
    """Addresses, sizes, states and every figure equal those of the literal rules."""
    pair = Pair(max_split)
    for step in steps:
        pair.do(*step)
        pair.compare()


@settings(max_examples=120, deadline=None)
@given(st.lists(LARGE_STEPS, min_size=20, max_size=60))
def test_segments_that_expand_end_as_pages_and_owners_do(steps):
    """Addresses, pages and what is free equal those found anew at every step."""
    pair = Pair(NO_LIMIT_BYTES, NaiveExpandable, expandable=True)
    for step in steps:
        pair.do(*step)
        verify(pair.real)
        assert [each[:3] for each in _outline(pair.real)] == pair.naive.outline()
        assert pair.real.reserved_bytes == pair.naive.reserved()
        stats = pair.real.memory_stats()
        assert stats["segment.all.current"] == stats["inactive_split.all.current"] == 0
