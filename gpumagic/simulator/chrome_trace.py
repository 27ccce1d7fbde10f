"""A trace as the JSON that Perfetto and Chrome open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.simulator.models import MOST_GPUS

if TYPE_CHECKING:
    from gpumagic.report.events import Trace, TraceSpan

_HOST = MOST_GPUS  # a number of a process that no device has


def as_chrome_trace(trace: Trace, label: str) -> dict[str, Any]:
    """Devices become processes, streams and threads of the host become threads.

    Args:
        trace: What was seen.

        label: What all of it is labelled with.
    """
    lanes = sorted({_lane(span) for span in trace.spans})
    return {
        "displayTimeUnit": "ns",
        "otherData": {"machine": label, "length_us": trace.length_s * 1e6},
        "traceEvents": [
            *(_named(label, *lane) for lane in lanes),
            *(
                _process(label, process)
                for process in sorted({pid for pid, _ in lanes})
            ),
            *(_event(span) for span in trace.spans),
        ],
    }


def _lane(span: TraceSpan) -> tuple[int, int]:
    if span.device is None:
        return _HOST, span.thread or 0
    return span.device, span.stream or 0


def _event(span: TraceSpan) -> dict[str, Any]:
    process, thread = _lane(span)
    known: dict[str, Any] = {}
    if span.launched_s is not None:
        known["launched_us"] = span.launched_s * 1e6
    if span.nbytes is not None:
        known["bytes"] = span.nbytes
    return {
        "ph": "X",
        "cat": span.kind.value,
        "name": span.name,
        "pid": process,
        "tid": thread,
        "ts": span.start_s * 1e6,
        "dur": (span.end_s - span.start_s) * 1e6,
        "args": known,
    }


def _process(label: str, process: int) -> dict[str, Any]:
    name = f"host of the {label}" if process == _HOST else f"{label}, GPU {process}"
    return {
        "ph": "M",
        "name": "process_name",
        "pid": process,
        "tid": 0,
        "args": {"name": name},
    }


def _named(label: str, process: int, thread: int) -> dict[str, Any]:
    word = "thread" if process == _HOST else "stream"
    return {
        "ph": "M",
        "name": "thread_name",
        "pid": process,
        "tid": thread,
        "args": {"name": f"{word} {thread} ({label})"},
    }
