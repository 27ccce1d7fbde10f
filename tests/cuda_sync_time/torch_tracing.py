"""Traces of the simulated machine, which are exact: every nanosecond is known."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from gpumagic.devices.opening import open_runtime  # noqa: E402
from gpumagic.report.events import DEVICE_KINDS, SpanKind  # noqa: E402
from gpumagic.simulator.scheduler import FULL_SHARE, Engine  # noqa: E402
from tests.devices.traces import of_kind, traced  # noqa: E402


@pytest.fixture
def runtime(box):
    """The machine in use and idle: all that is paid once has been paid."""
    matrix = torch.ones(64, 64, device="sim")
    (matrix @ matrix).exp()
    opened = open_runtime("sim")
    opened.synchronize()
    assert box.is_on
    return opened


@pytest.fixture
def launch(box, runtime):
    """Launches work of a known length, by the engine's own word."""
    assert runtime.started()
    gpu = box.machine.gpus[0]

    def launch(us, *, stream=None, engine=Engine.COMPUTE, name="kernel"):
        queue = (stream._simulated if stream else gpu.default_stream).queue
        return box.machine.scheduler.launch(
            queue, engine, us * 1000, FULL_SHARE // 2, host_ns=4000, name=name
        )

    return launch


def test_each_kernel_says_what_bounds_it(runtime, tmp_path):
    """A trace has the model's word for each kernel, and a file of it as well."""
    tall = torch.ones(4096, 64, device="sim")
    runtime.synchronize()
    taken = traced(runtime, lambda: (tall.t() @ tall, tall[:1] + 1, tall.cpu()))
    taken.save(tmp_path / "trace.json")

    kernels = of_kind(taken.trace(), SpanKind.KERNEL)
    (copy,) = of_kind(taken.trace(), SpanKind.COPY)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    written = [
        each["args"]["bound"] for each in events if "bound" in each.get("args", {})
    ]

    assert kernels[0].bound.startswith("too few tiles: ")
    assert kernels[0].bound.endswith(" for 132 multiprocessors")
    assert kernels[1].bound == "launch"
    assert copy.bound is None
    assert written == [each.bound for each in kernels]


def test_times_are_those_of_the_engines(box, runtime):
    """Each span is a work of `box.record()`, to the nanosecond and in its order."""
    matrix = torch.ones(64, 64, device="sim")
    runtime.synchronize()
    works = box.record()
    began_ns = []

    def code():
        began_ns.append(runtime.now_ns())
        (matrix @ matrix).cos()

    trace = traced(runtime, code).trace()

    expected = [
        (work.name, work.start_ns - began_ns[0], work.end_ns - began_ns[0])
        for work in works
    ]
    seen = [
        (span.name, round(span.start_s * 1e9), round(span.end_s * 1e9))
        for span in of_kind(trace, *DEVICE_KINDS)
    ]
    assert len(seen) == 2
    assert seen == expected


def test_the_host_launches_waits_and_works(box, runtime):
    """Launches end where work is submitted; `pass_time` is neither launch nor wait."""
    small = torch.ones(64, 64, device="sim")
    runtime.synchronize()

    def code():
        small.exp()
        box.pass_time(0.5)
        small.sum().item()

    trace = traced(runtime, code).trace()

    launches, waits = of_kind(trace, SpanKind.LAUNCH), of_kind(trace, SpanKind.WAIT)
    work = of_kind(trace, *DEVICE_KINDS)
    assert {each.launched_s for each in work} == {each.end_s for each in launches}
    assert [each.name for each in waits] == [".item()", "torch.sim.synchronize()"]
    assert all(each.thread == 0 for each in launches + waits)
    assert sum(each.end_s - each.start_s for each in launches + waits) < 0.1
    assert trace.length_s > 0.5


def test_the_saved_file_is_whole_and_labelled(runtime, box, tmp_path):
    """Each span is an event with lane and microseconds, and lanes have names."""
    small = torch.ones(64, 64, device="sim")
    runtime.synchronize()
    path = tmp_path / "run.json"

    taken = traced(runtime, lambda: small.exp().sum().item())
    taken.save(path)

    trace = taken.trace()
    written = json.loads(path.read_text(encoding="utf-8"))
    events = [event for event in written["traceEvents"] if event["ph"] == "X"]
    named = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in written["traceEvents"]
        if event["name"] == "thread_name"
    }
    assert len(events) == len(trace.spans)
    for event, span in zip(events, trace.spans, strict=True):
        assert event["name"] == span.name
        assert event["cat"] == span.kind.value
        assert event["ts"] == pytest.approx(span.start_s * 1e6)
        assert event["dur"] == pytest.approx((span.end_s - span.start_s) * 1e6)
        assert (event["pid"], event["tid"]) in named
    device = {event["pid"] for event in events if event["cat"] == "kernel"}
    assert device == {0}
    assert all(box.label in name for name in named.values())
    assert box.label.startswith("simulated")
