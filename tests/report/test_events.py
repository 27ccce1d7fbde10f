"""Sums over spans, and spans put together, so that hours of them stay small."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumagic.report.events import (
    Piece,
    SpanKind,
    bridged,
    length,
    length_within,
    merged,
    pooled,
)

KINDS = st.sampled_from((SpanKind.KERNEL, SpanKind.COPY, SpanKind.FILL))
LENGTHS = st.tuples(KINDS, st.integers(0, 50), st.integers(1, 2000))
LANES = st.lists(LENGTHS, min_size=1, max_size=300)
MOST = 60


def lane_of(pieces):
    """Spans one after the other: each its kind, the pause before it, its length."""
    at, spans = 0, []
    for kind, pause, took in pieces:
        spans.append(Piece("work", kind, at + pause, at + pause + took))
        at += pause + took
    return spans


def few_of(spans):
    """What is left of them."""
    return [Piece(*each) for each in pooled(spans, MOST)]


def seconds(spans, kind):
    """How long a kind was running."""
    return sum(span.end_s - span.start_s for span in spans if span.kind is kind)


@given(LANES)
def test_a_pooled_lane_is_as_busy_as_it_was(pieces):
    """Each kind keeps its time, nothing overlaps, and nothing moves beyond the lane."""
    spans = lane_of(pieces)

    few = few_of(spans)

    for kind in SpanKind:
        assert seconds(few, kind) == pytest.approx(seconds(spans, kind))
    assert all(one.end_s <= next_one.start_s + 1e-6 for one, next_one in pairwise(few))
    assert few[0].start_s == spans[0].start_s
    assert few[-1].end_s <= spans[-1].end_s + 1e-6


@given(LANES)
def test_what_is_pooled_is_few(pieces):
    """However many there were, about as many are left as may be."""
    assert len(pooled(lane_of(pieces), MOST)) <= 2 * MOST


def test_long_spans_keep_their_place():
    """Only the short ones beside each other are put together."""
    short = [(SpanKind.KERNEL, 1, 1)] * 100
    spans = lane_of([*short, (SpanKind.COPY, 5, 1000), *short])
    (copy,) = (span for span in spans if span.kind is SpanKind.COPY)

    few = few_of(spans)

    assert copy in few
    assert len(few) < 20


INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=12)


@given(INTERVALS, st.integers(-5, 70), st.integers(0, 80))
def test_merged_intervals_are_the_moments_that_any_of_them_covers(spans, since, more):
    """They lie apart and in order; a part of them is as long as its moments are."""
    intervals = [(start, start + took) for start, took in spans]
    moments = {at for start, end in intervals for at in range(start, end)}
    window = range(since, since + more)

    apart = merged(intervals)

    assert all(one[1] < two[0] for one, two in pairwise(apart))
    assert length(apart) == len(moments)
    assert length_within(apart, since, since + more) == len(moments & {*window})


@given(st.lists(INTERVALS, max_size=4), st.integers(0, 6))
def test_the_narrowest_gaps_count_as_part(groups, most):
    """So many are left in all, and no choice of them would have made less part."""
    apart = [merged((at, at + took) for at, took in spans) for spans in groups]
    gaps = sorted(b[0] - a[1] for its in apart for a, b in pairwise(its))

    found = bridged(apart, most)

    for before, after in zip(apart, found, strict=True):
        ends = {at for span in before for at in span}
        assert {at for span in after for at in span} <= ends
        assert [*before[:1], *before[-1:]] == [] or (
            before[0][0] == after[0][0] and before[-1][1] == after[-1][1]
        )
    assert sum(max(len(its) - 1, 0) for its in found) == min(len(gaps), most)
    more = sum(map(length, found)) - sum(map(length, apart))
    assert more == sum(gaps[: max(len(gaps) - most, 0)])
