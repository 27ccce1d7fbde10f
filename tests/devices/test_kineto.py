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

CUDA_RUN = """
{
  "schemaVersion": 1,
  "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}],
  "cupti_version": 24, "cuda_runtime_version": 12060, "cuda_driver_version": 12080,
  "displayTimeUnit": "ms", "baseTimeNanoseconds": 1790857026000000000,
  "traceEvents": [
  {"ph": "M", "name": "process_name", "ts": 900.0, "pid": 4956, "tid": 0,
   "args": {"name": "python"}},
  {"ph": "X", "cat": "user_annotation", "name": "warm", "pid": 4956, "tid": 4956,
   "ts": 900.0, "dur": 5.0, "args": {"External id": 1}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 4956,
   "tid": 4956, "ts": 910.0, "dur": 60.0,
   "args": {"External id": 2, "cbid": 211, "correlation": 2}},
  {"ph": "X", "cat": "kernel", "name": "spin_kernel(long)", "pid": 0, "tid": 7,
   "ts": 975.0, "dur": 1.5,
   "args": {"External id": 2, "device": 0, "context": 1, "stream": 7,
            "correlation": 2, "grid": [1, 1, 1], "block": [1, 1, 1]}},
  {"ph": "X", "cat": "user_annotation", "name": "begin", "pid": 4956, "tid": 4956,
   "ts": 990.0, "dur": 10.0, "args": {"External id": 3}},

  {"ph": "X", "cat": "cpu_op", "name": "aten::to", "pid": 4956, "tid": 4956,
   "ts": 1005.0, "dur": 45.0, "args": {"External id": 4, "Ev Idx": 1}},
  {"ph": "X", "cat": "cpu_op", "name": "aten::_to_copy", "pid": 4956, "tid": 4956,
   "ts": 1006.0, "dur": 43.0, "args": {"External id": 5, "Ev Idx": 2}},
  {"ph": "X", "cat": "cpu_op", "name": "aten::copy_", "pid": 4956, "tid": 4956,
   "ts": 1020.0, "dur": 28.0, "args": {"External id": 6, "Ev Idx": 3}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaMemcpyAsync", "pid": 4956,
   "tid": 4956, "ts": 1025.0, "dur": 20.0,
   "args": {"External id": 6, "cbid": 41, "correlation": 6}},
  {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "pid": 0,
   "tid": 7, "ts": 1048.0, "dur": 200.0,
   "args": {"External id": 6, "device": 0, "context": 1, "stream": 7,
            "correlation": 6, "bytes": 4194304, "memory bandwidth (GB/s)": 20.9}},
  {"ph": "s", "id": 6, "pid": 4956, "tid": 4956, "ts": 1025.0, "cat": "ac2g",
   "name": "ac2g"},
  {"ph": "f", "id": 6, "pid": 0, "tid": 7, "ts": 1048.0, "cat": "ac2g",
   "name": "ac2g", "bp": "e"},

  {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 4956, "tid": 4956,
   "ts": 1050.0, "dur": 30.0, "args": {"External id": 7, "Ev Idx": 4}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaStreamIsCapturing", "pid": 4956,
   "tid": 4956, "ts": 1052.0, "dur": 0.5,
   "args": {"External id": 7, "cbid": 317, "correlation": 7}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernelExC", "pid": 4956,
   "tid": 4956, "ts": 1060.0, "dur": 10.0,
   "args": {"External id": 7, "cbid": 430, "correlation": 8}},
  {"ph": "X", "cat": "cuda_driver", "name": "cuLaunchKernelEx", "pid": 4956,
   "tid": 4956, "ts": 1062.0, "dur": 6.0,
   "args": {"External id": 7, "cbid": 652, "correlation": 8}},
  {"ph": "X", "cat": "kernel", "name": "sm90_xmma_gemm_f32f32_tn_n", "pid": 0,
   "tid": 7, "ts": 1250.0, "dur": 300.0,
   "args": {"External id": 7, "device": 0, "context": 1, "stream": 7,
            "correlation": 8, "registers per thread": 168}},
  {"ph": "X", "cat": "gpu_user_annotation", "name": "mine", "pid": 0, "tid": 7,
   "ts": 1250.0, "dur": 300.0, "args": {"External id": 70}},

  {"ph": "X", "cat": "cpu_op", "name": "autograd::engine::evaluate_function: Mul",
   "pid": 4956, "tid": 5001, "ts": 1090.0, "dur": 40.0,
   "args": {"External id": 9, "Ev Idx": 5}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 4956,
   "tid": 5001, "ts": 1100.0, "dur": 8.0,
   "args": {"External id": 9, "cbid": 211, "correlation": 9}},
  {"ph": "X", "cat": "kernel", "name": "void vectorized_elementwise_kernel<4>",
   "pid": 0, "tid": 13, "ts": 1106.0, "dur": 400.0,
   "args": {"External id": 9, "device": 0, "context": 1, "stream": 13,
            "correlation": 9}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaMemsetAsync", "pid": 4956,
   "tid": 5001, "ts": 1110.0, "dur": 5.0,
   "args": {"External id": 9, "cbid": 51, "correlation": 10}},
  {"ph": "X", "cat": "gpu_memset", "name": "Memset (Device)", "pid": 0, "tid": 13,
   "ts": 1507.0, "dur": 2.0,
   "args": {"External id": 9, "device": 0, "context": 1, "stream": 13,
            "correlation": 10, "bytes": 1024}},

  {"ph": "X", "cat": "cpu_op", "name": "aten::item", "pid": 4956, "tid": 4956,
   "ts": 1140.0, "dur": 440.0, "args": {"External id": 11, "Ev Idx": 6}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaMemcpyAsync", "pid": 4956,
   "tid": 4956, "ts": 1150.0, "dur": 420.0,
   "args": {"External id": 11, "cbid": 41, "correlation": 11}},
  {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pageable)",
   "pid": 0, "tid": 7, "ts": 1552.0, "dur": 1.5,
   "args": {"External id": 11, "device": 0, "context": 1, "stream": 7,
            "correlation": 11, "bytes": 4, "memory bandwidth (GB/s)": 0.003}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaStreamSynchronize", "pid": 4956,
   "tid": 4956, "ts": 1571.0, "dur": 4.0,
   "args": {"External id": 11, "cbid": 131, "correlation": 12}},

  {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "pid": 4956,
   "tid": 4956, "ts": 1600.0, "dur": 9.0, "args": {"cbid": 311, "correlation": 13}},
  {"ph": "X", "cat": "kernel", "name": "node", "pid": 0, "tid": 7, "ts": 1612.0,
   "dur": 3.0, "args": {"device": 0, "stream": 7, "correlation": 13}},
  {"ph": "X", "cat": "kernel", "name": "node", "pid": 0, "tid": 7, "ts": 1616.0,
   "dur": 3.0, "args": {"device": 0, "stream": 7, "correlation": 13}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "pid": 4956,
   "tid": 4956, "ts": 1620.0, "dur": 25.0, "args": {"cbid": 165, "correlation": 14}},
  {"ph": "X", "cat": "overhead", "name": "Activity Buffer Request", "pid": -1,
   "tid": 0, "ts": 1621.0, "dur": 3.0, "args": {}},
  {"ph": "X", "cat": "user_annotation", "name": "end", "pid": 4956, "tid": 4956,
   "ts": 1650.0, "dur": 6.0, "args": {"External id": 15}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "pid": 4956,
   "tid": 4956, "ts": 1660.0, "dur": 2.0, "args": {"cbid": 165, "correlation": 16}},
  {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans",
   "tid": "PyTorch Profiler", "ts": 890.0, "dur": 800.0, "args": {"Op count": 0}},
  {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "",
   "ts": 1700.0}
  ]
}
"""


