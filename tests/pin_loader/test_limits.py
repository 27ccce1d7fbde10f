"""What a loader takes of the machine, and how much of that is too much."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.pin_loader.limits import Demand, guard
from gpumagic.pin_loader.records import (
    Anatomy,
    Leaf,
    LimitKind,
    Pinned,
    Severity,
)

MIB = 1 << 20
LEAF = Leaf("batch", "Tensor", nbytes=3 * MIB, pinned=Pinned.PAGEABLE)
BATCH = Anatomy("Tensor", (LEAF,), locked_bytes=4 * MIB)
PLENTY = {LimitKind.AVAILABLE: 1 << 60, LimitKind.SHM: 1 << 60}


def test_it_counts_all_batches_that_can_be_under_way():
    """Those of the workers, the one in hand, and the one copied ahead."""
    wanted = Demand(BATCH, workers=3, prefetch_factor=2)
    batches = 3 * 2 + 1 + 1

    assert wanted.needs(LimitKind.SHM) == batches * 3 * MIB
    assert wanted.needs(LimitKind.AVAILABLE) == batches * (3 + 4) * MIB
    assert Demand(BATCH, workers=0, pinned=False).needs(LimitKind.AVAILABLE) == 0


@pytest.mark.parametrize(
    ("share", "force", "severity"),
    [
        (0.19, False, Severity.FINE),
        (0.21, False, Severity.WARN),
        (0.49, False, Severity.WARN),
        (0.51, False, Severity.REFUSE),
        (0.51, True, Severity.WARN),
    ],
)
@pytest.mark.parametrize("kind", list(LimitKind))
def test_it_warns_over_a_fifth_and_refuses_over_a_half(kind, share, force, severity):
    """Of each kind of memory alike; the user can insist."""
    wanted = Demand(BATCH, 2)
    there = round(wanted.needs(kind) / share)
    room = {**PLENTY, kind: there}

    found = guard(wanted, room, force=force)

    (limit,) = [each for each in found.limits if each.kind is kind]
    assert limit.severity is severity
    assert bool(limit.hint) is (severity is not Severity.FINE)
    assert (found.refusing is limit) is (severity is Severity.REFUSE)


@given(st.integers(1, 32), st.integers(1, 8), st.integers(20, 40), st.booleans())
@settings(max_examples=200, deadline=None)
def test_an_offer_always_fits(workers, prefetch, room, pinned):
    """Whatever is offered would not be refused, and the next larger one would be."""
    wanted = Demand(BATCH, workers, prefetch, pinned)
    there = {LimitKind.AVAILABLE: 1 << room}
    refusing = guard(wanted, there).refusing
    if refusing is None or not refusing.hint.startswith("type"):
        return

    words = refusing.hint.replace(",", "").split()
    offered = int(words[words.index("--workers") + 1])
    smaller = Demand(BATCH, offered, prefetch, pinned)

    assert guard(smaller, there).refusing is None
    assert smaller.needs(LimitKind.SHM) < wanted.needs(LimitKind.SHM)
