"""What the events of a trace add up to, held against counting every nanosecond."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumagic.gpu_open.rank_trace import rank_of
from gpumagic.gpu_open.trace_file import Work
from tests.gpu_open.rows import COPY, FILL, KERNEL, MAIN, host, kernel, ns, trace

# --------------------------------------------------------------------------- sums

KINDS = st.sampled_from(((KERNEL, False), (KERNEL, True), (COPY, False), (FILL, False)))
PIECES = st.tuples(
    KINDS,
    st.integers(0, 60),  # beginning
    st.integers(0, 9),  # length
    st.sampled_from((0, 0, 1, None)),  # device
    st.sampled_from((7, 7, 20, None)),  # stream
    st.integers(0, 9),  # call; beyond the calls there is none
)
CALLS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=8)


def work_of(pieces, calls):
    """Pieces of work as a trace has them, with those calls that there are."""
    return [
        Work("w", *kind, at, at + took, *place, next(iter(calls[call:]), None))
        for kind, at, took, *place, call in pieces
    ]


def cells(work):
    """The nanoseconds in which at least one of them ran."""
    return {at for each in work for at in range(each.start_ns, each.end_ns)}


@given(st.lists(PIECES, min_size=1, max_size=12))
def test_each_moment_counts_once_in_each_sum(pieces):
    """Busy, compute, communication, both at once, copy and idle are unions."""
    work = work_of(pieces, [])
    computing = cells(w for w in work if w.kind is KERNEL and not w.communicates)
    communicating = cells(w for w in work if w.communicates)

    rank = rank_of(trace(work))

    length = max(w.end_ns for w in work) - min(w.start_ns for w in work)
    assert ns(rank.length_s) == length
    assert ns(rank.busy_s) == len(cells(work))
    assert ns(rank.compute_s) == len(computing)
    assert ns(rank.communication_s) == len(communicating)
    assert ns(rank.hidden_communication_s) == len(computing & communicating)
    assert ns(rank.copy_s) == len(cells(w for w in work if w.kind in {COPY, FILL}))
    assert ns(rank.idle_s) == length - len(cells(work))
    assert sum(each.count for each in rank.kernels) == sum(
        w.kind is KERNEL for w in work
    )
    began = min(w.start_ns for w in work)
    hidden = [cells([w]) & computing for w in trace(work).work if w.communicates]
    assert [ns(each.hidden_s) for each in rank.collectives] == list(map(len, hidden))
    assert hidden == [
        {at for span in each.hidden for at in range(*(began + ns(s) for s in span))}
        for each in rank.collectives
    ]


def why_idle(work):
    """For each nanosecond without work, by the words of the record."""
    found = dict.fromkeys(("late", "other", "unknown"), 0)
    for at in range(min(w.start_ns for w in work), max(w.end_ns for w in work)):
        if at in cells(work):
            continue
        before = [w for w in work if w.start_ns <= at]
        began = max(w.end_ns for w in before)
        coming = next(w for w in work if w.start_ns > at)
        ended = [w for w in before if w.end_ns == began]
        its = coming.device, coming.stream
        elsewhere = all((w.device, w.stream) != its for w in ended)
        if coming.call and at < min(coming.call.end_ns, coming.start_ns):
            found["late"] += 1
        else:
            found["other" if coming.call and elsewhere else "unknown"] += 1
    return found


@given(st.lists(PIECES, min_size=1, max_size=8), CALLS)
def test_idle_is_split_as_the_record_says(pieces, times):
    """Late until the launch, else another stream, else unknown; all add up to idle."""
    calls = [
        host("cudaLaunchKernel", at, at + took, MAIN + place % 2)
        for place, (at, took) in enumerate(times)
    ]
    events = trace(work_of(pieces, calls), calls)

    rank = rank_of(events)

    assert {
        "late": ns(rank.idle.host_late_s),
        "other": ns(rank.idle.other_stream_s),
        "unknown": ns(rank.idle.unknown_s),
    } == why_idle(events.work)
    parts = rank.idle.host_late_s, rank.idle.other_stream_s, rank.idle.unknown_s
    assert sum(map(ns, parts)) == ns(rank.idle_s)


def test_short_gaps_between_kernels_of_one_queue_are_told_apart():
    """From one kernel to the next takes up to 10 us; what takes longer has a reason."""
    calls = [host("cudaGraphLaunch", 0, 1)]
    starts_us = 5, 20, 41
    work = [kernel(at * 1000, at * 1000 + 10_000, call=calls[0]) for at in starts_us]

    idle = rank_of(trace(work, calls)).idle

    assert (ns(idle.unknown_s), ns(idle.between_s)) == (16_000, 5_000)


def test_marks_tell_what_the_host_was_in_but_not_those_around_all():
    """A step, or a mark about nearly all, says nothing of a moment."""
    marks = [
        host("ProfilerStep#3", 0, 120),
        host("enumerate(DataLoader)#_Iter.__next__", 15, 35),
        host("## whole run ##", 0, 111),
    ]
    calls = [host("cudaLaunchKernel", 85, 90)]
    work = [kernel(0, 10), kernel(100, 110, call=calls[0])]

    told = rank_of(trace(work, calls, marks=marks)).idle.host_was_in

    assert [(name, ns(s)) for name, s in told] == [
        ("", 55),
        ("enumerate(DataLoader)#_Iter.__next__", 20),
        ("cudaLaunchKernel", 5),
    ]


@st.composite
def within_each_other(draw, name):
    """Events of one thread, each within another or beside it."""
    events, opened, at = [], [], 0
    for pause, opens in draw(st.lists(st.tuples(st.integers(1, 6), st.booleans()))):
        at += pause
        if opens:
            opened.append(at)
        elif opened:
            events.append(host(f"{name}{len(events)}(1): f", opened.pop(), at))
    return events


def covering(events, at):
    """Those that a nanosecond is in, the outermost first."""
    its = [each for each in events if each.start_ns <= at < each.end_ns]
    return sorted(its, key=lambda each: each.end_ns - each.start_ns, reverse=True)


@given(
    within_each_other("aten::a"),
    within_each_other("cuda"),
    within_each_other("file.py"),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 20)), max_size=6),
)
def test_what_the_host_was_in_adds_up(operators, calls, python, gaps):
    """Each late nanosecond counts for the outermost operator, the call or the frame."""
    calls, work, at, expected = [*calls], [kernel(0, 1)], 1, Counter()
    for length, pause in gaps:
        calls.append(host("cudaEventQuery", at + pause, at + pause))
        work.append(kernel(at + pause, at + pause + length))
        for moment in range(at, at + pause):
            inside = (
                [each.name for each in covering(operators, moment)]
                or [each.name for each in covering(calls, moment)]
                or [each.name for each in covering(python, moment)][::-1]
            )
            expected[inside[0] if inside else ""] += 1
        at += pause + length
    calls.sort(key=lambda each: (each.start_ns, -each.end_ns))
    launches = [each for each in calls if each.name == "cudaEventQuery"]
    late = [w._replace(call=c) for w, c in zip(work[1:], launches, strict=True)]

    rank = rank_of(trace([work[0], *late], calls, operators, python=python))

    told = [(name, ns(s)) for name, s in rank.idle.host_was_in]
    assert ns(rank.idle.host_late_s) == expected.total()
    assert [took for _, took in told] == sorted(expected.values(), reverse=True)[:8]
    assert all(expected[name] == took for name, took in told)


# -------------------------------------------------------------------------- lanes


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 400), st.booleans()),
        min_size=1,
        max_size=40,
    ),
    st.integers(1, 30),
)
def test_a_lane_of_a_stream_is_as_busy_as_it_was(pieces, times):
    """However many spans were put together, none overlap and none are lost."""
    work, at = [], 0
    for pause, length, copies in pieces * times:
        at += pause
        # A little of the next is within this one, as rounded times are.
        kind = COPY if copies else KERNEL
        work.append(Work(f"w{at % 3}", kind, False, at, at + length + 1, 0, 7))
        at += length

    rank = rank_of(trace(work))

    ((name, spans),) = rank.lanes
    assert name == "stream 7"
    assert ns(rank.busy_s) == len(cells(work))
    drawn = sum(span.end_s - span.start_s for span in spans)
    assert drawn == pytest.approx(rank.busy_s, abs=1e-10)
    assert all(one.end_s <= two.start_s + 1e-12 for one, two in pairwise(spans))
    assert len(spans) <= 3 * 240


def test_the_host_is_drawn_with_what_it_launches_and_waits_for():
    """Host code is what lies between the calls that launch or wait."""
    calls = [
        host("cudaLaunchKernelExC", 10, 20),
        host("cudaEventRecord", 22, 24),
        host("cudaMemcpyAsync", 30, 75),
        host("cudaMemcpyAsync", 78, 90),
        host("cudaDeviceSynchronize", 95, 99),
    ]
    work = [
        kernel(40, 50, call=calls[0]),
        Work("Memcpy DtoH (Device -> Pageable)", COPY, False, 60, 70, 0, 7, calls[2]),
        Work("Memcpy HtoD (Pinned -> Device)", COPY, False, 80, 81, 0, 7, calls[3]),
    ]
    operators = [host("aten::mm", 5, 25), host("aten::copy_", 28, 92)]

    rank = rank_of(trace(work, calls, operators))

    (host_name, spans), (stream_name, _) = rank.lanes
    assert [(ns(e.start_s) + 40, ns(e.end_s) + 40, e.kind) for e in spans] == [
        (5, 10, "host code"),
        (10, 20, "launch"),
        (20, 25, "host code"),
        (28, 30, "host code"),
        (30, 75, "host waits"),
        (75, 78, "host code"),
        (78, 90, "launch"),
        (90, 92, "host code"),
        (95, 99, "host waits"),
    ]
    assert (host_name, stream_name) == ("host", "stream 7")