@pytest.fixture(scope="module")
def reading():
    """The run above, from mark to mark."""
    return kineto.read(CUDA_RUN, "begin", "end")


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
        (
            "void vectorized_elementwise_kernel<4>",
            SpanKind.KERNEL,
            0,
            13,
            None,
            106,
            506,
        ),
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
        "void vectorized_elementwise_kernel<4>": 106,
        "Memset (Device)": 115,
        "Memcpy DtoH (Device -> Pageable)": 552,
        "node": 609,
    }


def test_devices_outside_of_the_window_are_proof_that_they_can_be_seen():
    """A kernel before the first mark is no span, but shows that tracing works."""
    whole = json.loads(CUDA_RUN)
    whole["traceEvents"] = [
        event
        for event in whole["traceEvents"]
        if event.get("cat") != "kernel" or event["name"].startswith("spin_kernel")
    ]
    without = [e for e in whole["traceEvents"] if e["ph"] == "X" and e["pid"] != 0]

    seen = kineto.read(json.dumps(whole), "begin", "end")
    blind = kineto.read(json.dumps({"traceEvents": without}), "begin", "end")

    assert seen.sees_devices
    assert not named(seen, SpanKind.KERNEL)
    assert not blind.sees_devices
    assert len(named(blind, SpanKind.HOST)) == 4


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
    "text", ["", "[]", "{}", '{"traceEvents": []}', '{"traceEvents": [{"ph": "X"}]}']
)
def test_what_is_no_trace_is_a_value_error(text):
    """Broken JSON, another shape, missing marks: one kind of error for all."""
    with pytest.raises(ValueError):  # noqa: PT011 - JSON's own words differ
        kineto.read(text, "begin", "end")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaLaunchKernel", SpanKind.LAUNCH),
        ("cuLaunchKernelEx", SpanKind.LAUNCH),
        ("hipExtModuleLaunchKernel", SpanKind.LAUNCH),
        ("cudaGraphLaunch", SpanKind.LAUNCH),
        ("urEnqueueKernelLaunch", SpanKind.LAUNCH),
        ("cudaMemcpyAsync", SpanKind.LAUNCH),
        ("cudaMemcpy", SpanKind.WAIT),
        ("hipMemcpyWithStream", SpanKind.WAIT),
        ("cudaStreamSynchronize", SpanKind.WAIT),
        ("hipDeviceSynchronize", SpanKind.WAIT),
        ("zeEventHostSynchronize", SpanKind.WAIT),
        ("cudaFree", SpanKind.WAIT),
        ("cudaFree_v3020", SpanKind.WAIT),
        ("cudaFreeAsync", None),
        ("cudaMalloc", None),
        ("cudaStreamWaitEvent", None),
    ],
)
def test_names_of_calls(name, kind):
    """Each call of the libraries launches, waits, or does neither."""
    assert kind_of_call(name) is kind


