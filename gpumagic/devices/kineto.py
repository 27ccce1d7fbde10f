"""Reads the Chrome JSON that torch's profiler, Kineto, writes.

It is the one form of a trace that is the same from torch 2.4 on and for every maker
of GPUs: the raw events of older versions do not say what kind of event they are.

The names of calls are those of CUDA and HIP, of their runtimes and their drivers, and
those of Level Zero (ze) and Unified Runtime (ur), by which XPUs are driven.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from gpumagic.report.events import OperatorTime, SpanKind, Trace, TraceSpan

if TYPE_CHECKING:
    from collections.abc import Container, Hashable, Iterable, Iterator, Sequence

DEVICE_WORK = {
    "kernel": SpanKind.KERNEL,
    "gpu_memcpy": SpanKind.COPY,
    "gpu_memset": SpanKind.FILL,
}
OPERATION = "cpu_op"
MARK = "user_annotation"
BACKWARD_NODE = "autograd::engine::evaluate_function: "
# A copy of these kinds of memory holds nobody up, though it may be over before its call
# returns: short ones are.
_NEVER_WAITED_FOR = ("Pinned", "Device -> Device")
CALLS = ("_runtime", "_driver")  # cuda_runtime, cuda_driver, xpu_runtime, ...
# What the marks themselves leave behind in some versions.
OWN_TRACES = "profiler::_record_function"

_WAITS = re.compile(
    r"""Synchronize
    | ^(cuda|hip)(Host)?Free(Host|Array)?(_v\d+)?$  # not FreeAsync
    | ^cuMemFree(Host)?(_v\d+)?$
    | ^(cuda|hip)Memcpy(?!.*Async)
    | ^cuMemcpy(?!.*Async)
    | ^urEventWait
    | ^urQueueFinish
    """,
    re.VERBOSE,
)
_LAUNCHES = re.compile(r"Launch|Enqueue|Memcpy|Memset")
_COPIES = re.compile(r"Memcpy")


@dataclass(frozen=True)
class Reading(Trace):
    """What a trace holds between its two marks."""

    sees_devices: bool = (
        False  # whether one appears anywhere, also outside of the marks
    )
    # whether one appears before the first mark, at a time that can be true
    sees_earlier_work: bool = False


def read(text: str, begin: str, end: str) -> Reading:
    """Read what lies between two marks that `record_function` has made."""
    whole = json.loads(text)
    if not isinstance(whole, dict) or "traceEvents" not in whole:
        raise ValueError("there are no traceEvents")
    events = [
        event
        for event in whole["traceEvents"]
        if event.get("ph") == "X" and "dur" in event and "cat" in event
    ]
    first, last = _only_mark(events, begin), _only_mark(events, end)
    window = _Window(first["ts"] + first["dur"], last["ts"])
    work = [event for event in events if event["cat"] in DEVICE_WORK]
    calls = [event for event in events if event["cat"].endswith(CALLS)]
    operations = [
        event
        for event in events
        if event["cat"] == OPERATION and not event["name"].startswith(OWN_TRACES)
    ]
    threads = {first["tid"]: 0}  # numbered in the order in which they appear
    spans = chain(
        _device_spans(work, calls, window),
        _call_spans(calls, work, window, threads),
        _operation_spans(operations, window, threads),
    )
    return Reading(
        spans=tuple(sorted(spans, key=lambda span: (span.start_s, -span.end_s))),
        length_s=window.length_s,
        sees_devices=bool(work),
        sees_earlier_work=_sees_earlier_work(work, calls, first["ts"]),
        operators=operator_times(each for each, _ in window.within(operations)),
        # Without a base the times themselves count from 1970.
        began_unix_ns=whole.get("baseTimeNanoseconds", 0)
        + round((first["ts"] + first["dur"]) * 1000),
    )


def _sees_earlier_work(
    work: Iterable[dict[str, Any]], calls: Iterable[dict[str, Any]], until_us: float
) -> bool:
    """Work that began before anything was called bears a time of another clock."""
    since_us = min((call["ts"] for call in calls), default=-math.inf)
    return any(since_us <= each["ts"] and _end_us(each) <= until_us for each in work)


class _Window:
    """Turns the profiler's microseconds into seconds from the first mark on."""

    def __init__(self, began_us: float, ended_us: float) -> None:
        self._began_us = began_us
        self.length_s = max(ended_us - began_us, 0.0) / 1e6

    def within(
        self, events: Iterable[dict[str, Any]]
    ) -> Iterator[tuple[dict[str, Any], tuple[float, float]]]:
        """Each event that is in it, and when that began and ended, cut to it."""
        for event in events:
            start_s = (event["ts"] - self._began_us) / 1e6
            end_s = start_s + event["dur"] / 1e6
            if start_s < self.length_s and end_s > 0:
                yield event, (max(start_s, 0.0), min(end_s, self.length_s))

    def moment(self, at_us: float) -> float:
        """A moment in the window."""
        return min(max((at_us - self._began_us) / 1e6, 0.0), self.length_s)


