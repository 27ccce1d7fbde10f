"""Makes lanes to be drawn: of threads and streams, with few enough strokes."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from gpumagic.devices.kineto import kind_of_call, may_be_waited_for
from gpumagic.gpu_open.host import overlaid, place_at
from gpumagic.gpu_open.trace_records import LaneSpan, LaneTrace
from gpumagic.report.events import SpanKind, pooled
from gpumagic.report.units import shortened

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.gpu_open.host import Threads, Timeline
    from gpumagic.gpu_open.trace_events import TraceEvents, Work
    from gpumagic.report.events import PieceRow

_MOST_LANES = 12
_MOST_SPANS = 240
_LONGEST_LABEL = 100  # templates have names of thousands
_CALLS = {SpanKind.LAUNCH: "launch", SpanKind.WAIT: "host waits"}

_Row: TypeAlias = "PieceRow[str, int]"


def lanes_of(
    events: TraceEvents, threads: Threads, zero_ns: int
) -> tuple[LaneTrace, ...]:
    """The lanes of a trace: the host's, then the streams by their busy time."""
    rows = list(_host(threads, events))
    lanes = [_lane("host", rows, zero_ns)] if rows else []
    streams = [_lane(name, its, zero_ns) for name, its in _streams(events.work)]
    streams.sort(key=lambda lane: -lane.busy_s)
    return (*lanes, *streams[: _MOST_LANES - len(lanes)])


def _lane(name: str, rows: Sequence[_Row], zero_ns: int) -> LaneTrace:
    spans = tuple(
        LaneSpan(
            (start - zero_ns) / 1e9,
            (end - zero_ns) / 1e9,
            shortened(label, _LONGEST_LABEL),
            kind,
        )
        for label, kind, start, end in pooled(rows, _MOST_SPANS)
    )
    busy_ns = sum(end - start for _, _, start, end in rows)
    return LaneTrace(name, spans, busy_ns / 1e9)


def _streams(work: Sequence[Work]) -> Iterator[tuple[str, list[_Row]]]:
    """What each stream did, each moment once."""
    streams: dict[tuple[Any, Any], list[_Row]] = defaultdict(list)
    for name, kind, communicates, start, end, device, stream, *_ in work:
        rows = streams[device, stream]
        began = max(start, rows[-1][3]) if rows else start
        if end > began or not rows:
            what = "kernel" if kind is SpanKind.KERNEL else "copy"
            rows.append((name, "communication" if communicates else what, began, end))
    several = len({device for device, _ in streams}) > 1
    for (device, stream), rows in streams.items():
        name = "device" if stream is None else f"stream {stream}"
        yield f"device {device}, {name}" if several else name, rows


def _host(threads: Threads, events: TraceEvents) -> Iterator[_Row]:
    """What the main thread worked at, and where it launched and waited meanwhile."""
    calls = threads.calls.get(events.main_thread, [])
    copied = {place_at(calls, moment) for moment in _waited_for(events)}
    kind_of = cache(kind_of_call)
    kinds: Timeline[tuple[str, str]] = []
    for place, (start, end, name) in enumerate(calls):
        kind = kind_of(name, copied=place in copied)
        if kind is not None:
            kinds.append((start, end, (name, _CALLS[kind])))
    for start, end, outer, call in overlaid(threads.worked(events.main_thread), kinds):
        name, kind_of_it = call or (outer, "host code")
        yield name, kind_of_it, start, end


def _waited_for(events: TraceEvents) -> Iterator[int]:
    """When calls of the main thread began that returned after their copy was done."""
    for work in events.work:
        if work[1] is SpanKind.COPY and work.call is not None:
            call = events.calls[work.call]
            is_over = call.thread == events.main_thread and work.end_ns <= call.end_ns
            if is_over and may_be_waited_for(work.name):
                yield call.start_ns
