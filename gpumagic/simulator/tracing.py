"""Traces what the simulated machine does during a block, to the nanosecond.

Devices tell of their work themselves. Of the host this much is known: when it
submits work, and when it waits. What it does in between is Python's, and no
simulated time passes there but what `box.pass_time` says.
"""

from __future__ import annotations

import contextlib
import json
import sys
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumagic.errors import DeviceError
from gpumagic.report.events import Piece, SpanKind, Trace, TraceSpan, pooled
from gpumagic.simulator.engines import Engine
from gpumagic.simulator.models import MOST_GPUS
from gpumagic.simulator.scheduler import QUEUE_FULL, Scheduler

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.devices.tracing import Tracing
    from gpumagic.report.events import GroupPlace
    from gpumagic.simulator.box import Box
    from gpumagic.simulator.engines import Work

    _Lane = tuple[int, int] | None  # a device and its stream; None is the host

_MOST_KEPT = 5000
_OF_ALL_PARTS = frozenset({"AllGather", "Gather"})  # bytes of which are of all parts
_HOST = MOST_GPUS  # a number of a process that no device has


@contextlib.contextmanager
def trace(box: Box, *, most: int | None = None) -> Iterator[Tracing]:
    """Trace what host and devices do; with `most`, about so many pieces of each."""
    if not isinstance(box.machine.scheduler, Scheduler):
        raise DeviceError(
            "a graph is being captured, so that nothing runs that could be traced",
            "trace its replay",
        )
    tracing = SimulatedTracing(box, most)
    scheduler = box.machine.scheduler
    scheduler.traces.append(tracing.work)
    scheduler.wait_observers.append(tracing.waited)
    scheduler.launch_observers.append(tracing.launched)
    try:
        yield tracing
    finally:
        scheduler.launch_observers.remove(tracing.launched)
        scheduler.wait_observers.remove(tracing.waited)
        scheduler.stop_keeping(tracing.work)