def _only_mark(events: Iterable[dict[str, Any]], name: str) -> dict[str, Any]:
    marks = [each for each in events if each["name"] == name and each["cat"] == MARK]
    if len(marks) != 1:
        raise ValueError(f"the mark {name!r} is there {len(marks)} times")
    return marks[0]


# ------------------------------------------------------------------- devices


def _device_spans(
    work: list[dict[str, Any]],
    calls: Sequence[dict[str, Any]],
    window: _Window,
) -> Iterator[TraceSpan]:
    graphs = {_correlation(call) for call in calls if launches_a_graph(call["name"])}
    entered_us = _entered_us(work, calls, graphs)
    for event, within in window.within(work):
        args = event.get("args", {})
        launched_us = entered_us.get(args.get("correlation"))
        yield TraceSpan(
            event["name"],
            DEVICE_WORK[event["cat"]],
            *within,
            device=_number(args.get("device", event["pid"])),
            stream=_number(args.get("stream", event["tid"])),
            nbytes=_number(args.get("bytes")),
            launched_s=(
                None
                if launched_us is None
                # The call may return when the work has begun already.
                else min(window.moment(launched_us), within[0])
            ),
        )


def _entered_us(
    work: Iterable[dict[str, Any]],
    calls: Iterable[dict[str, Any]],
    graphs: Container[Hashable],
) -> dict[Any, float]:
    """When the work of each call was in its queue."""
    returns = [(_correlation(call), _end_us(call)) for call in calls]
    callers = callers_of((_correlation(event) for event in work), returns, graphs)
    return {key: returns[place][1] for key, place in callers.items()}


def callers_of(
    work: Iterable[Hashable],
    calls: Iterable[tuple[Hashable, float]],
    graphs: Container[Hashable] = (),
) -> dict[Hashable, int]:
    """By its correlation, the place of the call that put a piece of work in its queue.

    A call with several pieces of work is nobody's, unless it is known for a graph's.
    """
    entries = Counter(work)
    found: dict[Hashable, tuple[float, int]] = {}
    for place, (key, end) in enumerate(calls):
        # Where the driver's call is seen within the runtime's, it is more exact.
        if (
            key is not None
            and (entries.get(key) == 1 or key in graphs)
            and (key not in found or end < found[key][0])
        ):
            found[key] = end, place
    return {key: place for key, (_, place) in found.items()}


# ---------------------------------------------------------------------- host


