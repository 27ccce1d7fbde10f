"""Reading a trace of a CUDA run: the JSON of torch's profiler, written down by hand.

The run: a copy from pinned memory and two kernels on the default stream (CUPTI calls
it 7), a kernel and a fill on a side stream (13), `.item()` (a small copy back and a
wait), a graph of two kernels, and the wait at the end. Microseconds from 1000 on.
"""

from __future__ import annotations

import json

import pytest

from gpumagic.devices import kineto
from gpumagic.devices.kineto import kind_of_call
from gpumagic.report.events import DEVICE_KINDS, SpanKind

# Category, thread or stream, when it began and how long it took in microseconds, its
# correlation, its bytes, its name.
ROWS = """
user_annotation     4956  900   5  -       -  warm
cuda_runtime        4956  910  60  2       -  cudaLaunchKernel
kernel                 7  975 1.5  2       -  spin_kernel(long)
user_annotation     4956  990  10  -       -  begin
cpu_op              4956 1005  45  -       -  aten::to
cpu_op              4956 1006  43  -       -  aten::_to_copy
cpu_op              4956 1020  28  -       -  aten::copy_
cuda_runtime        4956 1025  20  6       -  cudaMemcpyAsync
gpu_memcpy             7 1048 200  6 4194304  Memcpy HtoD (Pinned -> Device)
cpu_op              4956 1050  30  -       -  aten::mm
cuda_runtime        4956 1052 0.5  7       -  cudaStreamIsCapturing
cuda_runtime        4956 1060  10  8       -  cudaLaunchKernelExC
cuda_driver         4956 1062   6  8       -  cuLaunchKernelEx
kernel                 7 1250 300  8       -  sm90_xmma_gemm_f32f32_tn_n
gpu_user_annotation    7 1250 300  -       -  mine
cpu_op              5001 1090  40  -       -  autograd::engine::evaluate_function: Mul
cuda_runtime        5001 1100   8  9       -  cudaLaunchKernel
kernel                13 1106 400  9       -  vectorized<4>
cuda_runtime        5001 1110   5 10       -  cudaMemsetAsync
gpu_memset            13 1507   2 10    1024  Memset (Device)
cpu_op              4956 1140 440  -       -  aten::item
cuda_runtime        4956 1150 420 11       -  cudaMemcpyAsync
gpu_memcpy             7 1552 1.5 11       4  Memcpy DtoH (Device -> Pageable)
cuda_runtime        4956 1571   4 12       -  cudaStreamSynchronize
cuda_runtime        4956 1600   9 13       -  cudaGraphLaunch
kernel                 7 1612   3 13       -  node
kernel                 7 1616   3 13       -  node
cuda_runtime        4956 1620  25 14       -  cudaDeviceSynchronize
overhead               0 1621   3  -       -  Activity Buffer Request
user_annotation     4956 1650   6  -       -  end
cuda_runtime        4956 1660   2 16       -  cudaDeviceSynchronize
"""


def _written(rows):
    """The rows as the profiler writes them, between what it says of other things."""
    events = [{"ph": "M", "name": "process_name", "ts": 900.0, "args": {"name": "p"}}]
    for row in rows.strip().splitlines():
        category, lane, began, took, correlation, nbytes, name = row.split(None, 6)
        facts = {"correlation": correlation, "bytes": nbytes}
        args = {key: int(each) for key, each in facts.items() if each != "-"}
        place = {"tid": int(lane), "pid": 4956}
        if category in kineto.DEVICE_WORK:
            args |= {"device": 0, "stream": int(lane)}
            place["pid"] = 0
        events.append(
            _event(category, name, float(began), float(took), args=args, **place)
        )
    events.append({"ph": "i", "s": "g", "name": "Record Window End", "ts": 1700.0})
    return json.dumps({"traceEvents": events})


@pytest.fixture(scope="module")
def reading():
    """The run above, from mark to mark."""
    return kineto.read(_written(ROWS), "begin", "end")


def named(reading, *kinds):
    """The spans of some kinds, in order."""
    return [span for span in reading.spans if span.kind in kinds]


def times(span):
    """Microseconds from the first mark."""
    return round(span.start_s * 1e6, 6), round(span.end_s * 1e6, 6)


def test_work_of_devices_has_its_place(reading):
    """Kernels, copies and fills come with device, stream, bytes and exact times."""
    seen = [
        (span.name, span.kind, span.device, span.stream, span.nbytes, *times(span))
        for span in named(reading, *DEVICE_KINDS)
    ]

    assert seen == [
        ("Memcpy HtoD (Pinned -> Device)", SpanKind.COPY, 0, 7, 4 << 20, 48, 248),
        ("vectorized<4>", SpanKind.KERNEL, 0, 13, None, 106, 506),
        ("sm90_xmma_gemm_f32f32_tn_n", SpanKind.KERNEL, 0, 7, None, 250, 550),
        ("Memset (Device)", SpanKind.FILL, 0, 13, 1024, 507, 509),
        ("Memcpy DtoH (Device -> Pageable)", SpanKind.COPY, 0, 7, 4, 552, 553.5),
        ("node", SpanKind.KERNEL, 0, 7, None, 612, 615),
        ("node", SpanKind.KERNEL, 0, 7, None, 616, 619),
    ]
    assert all(span.thread is None for span in named(reading, *DEVICE_KINDS))


