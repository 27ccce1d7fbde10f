"""Each sentence about a lack of memory is said where it is true, and only there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.gpu_mem.answer_why import verdict_of
from gpumagic.gpu_mem.oom import read_oom
from gpumagic.gpu_mem.records import (
    BlockState,
    Cause,
    Counters,
    DeviceMemory,
    OomFacts,
)
from gpumagic.simulator.allocator_segments import shortage_text

MIB, GIB = 1 << 20, 1 << 30
ALLOCATED, FREE = BlockState.ALLOCATED, BlockState.FREE
EMPTY = OomFacts("CUDA out of memory")


def causes_of(*told, **others):
    """The causes alone."""
    return verdict_of(*told, **others).causes


def error(**figures):
    """An error on a device of 80 GiB, all of whose figures are in MiB."""
    known = {
        "requested": 1000,
        "total": 80_000,
        "free": 500,
        "process": 79_000,
        "allocated": 78_000,
        "reserved_unallocated": 100,
        **figures,
    }
    fields = {f"{name}_bytes": mib * MIB for name, mib in known.items()}
    return replace(EMPTY, device=0, **fields)


def memory(**figures):
    """How such a device stands, in MiB."""
    known = {"total": 80_000, "free": 500, "others": 0, **figures}
    counters = Counters(
        0,
        allocated_bytes=known.pop("allocated", 78_000) * MIB,
        active_bytes=known.pop("active", 78_000) * MIB,
        reserved_bytes=known.pop("reserved", 78_100) * MIB,
    )
    processes = known.pop("processes", 0)
    fields = {f"{name}_bytes": mib * MIB for name, mib in known.items()}
    return DeviceMemory(counters, other_processes=processes, **fields)


CASES = [
    pytest.param(
        {"process": 60_000, "allocated": 58_000},
        [Cause.OTHERS, Cause.TOO_MUCH_LIVE],
        id="without others it would have been enough",
    ),
    pytest.param(
        {"process": 5000, "allocated": 4000},
        [Cause.OTHERS],
        id="others have nearly all",
    ),
    pytest.param(
        {"free": 20_000, "allocated": 50_000, "process": 60_000},
        [],
        id="the driver had enough, and yet it failed",
    ),
]


@pytest.mark.parametrize(("figures", "causes"), CASES)
def test_causes_from_the_error_alone(figures, causes):
    """The figures of the error tell the cause without a look at the device."""
    assert causes_of(error(**figures)) == tuple(causes)


def test_leaks_that_would_be_enough():
    """Leaks are a cause where letting go of them makes room, and not else."""
    assert causes_of(error(), leaks_bytes=500 * MIB)[0] is Cause.LEAKED
    assert Cause.LEAKED not in causes_of(error(), leaks_bytes=499 * MIB)
    assert Cause.LEAKED not in causes_of(error(requested=90_000), leaks_bytes=90 * GIB)


def test_a_context_counts_for_what_never_fits():
    """What this process has outside of the allocator is never to be had."""
    asked = error(requested=79_000, allocated=0, reserved_unallocated=0, free=78_500)
    outside = memory(reserved=0, allocated=0, active=0, free=78_500)

    assert causes_of(asked, memory=outside) == (Cause.NEVER_FITS,)
    assert Cause.NEVER_FITS not in causes_of(asked)


def limited(allowed_mib, **figures):
    """The error of a process that may have only so much."""
    known = {"segment": 1000, "free": 60_000, "allocated": 19_000, "reserved": 19_500}
    known |= figures
    text = shortage_text(
        device=0,
        total_bytes=80_000 * MIB,
        allowed_bytes=allowed_mib * MIB,
        used_bytes=20_000 * MIB,
        **{f"{name}_bytes": mib * MIB for name, mib in known.items()},
    )
    return read_oom(text)


def test_a_limit_of_this_process():
    """The limit is the cause where the device itself had room."""
    capped = verdict_of(limited(19_800))
    assert (capped.causes, capped.is_capped) == ((Cause.TOO_MUCH_LIVE,), True)
    in_pieces = verdict_of(limited(20_000, allocated=10_000))
    assert (in_pieces.causes, in_pieces.is_capped) == ((Cause.FRAGMENTED,), True)
    never = limited(500, allocated=0, reserved=0)
    assert causes_of(never) == (Cause.NEVER_FITS,)
    assert not verdict_of(limited(20_000, free=200)).is_capped
    uncounted = DeviceMemory(Counters(0), total_bytes=80 * GIB, cap_bytes=40 * GIB)
    asked = replace(EMPTY, requested_bytes=MIB, free_bytes=GIB)
    assert not verdict_of(asked, memory=uncounted).is_capped


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 60), *[st.integers(0, 40) for _ in range(4)])
def test_the_sentences_agree_with_their_formulas(asked, free, unused, pools, live):
    """Fragmentation and too much alive exclude each other, and follow the sums."""
    others = 3
    total = free + unused + pools + live + others
    found = causes_of(
        error(
            requested=asked,
            total=total,
            free=free,
            reserved_unallocated=unused,
            private_pools=pools,
            allocated=live + pools,
            process=unused + pools + live,
        )
    )

    assert (Cause.NEVER_FITS in found) == (asked > total)
    if asked <= total:
        in_pieces = free * 0.99 < asked <= free + unused
        assert (Cause.FRAGMENTED in found) == in_pieces
        capacity = total - others
        too_much = live + asked > capacity
        if not pools:
            assert not (Cause.TOO_MUCH_LIVE in found and not too_much)
        if too_much and live >= total / 10:
            assert Cause.TOO_MUCH_LIVE in found