def _call_spans(
    calls: Iterable[dict[str, Any]],
    work: Iterable[dict[str, Any]],
    window: _Window,
    threads: dict[Any, int],
) -> Iterator[TraceSpan]:
    copied_us = {
        _correlation(event): _end_us(event)
        for event in work
        if event["cat"] == "gpu_memcpy" and may_be_waited_for(event["name"])
    }
    for call, within in window.within(_outermost(calls)):
        done_us = copied_us.get(_correlation(call), math.inf)
        if kind := kind_of_call(call["name"], copied=done_us <= _end_us(call)):
            thread = threads.setdefault(call["tid"], len(threads))
            yield TraceSpan(call["name"], kind, *within, thread=thread)


def _operation_spans(
    operations: Iterable[dict[str, Any]], window: _Window, threads: dict[Any, int]
) -> Iterator[TraceSpan]:
    for event, within in window.within(_outermost(operations)):
        thread = threads.setdefault(event["tid"], len(threads))
        yield TraceSpan(event["name"], SpanKind.HOST, *within, thread=thread)


def operator_times(events: Iterable[dict[str, Any]]) -> tuple[OperatorTime, ...]:
    """What each operator took, the dearest by themselves first."""
    ordered = sorted(events, key=lambda each: (each["ts"], -each["dur"]))
    rows = ((each["name"], each["ts"], _end_us(each), each["tid"]) for each in ordered)
    return times_of_operators(rows, 1e6)


def times_of_operators(
    rows: Iterable[tuple[str, float, float, Any]], per_second: float
) -> tuple[OperatorTime, ...]:
    """What each operator took, the dearest by themselves first."""
    open_calls: dict[Any, list[tuple[float, str]]] = defaultdict(list)
    counts: Counter[str] = Counter()
    total: dict[str, float] = defaultdict(int)
    alone: dict[str, float] = defaultdict(int)
    for name, start, end, thread in rows:
        took = end - start
        callers = open_calls[thread]
        # The middle tells: microseconds with a fraction are rounded at both ends.
        while callers and start + took / 2 >= callers[-1][0]:
            callers.pop()
        if callers:
            caller = callers[-1][1]
            alone[caller] -= took
            counts[name] += caller != name  # else another form of the same
        else:
            counts[name] += 1
        alone[name] += took
        for _, caller in callers:
            if caller == name:
                break  # it is counted already
        else:
            total[name] += took
        callers.append((end, name))
    times = (
        OperatorTime(
            name, count, total[name] / per_second, max(alone[name], 0) / per_second
        )
        for name, count in counts.items()
    )
    return tuple(sorted(times, key=lambda each: (-each.self_s, each.name)))


def _outermost(events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Those that no other event of their thread encloses, in order of beginning."""
    ends_us: dict[Any, float] = {}
    for event in sorted(events, key=lambda each: (each["ts"], -each["dur"])):
        # The middle tells: microseconds with a fraction are rounded at both ends.
        if event["ts"] + event["dur"] / 2 >= ends_us.get(event["tid"], -math.inf):
            ends_us[event["tid"]] = _end_us(event)
            yield event


def _end_us(event: dict[str, Any]) -> float:
    end_us: float = event["ts"] + event["dur"]
    return end_us


def _correlation(event: dict[str, Any]) -> Any:
    return event.get("args", {}).get("correlation")


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) else None


def kind_of_call(name: str, *, copied: bool = False) -> SpanKind | None:
    """Whether a call waits or launches; None for one that does neither."""
    if _WAITS.search(name):
        return SpanKind.WAIT
    if not _LAUNCHES.search(name):
        return None
    return SpanKind.WAIT if copied and _COPIES.search(name) else SpanKind.LAUNCH


def may_be_waited_for(copy: str) -> bool:
    """Whether a call may last until this copy is done, by the name of the copy."""
    return not any(kind in copy for kind in _NEVER_WAITED_FOR)


def launches_a_graph(name: str) -> bool:
    """Whether a call launches all that a graph holds: all of it has its number."""
    return "GraphLaunch" in name


def gives_work(name: str) -> bool:
    """Whether a call gives a device something to do, also one that then waits."""
    return bool(_LAUNCHES.search(name))
