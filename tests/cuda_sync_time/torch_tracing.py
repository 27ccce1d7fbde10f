"""Traces of the simulated machine, which are exact: every nanosecond is known."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from gpumagic.devices.opening import open_runtime  # noqa: E402
from gpumagic.report.events import DEVICE_KINDS  # noqa: E402
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
