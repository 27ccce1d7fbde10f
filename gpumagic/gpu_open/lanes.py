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
    from collections.abc import Iterable, Iterator, Sequence

    from gpumagic.gpu_open.host import Phases, Threads, Timeline
    from gpumagic.gpu_open.trace_events import TraceEvents, Work
    from gpumagic.report.events import PieceRow

_MOST_LANES = 12
_MOST_SPANS = 240
_LONGEST_LABEL = 100  # templates have names of thousands
_CALLS = {SpanKind.LAUNCH: "launch", SpanKind.WAIT: "host waits"}

_Row: TypeAlias = "PieceRow[str, int]"


def lanes_of(
    events: TraceEvents, threads: Threads, phases: Phases, zero_ns: int
) -> tuple[LaneTrace, ...]:
    """The lanes of a trace: the host's, then the streams by their busy time."""
    hosts = {"host": events.main_thread, "backward thread": phases.backward_thread}
    waited = _waited_for(events)
    rows = {
        name: list(_host(threads, thread, waited[thread]))
        for name, thread in hosts.items()
        if thread is not None
    }
    lanes = [_lane(name, its, zero_ns) for name, its in rows.items() if its]
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


def _host(threads: Threads, thread: Any, waited: Iterable[int]) -> Iterator[_Row]:
    """What a thread worked at, and where it launched and waited meanwhile."""
    calls = threads.calls.get(thread, [])
    copied = {place_at(calls, moment) for moment in waited}
    kind_of = cache(kind_of_call)
    kinds: Timeline[tuple[str, str]] = []
    for place, (start, end, name) in enumerate(calls):
        kind = kind_of(name, copied=place in copied)
        if kind is not None:
            kinds.append((start, end, (name, _CALLS[kind])))
    for start, end, outer, call in overlaid(threads.worked(thread), kinds):
        name, kind_of_it = call or (outer, "host code")
        yield name, kind_of_it, start, end


def _waited_for(events: TraceEvents) -> dict[Any, list[int]]:
    """When calls began, by thread, that had their copy done when they returned."""
    waited: dict[Any, list[int]] = defaultdict(list)
    for work in events.work:
        if work[1] is SpanKind.COPY and work.call is not None:
            call = events.calls[work.call]
            if work.end_ns <= call.end_ns and may_be_waited_for(work.name):
                waited[call.thread].append(call.start_ns)
    return waited
