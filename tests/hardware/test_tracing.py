"""The profiler on a real GPU: what it sees, what it leaves, and what it costs."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from gpumagic.cuda_sync_time import watch
from gpumagic.cuda_sync_time.observers import profile_of
from gpumagic.report.events import DEVICE_KINDS, SpanKind
from tests.devices.traces import of_kind, traced


def test_an_empty_trace_does_not_blind_the_next(runtime, spin):
    """The first one holds no work of the code; those after it see every kernel."""
    empty = traced(runtime, lambda: None).trace()
    traces = [traced(runtime, lambda: spin(5)).trace() for _ in range(3)]

    assert empty.problem is None
    assert of_kind(empty, *DEVICE_KINDS) == []
    assert [len(of_kind(each, SpanKind.KERNEL)) for each in traces] == [1, 1, 1]
    assert {each.problem for each in traces} == {None}


def test_a_long_trace_is_cut_in_the_middle_of_the_code(runtime, spin, tmp_path):
    """By an alarm in the main thread: the code goes on, and what it did is told."""
    kernels = 0

    with watch(trace_file=str(tmp_path / "run.json"), trace_s=0.5) as watched:
        until_s = time.perf_counter() + 1.5
        while time.perf_counter() < until_s:
            spin(5)
            runtime.synchronize()
            kernels += 1

    profile = watched.report.profile
    seen = of_kind(profile, SpanKind.KERNEL)
    assert profile.is_cut
    assert profile.problem is None
    assert 0.4 < profile.length_s < 1.0
    assert 0 < len(seen) < kernels
    assert watched.report.run.elapsed_s > 1.5


def test_no_kernel_is_lost_however_often_is_traced(runtime, spin):
    """CUPTI of CUDA 12.6 to 13.0 loses one more at the start of each session."""
    traces = [traced(runtime, lambda: spin(1)).trace() for _ in range(20)]

    assert [len(of_kind(each, SpanKind.KERNEL)) for each in traces] == [1] * 20
    assert {each.problem for each in traces} == {None}


def test_kernels_are_as_long_as_events_say(runtime, spin):
    """The profiler's clock and the events agree about one kernel."""
    events = []

    def code():
        events.append(runtime.record(None))
        spin(50)
        events.append(runtime.record(None))

    profile = profile_of(traced(runtime, code).trace())

    assert profile.busy_s == pytest.approx(runtime.elapsed_s(*events), rel=0.02)


def test_the_length_is_that_of_the_clock(runtime, spin):
    """From idle to idle the profiler and the host's clock differ by little."""
    stamps = []

    def code():
        stamps.append(time.time())
        spin(50)
        runtime.synchronize()
        stamps.append(time.time())

    trace = traced(runtime, code).trace()

    assert trace.length_s == pytest.approx(stamps[1] - stamps[0], rel=0.02)


def test_tracing_takes_no_memory_of_torch(runtime, torch):
    """The kernel that warms up allocates nothing, so that no counter moves."""
    before = torch.cuda.memory_stats()
    traced(runtime, lambda: None).trace()

    assert torch.cuda.memory_stats() == before


def test_what_tracing_costs(runtime, torch, record_measurement):
    """Entering, leaving and reading 5,000 kernels; written down, not judged."""
    small = torch.ones(8, device="cuda")
    figures = []
    for _ in range(3):
        stamps = [time.perf_counter()]
        with runtime.trace() as taken:
            stamps.append(time.perf_counter())
            taken.begin()
            for _ in range(5000):
                small.exp_()
            runtime.synchronize()
            taken.end()
            stamps.append(time.perf_counter())
        stamps.append(time.perf_counter())
        trace = taken.trace()
        profile = profile_of(trace)
        stamps.append(time.perf_counter())
        figures.append([after - before for before, after in pairwise(stamps)])

    record_measurement("tracing_cost", {"enter_run_leave_read_s": figures})
    assert profile.launches == 5000