class SimulatedTracing:
    """A `Tracing` of the simulated machine."""

    def __init__(self, box: Box, most: int | None) -> None:
        self._box = box
        self._most = most
        self._scheduler = box.machine.scheduler
        self.work: list[Work] = []
        self._calls: list[tuple[str, SpanKind, int, int]] = []
        self._lanes: dict[_Lane, list[Piece[SpanKind]]] = {}  # what was pooled
        self._full_since_ns = -1  # when a launch last found its queue full
        self._is_cut = False
        self.begin()

    def begin(self) -> None:
        """The window begins now."""
        self._began_ns = self._ended_ns = self._scheduler.now_ns
        self._lanes.clear()

    def end(self) -> None:
        """The window ends now."""
        if not self._is_cut:
            self._ended_ns = self._scheduler.now_ns

    def cut(self) -> bool:
        """End it here, and keep nothing of what comes later."""
        self.end()
        self._is_cut = True
        return True

    def trace(self) -> Trace:
        """What was seen between begin and end."""
        if self._most is None:
            spans = [*self._spans()]
        else:
            self._pool(self._most)
            spans = [*self._pooled_spans()]
        spans.sort(key=lambda span: (span.start_s, -span.end_s))
        length_s = self._seconds(self._ended_ns)
        return Trace(tuple(spans), length_s, is_cut=self._is_cut)

    def save(self, path: str | Path) -> None:
        """Write it as JSON for Perfetto and Chrome."""
        written = as_chrome_trace(self.trace(), self._box.label)
        written["otherData"]["began_ns"] = self._began_ns
        distributed = sys.modules.get("torch.distributed")
        if distributed and distributed.is_available() and distributed.is_initialized():
            written["distributedInfo"] = {
                "backend": "nccl",
                "rank": distributed.get_rank(),
                "world_size": distributed.get_world_size(),
            }
        Path(path).write_text(json.dumps(written), encoding="utf-8")

    # ------------------------------------------------------- what is told of the host

    def waited(self, what: str, began_ns: int, ended_ns: int) -> None:
        """The host has waited for a device, or for a slot in a queue."""
        if what == QUEUE_FULL:
            self._full_since_ns = began_ns
        self._note(what, SpanKind.WAIT, began_ns, ended_ns)

    def launched(self, work: Work, began_ns: int) -> None:
        """The host has launched a work."""
        was_full = self._full_since_ns >= began_ns
        ended_ns = self._full_since_ns if was_full else work.submitted_ns
        self._note(work.name, SpanKind.LAUNCH, began_ns, ended_ns)

    def _note(self, name: str, kind: SpanKind, began_ns: int, ended_ns: int) -> None:
        if not self._is_cut:
            self._calls.append((name, kind, began_ns, ended_ns))
        # A cell may run for hours.
        much = len(self.work) + len(self._calls) > _MOST_KEPT
        if self._most is not None and much:
            self._pool(self._most)

    # ----------------------------------------------------------------- what was seen

    def _seen(self) -> Iterator[tuple[_Lane, str, SpanKind, int, int, Work | None]]:
        numbers = {
            stream.queue: (gpu.index, stream.number)  # as the process knows them
            for gpu in self._box.machine.all_gpus
            for stream in gpu.streams.values()
        }
        for work in self.work:
            late = self._is_cut and work.submitted_ns > self._ended_ns
            if work.start_ns is not None and work.end_ns is not None and not late:
                kernel = work.engine in (Engine.COMPUTE, Engine.LINK)
                kind = SpanKind.KERNEL if kernel else SpanKind.COPY
                times = work.start_ns, work.end_ns
                yield numbers[work.stream], work.name, kind, *times, work
        for call in self._calls:
            yield None, *call, None

    def _spans(self) -> Iterator[TraceSpan]:
        """All, to the last, as far as it lies in the window."""
        for lane, name, kind, start_ns, end_ns, work in self._seen():
            window = max(start_ns, self._began_ns), min(end_ns, self._ended_ns)
            if window[0] >= window[1]:
                continue
            times = self._seconds(window[0]), self._seconds(window[1])
            if work is None:
                yield TraceSpan(name, kind, *times, thread=0)
                continue
            device, stream = lane or (None, None)
            yield TraceSpan(
                name,
                kind,
                *times,
                device=device,
                stream=stream,
                nbytes=getattr(name, "nbytes", None),
                bound=getattr(name, "bound", None),
                place=getattr(name, "place", None),
                launched_s=max(self._seconds(work.submitted_ns), 0.0),
            )

    def _pool(self, most: int) -> None:
        """Make few pieces of them, and forget the rest."""
        for lane, name, kind, start_ns, end_ns, _ in self._seen():
            if self._began_ns <= start_ns < end_ns:
                piece = Piece(name, kind, *map(self._seconds, (start_ns, end_ns)))
                self._lanes.setdefault(lane, []).append(piece)
        self._calls.clear()
        self.work.clear()
        for lane, pieces in self._lanes.items():
            pieces.sort(key=attrgetter("start_s"))
            self._lanes[lane] = [Piece(*each) for each in pooled(pieces, most)]

    def _pooled_spans(self) -> Iterator[TraceSpan]:
        length_s = self._seconds(self._ended_ns)
        for lane, pieces in self._lanes.items():
            device, stream = lane or (None, None)
            thread = 0 if lane is None else None
            for name, kind, start_s, end_s in pieces:
                if start_s < length_s:
                    times = start_s, min(end_s, length_s)
                    yield TraceSpan(name, kind, *times, device, stream, thread)

    def _seconds(self, at_ns: int) -> float:
        return (at_ns - self._began_ns) / 1e9


# ------------------------------------------------------------------------- as a file


def as_chrome_trace(trace: Trace, label: str) -> dict[str, Any]:
    """Devices become processes, streams and threads of the host become threads."""
    lanes = sorted({_lane(span) for span in trace.spans})
    names = []
    for process, thread in lanes:
        word = "thread" if process == _HOST else "stream"
        names.append(("thread_name", process, thread, f"{word} {thread} ({label})"))
    for process in sorted({process for process, _ in lanes}):
        name = f"{label}, GPU {process}"
        if process == _HOST:
            name = f"host of the {label}"
        names.append(("process_name", process, 0, name))
    return {
        "displayTimeUnit": "ns",
        "otherData": {"machine": label, "length_us": trace.length_s * 1e6},
        "traceEvents": [
            *(
                {
                    "ph": "M",
                    "name": kind,
                    "pid": pid,
                    "tid": tid,
                    "args": {"name": name},
                }
                for kind, pid, tid, name in names
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
    launched_us = None if span.launched_s is None else span.launched_s * 1e6
    told = {"launched_us": launched_us, "bytes": span.nbytes, "bound": span.bound}
    known: dict[str, Any] = {k: each for k, each in told.items() if each is not None}
    if span.place is not None:
        known |= _as_nccl_tells(span.place)
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


def _as_nccl_tells(place: GroupPlace) -> dict[str, Any]:
    """In the words of torch's profiler, which counts what one rank puts in."""
    parts = len(place.ranks) if place.name in _OF_ALL_PARTS else 1
    return {
        "Collective name": place.name,
        "Process Group Name": place.group,
        "Process Group Ranks": str([*place.ranks]),
        "Group size": len(place.ranks),
        "Seq": place.number,
        "In msg nelems": place.nbytes // parts,
        "dtype": "Byte",
    }
