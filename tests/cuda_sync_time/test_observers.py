"""What looked on: sums of a trace, and waits by the line that made them."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.cuda_sync_time.observers import (
    CallWatcher,
    Tracer,
    points_of,
    profile_of,
    with_costs,
)
from gpumagic.cuda_sync_time.records import Options
from gpumagic.devices.cpu import CpuRuntime
from gpumagic.report.events import SpanKind, SyncCall, Trace, TraceSpan
from gpumagic.report.places import CodeLine

KERNEL, COPY, FILL = SpanKind.KERNEL, SpanKind.COPY, SpanKind.FILL
LENGTH = 20


@st.composite
def device_spans(draw):
    """Whole moments, some of them before or behind the window, on a few streams."""
    start = draw(st.integers(-3, LENGTH + 3))
    end = start + draw(st.integers(0, 9))
    return TraceSpan(
        draw(st.sampled_from("abc")),
        draw(st.sampled_from([KERNEL, COPY, FILL])),
        float(start),
        float(end),
        device=draw(st.integers(0, 1)),
        stream=draw(st.sampled_from([7, 13, None])),
    )


def trace_of(*spans, length_s=float(LENGTH), **more):
    """A trace of these spans, put in order."""
    ordered = sorted(spans, key=lambda span: span.start_s)
    return Trace(tuple(ordered), length_s, **more)


def moments(spans):
    """The moments of the window in which each span runs."""
    return [
        {moment for moment in range(LENGTH) if span.start_s <= moment < span.end_s}
        for span in spans
    ]


@settings(deadline=None, max_examples=100)
@given(st.lists(device_spans(), max_size=12))
def test_times_are_those_of_counting_moments(spans):
    """Busy, overlapped, copying and hidden are what counting every moment gives."""
    by_queue = {}
    for span in spans:
        by_queue.setdefault((span.device, span.stream), []).append(span)
    busy = {queue: set().union(*moments(each)) for queue, each in by_queue.items()}
    at_once = [sum(m in each for each in busy.values()) for m in range(LENGTH)]
    copies = set().union(*moments(s for s in spans if s.kind is COPY))
    kernels = set().union(*moments(s for s in spans if s.kind is KERNEL))

    profile = profile_of(trace_of(*spans))

    assert profile.busy_s == sum(count >= 1 for count in at_once)
    assert profile.overlapped_s == sum(count >= 2 for count in at_once)
    assert profile.copying_s == len(copies)
    assert profile.hidden_copy_s == len(copies & kernels)
    assert {(s.device, s.stream): s.busy_s for s in profile.streams} == {
        queue: len(each) for queue, each in busy.items()
    }


def test_what_another_thread_waits_for_once_the_code_has_ended_is_ours():
    """It is the code's thread that stands still meanwhile; earlier ones are told."""
    since_ns = time.time_ns()
    ended_s = LENGTH / 2
    waits = [
        TraceSpan("cudaEventSynchronize", SpanKind.WAIT, start, start + 1, thread=1)
        for start in (ended_s - 2, ended_s + 2)
    ]
    tracer = Tracer(Options(profile=True))
    tracer._tracing = SimpleNamespace(
        trace=lambda: trace_of(*waits, began_unix_ns=since_ns - round(ended_s * 1e9))
    )

    tracer.code_ended()
    profile = tracer.profile()

    assert [each.thread for each in profile.spans] == [1, 0]


FIRST, SECOND = CodeLine("In [1], line 1", "a.item()"), CodeLine("In [1], line 2")
CALLS = st.lists(
    st.builds(
        SyncCall,
        st.sampled_from([".item()", "copy to the host"]),
        st.sampled_from([FIRST, SECOND, None]),
        st.none() | st.floats(0, 10),
    )
)


@settings(deadline=None, max_examples=50)
@given(calls=CALLS)
def test_nothing_is_lost(calls):
    """All calls are in the points, and costs never rise from one to the next."""
    points = points_of(calls)

    known = [each.waited_s for each in points if each.waited_s is not None]
    assert sum(each.times for each in points) == len(calls)
    assert known == sorted(known, reverse=True)
    if all(each.waited_s is not None for each in calls):
        assert sum(known) == pytest.approx(sum(each.waited_s for each in calls))


# ------------------------------------------------------------------------- the trace


def test_a_wait_of_unknown_cost_has_that_of_the_read_it_is_part_of():
    """By the moment and the line; one beside it stays unknown."""
    read = SyncCall(".item()", FIRST, 2.0, 5 * 10**9)  # from 3 s on
    calls = [
        SyncCall(".item()", line, None, ended * 10**9)
        for line, ended in ((FIRST, 4), (FIRST, 2), (SECOND, 4), (FIRST, 6))
    ]

    assert [each.waited_s for each in with_costs(calls, [read])] == [2.0] + [None] * 3


def test_a_watcher_of_calls_stays_until_all_is_idle(monkeypatch):
    """Taking it off takes a time of its own, which is not the cell's."""

    class Batches:
        def __next__(self):
            return None

    module = SimpleNamespace(_BaseDataLoaderIter=Batches)
    monkeypatch.setitem(sys.modules, "torch.utils.data.dataloader", module)
    bare, watcher = Batches.__next__, CallWatcher()
    watcher.start(CpuRuntime())

    watcher.code_ended()
    assert Batches.__next__ is not bare
    watcher.all_idle(None)
    assert Batches.__next__ is bare
