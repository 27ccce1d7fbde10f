"""Sums over spans, and spans put together, so that hours of them stay small."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.devices import kineto
from gpumagic.report.events import (
    Piece,
    SpanKind,
    Trace,
    TracedCopies,
    TraceSpan,
    bridged,
    length,
    length_within,
    merged,
    pooled,
    traced_copies,
)

KINDS = st.sampled_from((SpanKind.KERNEL, SpanKind.COPY, SpanKind.FILL))
LENGTHS = st.tuples(KINDS, st.integers(0, 50), st.integers(1, 2000))
LANES = st.lists(LENGTHS, min_size=1, max_size=300)
MOST = 60
PINNED = "Memcpy HtoD (Pinned -> Device)"
PAGEABLE = "Memcpy HtoD (Pageable -> Device)"
TO_HOST = "Memcpy DtoH (Device -> Pinned)"


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


def test_few_spans_are_kept_as_they_are():
    """What was exact stays exact."""
    spans = lane_of([(SpanKind.KERNEL, 1, 2)] * 20)

    assert pooled(spans, MOST) == spans


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


# -------------------------------------------------------------- copies to a device


def copy(start_s, end_s, *, name=PINNED, device=0, nbytes=100):
    """A copy in a trace."""
    return TraceSpan(name, SpanKind.COPY, start_s, end_s, device, 7, nbytes=nbytes)


def kernel(start_s, end_s, *, device=0):
    """A kernel in a trace."""
    return TraceSpan("gemm", SpanKind.KERNEL, start_s, end_s, device, 0)


def seen(*spans, length_s=10.0, device=0):
    """What a trace of these spans says."""
    return traced_copies(Trace(spans, length_s), device)


def test_only_what_runs_beside_a_kernel_is_hidden():
    """Of four seconds of copying three lie beside kernels, two of them at once."""
    found = seen(copy(0, 2), copy(5, 7), kernel(1, 2), kernel(5, 6.5), kernel(6, 8))

    assert found.copying_s == pytest.approx(4)
    assert found.hidden_s == pytest.approx(3)
    assert found.overlap == pytest.approx(0.75)


def test_kernels_of_another_device_hide_nothing():
    """Each device has a link and compute units of its own."""
    found = seen(copy(0, 2), kernel(0, 2, device=1), copy(0, 9, device=1))

    assert (found.copying_s, found.hidden_s) == (2, 0)


def test_copies_back_and_within_the_device_do_not_count():
    """Only what comes from the host is the loader's business."""
    found = seen(
        copy(0, 1, name="Memcpy DtoH (Device -> Pinned)"),
        copy(1, 2, name="Memcpy DtoD (Device -> Device)"),
        copy(2, 3, name="Memcpy PtoP (Device -> Device)"),
    )

    assert (found.copying_s, found.overlap) == (0, None)
    assert found.pageable_share is None


def test_the_pageable_share_goes_by_bytes():
    """One large pageable copy outweighs three small pinned ones."""
    found = seen(copy(0, 1, name=PAGEABLE, nbytes=700), *[copy(1, 2, nbytes=100)] * 3)

    assert found.pageable_share == pytest.approx(0.7)


def test_an_unknown_size_is_not_nothing():
    """A copy whose bytes are not known leaves the share unknown."""
    found = seen(copy(0, 1, nbytes=None), copy(1, 2, name=PAGEABLE))

    assert found.pageable_share is None


@pytest.mark.parametrize(
    ("name", "to_device", "pageable"),
    [
        (PINNED, True, False),
        (PAGEABLE, True, True),
        ("Memcpy HtoD", True, None),
        ("CopyHostToDevice", True, None),
        ("Memcpy DtoH (Device -> Pageable)", False, None),
    ],
)
def test_the_names_of_copies_are_understood(name, to_device, pageable):
    """NVIDIA's names tell the memory, AMD's only the direction."""
    span = copy(0, 1, name=name)

    assert span.is_to_device is to_device
    assert span.is_pageable is pageable


def test_the_json_of_the_profiler_is_read():
    """A trace as torch writes it on a GPU has direction, memory, bytes and device."""

    def event(name, cat, ts, dur, **args):
        return {
            "ph": "X",
            "name": name,
            "cat": cat,
            "ts": ts,
            "dur": dur,
            "pid": 0,
            "tid": 1,
            "args": args,
        }

    events = [
        event("begin", "user_annotation", 0, 1),
        event(PAGEABLE, "gpu_memcpy", 10, 100, device=0, stream=7, bytes=4096),
        event("sgemm", "kernel", 60, 100, device=0, stream=7),
        event("end", "user_annotation", 300, 1),
    ]

    read = kineto.read(json.dumps({"traceEvents": events}), "begin", "end")
    found = traced_copies(Trace(read.spans, read.length_s), 0)

    assert found.overlap == pytest.approx(0.5)
    assert found.pageable_share == 1.0


def test_on_all_devices_each_moment_counts_once():
    """Copies to a device count, beside kernels of the same one; other copies do not."""
    spans = (
        kernel(0.0, 1.0, device=1),
        copy(0.0, 2.0, name=PAGEABLE),
        copy(1.0, 3.0),
        copy(4.0, 9.0, name=TO_HOST),
        kernel(2.5, 6.0),
    )

    assert traced_copies(Trace(spans, 10.0)) == TracedCopies(3.0, 0.5, 4.5, 0.5)


MOMENTS = st.floats(0, 10)
SPANS = st.builds(
    lambda name, start_s, length_s, device: (
        kernel(start_s, start_s + length_s, device=device)
        if name is None
        else copy(start_s, start_s + length_s, name=name, device=device)
    ),
    st.sampled_from([None, PAGEABLE, PINNED, TO_HOST]),
    MOMENTS,
    MOMENTS,
    st.integers(0, 1),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(SPANS, max_size=12))
def test_sums_of_a_trace_are_parts_of_each_other(spans):
    """Hidden copying is copying, and beside kernels; nothing exceeds the whole."""
    found = traced_copies(Trace(tuple(spans), 10.0))

    assert 0 <= found.hidden_s <= min(found.copying_s, found.kernel_s) + 1e-9
    assert max(found.copying_s, found.kernel_s) <= 10.0 + 1e-9
