"""Traces what the simulated machine does during a block, to the nanosecond.

Devices tell of their work themselves. Of the host this much is known: when it
submits work, and when it waits. What it does in between is Python's, and no
simulated time passes there but what `box.pass_time` says.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumagic.errors import DeviceError
from gpumagic.report.events import Piece, SpanKind, Trace, TraceSpan, pooled
from gpumagic.simulator.engines import (
    CollectiveName,
    CopyName,
    Engine,
    KernelName,
)
from gpumagic.simulator.models import MOST_GPUS
from gpumagic.simulator.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.devices.tracing import Tracing
    from gpumagic.report.events import GroupPlace
    from gpumagic.simulator.box import Box
    from gpumagic.simulator.engines import Stream, Work

    _LaneKey = tuple[int, int] | None  # a device and its stream; None is the host

# About a megabyte; a picture is a few hundred pixels wide.
MOST_IN_A_LANE = 1000
_MOST_KEPT = 5000
_OF_NO_FORWARD = 2**63  # numbers from here on belong to leaves
_OF_ALL_PARTS = frozenset({"AllGather", "Gather"})  # bytes of which are of all parts
_HOST = MOST_GPUS  # a number of a process that no device has


@contextlib.contextmanager
def trace(box: Box, *, most: int | None = None) -> Iterator[Tracing]:
    """Trace what host and devices do during a block."""
    if not isinstance(box.machine.scheduler, Scheduler):
        raise DeviceError(
            "a graph is being captured, so that nothing runs that could be traced",
            "trace its replay",
        )
    tracing = SimulatedTracing(box, most)
    with tracing.observing():
        yield tracing


class SimulatedTracing:
    """A `Tracing` of the simulated machine."""

    def __init__(self, box: Box, most: int | None = None) -> None:
        self._box = box
        self._most = most
        self._scheduler = box.machine.scheduler
        self._work: list[Work] = []
        self._calls: list[tuple[str, SpanKind, int, int]] = []
        self._lanes: dict[_LaneKey, list[Piece[SpanKind]]] = {}
        self._full_since_ns: list[int] = []  # when a launch found its queue full
        self._forward: dict[int, int] = {}  # by the identity of the work
        self._node = _backward_node()
        self._began_ns = self._ended_ns = self._scheduler.now_ns
        self._is_cut = False

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
            seen = (*self._device_spans(), *self._host_spans())
            spans = [span for span in seen if span is not None]
        else:
            self._pool(self._most)
            spans = list(self._pooled_spans())
        spans.sort(key=lambda span: (span.start_s, -span.end_s))
        length_s = self._seconds(self._ended_ns)
        return Trace(tuple(spans), length_s, is_cut=self._is_cut)

    # ------------------------------------------------------- however much there is

    def _keep_few(self) -> None:
        """Pool what was seen, where it has become much: a cell may run for hours."""
        if self._most is not None and len(self._work) + len(self._calls) > _MOST_KEPT:
            self._pool(self._most)

    def _pool(self, most: int) -> None:
        seconds, numbers = self._seconds, self._numbers()
        for name, kind, began_ns, ended_ns in self._calls:
            piece = Piece(name, kind, seconds(began_ns), seconds(ended_ns))
            self._lanes.setdefault(None, []).append(piece)
        for work in self._work:
            if work.start_ns is not None and work.end_ns is not None:
                times = seconds(work.start_ns), seconds(work.end_ns)
                piece = Piece(work.name, _kind_of(work), *times)
                self._lanes.setdefault(numbers[work.stream], []).append(piece)
        self._calls.clear()
        self._work.clear()
        for lane, pieces in self._lanes.items():
            whole = [each for each in pieces if each.end_s > each.start_s >= 0]
            whole.sort(key=_start)
            self._lanes[lane] = [Piece(*each) for each in pooled(whole, most)]

    def _pooled_spans(self) -> Iterator[TraceSpan]:
        length_s = self._seconds(self._ended_ns)
        for lane, pieces in self._lanes.items():
            device, stream = lane or (None, None)
            thread = 0 if lane is None else None
            for name, kind, start_s, end_s in pieces:
                if start_s < length_s:
                    times = start_s, min(end_s, length_s)
                    yield TraceSpan(name, kind, *times, device, stream, thread)

    def save(self, path: str | Path) -> None:
        """Write it as JSON for Perfetto and Chrome."""
        written = as_chrome_trace(
            self.trace(), self._box.label, began_ns=self._began_ns, group=_group()
        )
        Path(path).write_text(json.dumps(written), encoding="utf-8")

    @contextlib.contextmanager
    def observing(self) -> Iterator[None]:
        """Listen to the engines, to waits and to launches, for as long as a block."""
        scheduler, waits = self._scheduler, self._box.machine.wait_observers
        recorded, launched = scheduler.trace, vars(scheduler).get("launch")
        ours = scheduler.trace = _Works(self, recorded)
        # Put in only now, and taken out again: every operation comes by there.
        vars(scheduler)["launch"] = self._listening(scheduler.launch)
        waits.append(self._waited)
        try:
            yield
        finally:
            waits.remove(self._waited)
            if launched is None:
                del vars(scheduler)["launch"]
            else:
                vars(scheduler)["launch"] = launched
            if scheduler.trace is ours:
                scheduler.trace = recorded
            elif scheduler.trace is not None:
                # The block has called `box.record()`, and all went there since.
                for work in scheduler.trace:
                    self.note_work(work)

    # ---------------------------------------------------------------- the host

    def _waited(self, what: str, began_ns: int, ended_ns: int) -> None:
        self._full_since_ns[:] = self._full_since_ns[:1] or [began_ns]
        self._note(what, SpanKind.WAIT, began_ns, ended_ns)

    def _listening(self, launch: Callable[..., Work]) -> Callable[..., Work]:
        def listening(*args: Any, **named: Any) -> Work:
            began_ns = self._scheduler.now_ns
            self._full_since_ns.clear()
            work = launch(*args, **named)
            ended_ns = min([work.submitted_ns, *self._full_since_ns])
            if self._is_cut:
                return work
            if self._most is None and (node := self._node()) is not None:
                self._forward[id(work)] = node
            self._note(work.name, SpanKind.LAUNCH, began_ns, ended_ns)
            return work

        return listening

    def _note(self, name: str, kind: SpanKind, began_ns: int, ended_ns: int) -> None:
        if not self._is_cut:
            self._calls.append((name, kind, began_ns, ended_ns))
            self._keep_few()

    def note_work(self, work: Work) -> None:
        """Keep what a device has done, if it was asked to before the window was cut."""
        if not self._is_cut or work.submitted_ns <= self._ended_ns:
            self._work.append(work)

    def _host_spans(self) -> Iterator[TraceSpan | None]:
        for name, kind, began_ns, ended_ns in self._calls:
            yield self._span(name, kind, began_ns, ended_ns, thread=0)

    # ------------------------------------------------------------- the devices

    def _device_spans(self) -> Iterator[TraceSpan | None]:
        numbers = self._numbers()
        for work in self._work:
            if work.start_ns is None or work.end_ns is None:
                continue
            device, stream = numbers[work.stream]
            yield self._span(
                work.name,
                _kind_of(work),
                work.start_ns,
                work.end_ns,
                device=device,
                stream=stream,
                nbytes=work.name.nbytes if isinstance(work.name, CopyName) else None,
                bound=work.name.bound if isinstance(work.name, KernelName) else None,
                place=(
                    work.name.place if isinstance(work.name, CollectiveName) else None
                ),
                launched_s=max(self._seconds(work.submitted_ns), 0.0),
                forward=self._forward.get(id(work)),
            )

    def _numbers(self) -> dict[Stream, tuple[int, int]]:
        """By what numbers the process knows a device and its stream."""
        return {
            stream.queue: (gpu.index, stream.number)
            for gpu in self._box.machine.all_gpus
            for stream in gpu.streams.values()
        }

    # --------------------------------------------------------------- the clock

    def _span(
        self, name: str, kind: SpanKind, start_ns: int, end_ns: int, **more: Any
    ) -> TraceSpan | None:
        """The part of a span that lies in the window; None where there is none."""
        start_ns, end_ns = max(start_ns, self._began_ns), min(end_ns, self._ended_ns)
        if start_ns >= end_ns:
            return None
        return TraceSpan(
            name, kind, self._seconds(start_ns), self._seconds(end_ns), **more
        )

    def _seconds(self, at_ns: int) -> float:
        return (at_ns - self._began_ns) / 1e9


def _kind_of(work: Work) -> SpanKind:
    kernel = work.engine in (Engine.COMPUTE, Engine.LINK)
    return SpanKind.KERNEL if kernel else SpanKind.COPY


def _start(piece: Piece[SpanKind]) -> float:
    return piece.start_s


def _backward_node() -> Callable[[], int | None]:
    """Tells the number of the node whose backward runs now, if torch is there."""
    core = getattr(sys.modules.get("torch"), "_C", None)
    ask = getattr(core, "_current_autograd_node", None)
    if ask is None:
        return lambda: None

    def number() -> int | None:
        node = ask()
        found = None if node is None else int(node._sequence_nr())  # noqa: SLF001
        return found if found is not None and found < _OF_NO_FORWARD else None

    return number


class _Works(list["Work"]):
    """What the engines do, for two readers."""

    def __init__(self, ours: SimulatedTracing, recorded: list[Work] | None) -> None:
        super().__init__()
        self._ours, self._recorded = ours, recorded

    def append(self, work: Work) -> None:
        self._ours.note_work(work)
        if self._recorded is not None:
            self._recorded.append(work)


def _group() -> dict[str, Any] | None:
    """Who this process is among others, as torch's profiler writes it."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return None
    if not distributed.is_initialized():
        return None
    return {
        "backend": "nccl",
        "rank": distributed.get_rank(),
        "world_size": distributed.get_world_size(),
    }


def as_chrome_trace(
    trace: Trace,
    label: str,
    *,
    began_ns: int | None = None,
    group: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Devices become processes, streams and threads of the host become threads."""
    lanes = sorted({_lane(span) for span in trace.spans})
    told: dict[str, Any] = {"machine": label, "length_us": trace.length_s * 1e6}
    if began_ns is not None:
        told["began_ns"] = began_ns
    return {
        "displayTimeUnit": "ns",
        "otherData": told,
        **({} if group is None else {"distributedInfo": group}),
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
    if span.bound is not None:
        known["bound"] = span.bound
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


def _meta(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    """What a process or a thread is called."""
    return {
        "ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}
    }  # fmt: skip


def _process(label: str, process: int) -> dict[str, Any]:
    name = f"host of the {label}" if process == _HOST else f"{label}, GPU {process}"
    return _meta("process_name", process, 0, name)


def _named(label: str, process: int, thread: int) -> dict[str, Any]:
    word = "thread" if process == _HOST else "stream"
    return _meta("thread_name", process, thread, f"{word} {thread} ({label})")
