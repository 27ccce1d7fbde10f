"""How much copying was hidden: from traces by hand, and estimated."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.devices import kineto
from gpumagic.pin_loader.bound import Costs, Way, step_s
from gpumagic.pin_loader.overlap import copying_of, estimated, is_pageable, is_to_device
from gpumagic.report.events import SpanKind, Trace, TraceSpan

PINNED = "Memcpy HtoD (Pinned -> Device)"
PAGEABLE = "Memcpy HtoD (Pageable -> Device)"


def copy(start_s, end_s, *, name=PINNED, device=0, nbytes=100):
    """A copy in a trace."""
    return TraceSpan(name, SpanKind.COPY, start_s, end_s, device, 7, nbytes=nbytes)


def kernel(start_s, end_s, *, device=0):
    """A kernel in a trace."""
    return TraceSpan("gemm", SpanKind.KERNEL, start_s, end_s, device, 0)


def seen(*spans, length_s=10.0, device=0):
    """What a trace of these spans says."""
    return copying_of(Trace(spans, length_s), device)


# ---------------------------------------------------------------- from a trace


def test_only_what_runs_beside_a_kernel_is_hidden():
    """Of four seconds of copying three lie beside kernels, two of them at once."""
    found = seen(copy(0, 2), copy(5, 7), kernel(1, 2), kernel(5, 6.5), kernel(6, 8))

    assert found.copying_s == pytest.approx(4)
    assert found.hidden_s == pytest.approx(3)
    assert found.overlap == pytest.approx(0.75)
    assert found.copies == 2


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

    assert (found.copies, found.copying_s, found.overlap) == (0, 0, None)
    assert found.pageable_share is None


def test_the_pageable_share_goes_by_bytes():
    """One large pageable copy outweighs three small pinned ones."""
    found = seen(copy(0, 1, name=PAGEABLE, nbytes=700), *[copy(1, 2, nbytes=100)] * 3)

    assert found.pageable_share == pytest.approx(0.7)
    assert found.nbytes == 1000


def test_an_unknown_size_is_not_nothing():
    """A copy whose bytes are not known leaves sum and share unknown."""
    found = seen(copy(0, 1, nbytes=None), copy(1, 2, name=PAGEABLE))

    assert (found.nbytes, found.pageable_share) == (None, None)


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

    assert is_to_device(span) is to_device
    assert is_pageable(span) is pageable


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
    found = copying_of(Trace(read.spans, read.length_s), 0)

    assert found.overlap == pytest.approx(0.5)
    assert (found.nbytes, found.pageable_share) == (4096, 1.0)


# ------------------------------------------------------------------- estimated

times = st.floats(1e-4, 1.0)


@given(times, times, times, st.integers(0, 4))
@settings(max_examples=100, deadline=None)
def test_a_blocking_loop_is_estimated_to_hide_nothing(
    load_s, copy_s, compute_s, workers
):
    """A copy that blocks on the stream of compute overlaps nothing by construction."""
    costs = Costs(load_s=load_s, blocking_s=copy_s, step_s=compute_s, workers=workers)
    whole_s = step_s(costs, Way.BLOCKING)
    # With workers the loop waits for what is left of the load after copy and compute.
    wait_s = load_s if workers == 0 else max(load_s - copy_s, 0.0)

    share = estimated(wait_s, copy_s, compute_s, whole_s)

    assert share == pytest.approx(0.0, abs=1e-9)


@given(times, times, times)
@settings(max_examples=100, deadline=None)
def test_copying_ahead_is_estimated_to_hide_the_shorter_one(load_s, copy_s, compute_s):
    """Copy and compute on streams of their own overlap as far as that is possible."""
    costs = Costs(load_s=load_s, link_s=copy_s, step_s=compute_s, workers=2)
    whole_s = step_s(costs, Way.AHEAD)
    wait_s = load_s if load_s >= max(copy_s, compute_s) else 0.0

    share = estimated(wait_s, copy_s, compute_s, whole_s)

    assert share == pytest.approx(1.0, abs=1e-9)


def test_the_estimate_stays_a_share():
    """Noise does not lead below nothing or above all; without a copy there is none."""
    assert estimated(0.0, 1.0, 1.0, 5.0) == 0.0
    assert estimated(9.0, 1.0, 1.0, 1.0) == 1.0
    assert estimated(0.0, 0.0, 1.0, 1.0) is None