@pytest.mark.parametrize(
    ("copy", "kind"),
    [
        ("Memcpy HtoD (Pinned -> Device)", SpanKind.LAUNCH),
        ("Memcpy DtoH (Device -> Pinned)", SpanKind.LAUNCH),
        ("Memcpy DtoD (Device -> Device)", SpanKind.LAUNCH),
        ("Memcpy HtoD (Pageable -> Device)", SpanKind.WAIT),
        ("Memcpy DtoH (Device -> Pageable)", SpanKind.WAIT),
        ("CopyHostToDevice", SpanKind.WAIT),
    ],
)
def test_a_short_copy_of_pinned_memory_has_not_waited(copy, kind):
    """It may be over before its call returns; only a pageable one holds the host up."""
    events = [
        _event("user_annotation", "begin", 0, 1, tid=1, pid=1),
        _event(
            "cuda_runtime",
            "cudaMemcpyAsync",
            10,
            9,
            tid=1,
            pid=1,
            args={"correlation": 5},
        ),
        _event("gpu_memcpy", copy, 15, 2, tid=7, pid=0, args={"correlation": 5}),
        _event("user_annotation", "end", 50, 1, tid=1, pid=1),
    ]

    reading = kineto.read(json.dumps({"traceEvents": events}), "begin", "end")

    (call,) = named(reading, SpanKind.LAUNCH, SpanKind.WAIT)
    assert call.kind is kind


def _event(category, name, ts, dur, **place):
    return {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur, **place}


# Names and figures of fields as in traces of torch 1.12 to 2.x from real GPUs.
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