def test_calls_launch_or_wait(reading):
    """A copy that came back done has waited; a driver call within a call is one."""
    seen = [
        (span.name, span.kind, span.thread)
        for span in named(reading, SpanKind.LAUNCH, SpanKind.WAIT)
    ]

    assert seen == [
        ("cudaMemcpyAsync", SpanKind.LAUNCH, 0),
        ("cudaLaunchKernelExC", SpanKind.LAUNCH, 0),
        ("cudaLaunchKernel", SpanKind.LAUNCH, 1),
        ("cudaMemsetAsync", SpanKind.LAUNCH, 1),
        ("cudaMemcpyAsync", SpanKind.WAIT, 0),
        ("cudaStreamSynchronize", SpanKind.WAIT, 0),
        ("cudaGraphLaunch", SpanKind.LAUNCH, 0),
        ("cudaDeviceSynchronize", SpanKind.WAIT, 0),
    ]


def test_work_is_in_the_queue_from_the_end_of_its_call(reading):
    """Or from its own beginning, if that came first; a graph's with the graph."""
    launched = {
        span.name: span.launched_s and round(span.launched_s * 1e6, 6)
        for span in named(reading, *DEVICE_KINDS)
    }

    assert launched == {
        "Memcpy HtoD (Pinned -> Device)": 45,
        "sm90_xmma_gemm_f32f32_tn_n": 68,  # the driver's call within the other
        "vectorized<4>": 106,
        "Memset (Device)": 115,
        "Memcpy DtoH (Device -> Pageable)": 552,
        "node": 609,
    }


def test_neighbours_in_time_are_not_taken_for_nested():
    """An operation that begins at the very end of another is one of its own."""
    at = 4399537887828.913  # rounded to about a nanosecond, as all such figures
    operations = [
        _event("cpu_op", f"op {i}", at + i * 0.7, 0.7, pid=1, tid=1) for i in range(50)
    ]
    marks = [
        _event("user_annotation", "begin", at - 2, 1.0, pid=1, tid=1),
        _event("user_annotation", "end", at + 60, 1.0, pid=1, tid=1),
    ]
    text = json.dumps({"traceEvents": [*operations, *marks]})

    seen = kineto.read(text, "begin", "end")

    assert len(seen.spans) == 50


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaLaunchKernel", SpanKind.LAUNCH),
        ("hipExtModuleLaunchKernel", SpanKind.LAUNCH),
        ("cudaGraphLaunch", SpanKind.LAUNCH),
        ("urEnqueueKernelLaunch", SpanKind.LAUNCH),
        ("cudaMemcpyAsync", SpanKind.LAUNCH),
        ("cudaMemcpy", SpanKind.WAIT),
        ("hipMemcpyWithStream", SpanKind.WAIT),
        ("cudaStreamSynchronize", SpanKind.WAIT),
        ("zeEventHostSynchronize", SpanKind.WAIT),
        ("cudaFree", SpanKind.WAIT),
        ("cudaFree_v3020", SpanKind.WAIT),
        ("cudaFreeAsync", None),
        ("cudaStreamWaitEvent", None),
    ],
)
def test_names_of_calls(name, kind):
    """Each call of the libraries launches, waits, or does neither."""
    assert kind_of_call(name) is kind


def _event(category, name, ts, dur, **place):
    return {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur, **place}


def test_operators_have_their_own_time_apart_from_that_of_those_they_call():
    """Self times add up to all of it; what calls itself is counted once."""
    calls = [
        ("aten::linear", 0.0, 100.0),
        ("aten::addmm", 10.0, 60.0),
        ("aten::copy_", 20.0, 10.0),
        ("aten::copy_", 22.0, 5.0),
        ("aten::relu", 110.0, 20.0),
    ]
    events = [{"name": n, "ts": at, "dur": took, "tid": 1} for n, at, took in calls]

    found = {each.name: each for each in kineto.operator_times(events)}

    microseconds = {name: round(each.self_s * 1e6) for name, each in found.items()}
    assert microseconds == {
        "aten::addmm": 50,
        "aten::linear": 40,
        "aten::relu": 20,
        "aten::copy_": 10,
    }
    assert [*found] == [*microseconds]
    assert found["aten::copy_"].count == 1
    assert round(found["aten::copy_"].total_s * 1e6) == 10
