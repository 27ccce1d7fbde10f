"""Observes a simulated machine while a block runs: waits, races, memory, a trace.

Devices tell of their work themselves. Of the host this much is known: when it
submits work, and when it waits. What it does in between is Python's, and no
simulated time passes there but what `box.pass_time` says.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import weakref
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumagic.devices.memory_history import MemoryEvent, MemoryTrace, Spot
from gpumagic.devices.sync_watch import wait_in_words
from gpumagic.errors import DeviceError
from gpumagic.report.events import (
    Piece,
    SeenRace,
    SpanKind,
    SyncCall,
    Trace,
    TraceSpan,
    pooled,
)
from gpumagic.report.places import Place, PlaceMark, code_line, runs_through
from gpumagic.simulator.models import MOST_GPUS
from gpumagic.simulator.scheduler import QUEUE_FULL, Engine, Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.devices.tracing import Tracing
    from gpumagic.simulator.allocator_blocks import Block
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.box import Box
    from gpumagic.simulator.hazards import Race
    from gpumagic.simulator.machine import SimulatedGpu
    from gpumagic.simulator.scheduler import Work

    _Mark = tuple[PlaceMark | None, bool]
    # a device and its stream, or a thread of the host
    _Lane = tuple[int | None, int | None, int | None]

_PRINTING = "_tensor_str.py"  # where torch makes the text of a tensor
_ARRIVE = "_arrive"  # where copies from the host come by
_MOST_EVENTS = 1_000_000
_NO_TASK = -1  # outside of any backward pass
_MOST_KEPT = 5000
_OF_ALL_PARTS = frozenset({"AllGather", "Gather"})  # bytes of which are of all parts
_KINDS: dict[Engine | None, SpanKind] = {
    Engine.COMPUTE: SpanKind.KERNEL,
    Engine.LINK: SpanKind.KERNEL,
}
_HOST: _Lane = (None, None, 0)
_HOST_PROCESS = MOST_GPUS  # a number of a process that no device has


@contextlib.contextmanager
def _listed(listeners: list[Any], listener: object) -> Iterator[None]:
    """Let somebody listen during a block."""
    listeners.append(listener)
    try:
        yield
    finally:
        listeners.remove(listener)


@contextlib.contextmanager
def watch_syncs(box: Box) -> Iterator[list[SyncCall]]:
    """Note each call that makes the host wait, with its cost on the machine's clock.

    The cost is that of the driver's call: a synchronisation takes time even where
    nothing is left to wait for. A launch that waits because its queue is full is
    not noted, since no line asks for that. Every thread is seen.
    """
    places = _simulation_of(box).places
    waits: list[tuple[str, PlaceMark | None, PlaceMark | None, int, int]] = []

    def note(what: str, began_ns: int, ended_ns: int) -> None:
        if what != QUEUE_FULL:
            if runs_through(_PRINTING):
                what = "printing a tensor"
            waits.append((what, places.here(), places.caller(), began_ns, ended_ns))

    seen: list[SyncCall] = []
    try:
        with _listed(box.machine.wait_observers, note):
            yield seen
    finally:
        for what, mark, caller, began_ns, ended_ns in waits:
            words = wait_in_words(what, Place(*mark).expression if mark else None)
            waited_s, line = (ended_ns - began_ns) / 1e9, code_line(mark)
            seen.append(SyncCall(words, line, waited_s, ended_ns, code_line(caller)))


def watch_resets(
    box: Box, around: Callable[[], contextlib.AbstractContextManager[object]]
) -> contextlib.AbstractContextManager[None]:
    """Put something round each reset of an allocator's counters during a block."""
    return _listed(_simulation_of(box).resets, around)


@contextlib.contextmanager
def watch_races(box: Box) -> Iterator[list[SeenRace]]:
    """Collect the races that are found, each pair of places once, without warnings."""
    simulation = _simulation_of(box)
    found: list[SeenRace] = []
    told: set[tuple[PlaceMark | None, PlaceMark | None]] = set()

    def collect(race: Race) -> None:
        places = race.earlier_place, race.later_place
        if places not in told:
            told.add(places)
            found.append(simulation.in_words(race))

    with _listed(simulation.collectors, collect):
        yield found


@contextlib.contextmanager
def watch_copies(box: Box, note: Callable[..., object]) -> Iterator[None]:
    """Tell of each copy from the host to a device, in every thread, once it returned.

    By its place, its bytes, how long the call took in nanoseconds, and as keywords
    whether it was `pinned` and `non_blocking`.
    """
    from gpumagic.simulator.backend.in_flight import pinned_buffer
    from gpumagic.simulator.backend.transfers import Transfers

    simulation = _simulation_of(box)
    arrive = vars(Transfers)[_ARRIVE]

    def arriving(
        self: Any, gpu: Any, target: Any, source: Any, *, non_blocking: bool
    ) -> None:
        began_ns = box.machine.scheduler.now_ns
        pinned = bool(pinned_buffer(source))
        arrive(self, gpu, target, source, non_blocking=non_blocking)
        nbytes = source.numel() * source.element_size()
        if nbytes:
            held_ns = box.machine.scheduler.now_ns - began_ns
            mark = simulation.places.here()
            note(mark, nbytes, held_ns, pinned=pinned, non_blocking=non_blocking)

    setattr(Transfers, _ARRIVE, arriving)
    try:
        yield
    finally:
        setattr(Transfers, _ARRIVE, arrive)


def _simulation_of(box: Box) -> Simulation:
    simulation = box._simulation  # noqa: SLF001 -- the other half of one machine
    if not (simulation and box.is_on):
        raise DeviceError(
            f"the {box.label} was switched off",
            'gpumagic.simulate("h100") switches one on',
        )
    return simulation


class MemoryWatch:
    """A recorder of the memory of all GPUs of a machine.

    Memory is given back at the line where the tensor has died.
    """

    def __init__(self, box: Box) -> None:
        self._simulation = _simulation_of(box)
        self._observers: dict[SimulatedGpu, Callable[[str, Block], object]] = {}
        # what happened: whether taken, address, bytes, and where
        self._noted: dict[SimulatedGpu, list[tuple[bool, int, int, _Mark]]] = {}
        self._partial = False
        self._deaths = StorageDeaths(self._simulation, self._here)

    def start(self) -> None:
        """Record from now on."""
        self._simulation.give_back()
        for gpu in self._simulation.machine.all_gpus:
            noted = self._noted[gpu] = []
            observer = self._observers[gpu] = functools.partial(self._note, noted)
            gpu.allocator.observe(observer)
        self._deaths.begin()

    def stop(self) -> MemoryTrace:
        """End it, and tell what was seen."""
        self._simulation.give_back()
        for gpu, observer in self._observers.items():
            gpu.allocator.ignore(observer)
        self._deaths.end()
        spot_of = functools.cache(_spot_of)
        events = {
            gpu.index: [
                MemoryEvent(taken, address, nbytes, spot_of(place), backward)
                for taken, address, nbytes, (place, backward) in self._noted[gpu]
            ]
            for gpu in self._simulation.machine.gpus  # those that this process sees
        }
        return MemoryTrace(events=events, partial=self._partial, lines=True)

    def _note(
        self, noted: list[tuple[bool, int, int, _Mark]], action: str, block: Block
    ) -> None:
        """Told by an allocator, while the books are held."""
        if action == "free_completed":
            return
        if len(noted) >= _MOST_EVENTS:
            self._partial = True
            return
        taken = action == "alloc"
        mark = (None if taken else self._deaths.marks.pop(block, None)) or self._here()
        noted.append((taken, block.address, block.size, mark))

    def _here(self) -> _Mark:
        """The place, whose line is looked up at the end, and if in a backward pass."""
        task = self._simulation.torch._C._current_graph_task_id()  # noqa: SLF001
        return self._simulation.places.here(), task != _NO_TASK


class StorageDeaths:
    """Notes where tensors die, until their memory is given back.

    That is with the next operation, as one books it. A tensor's death is its storage's.
    """

    def __init__(self, simulation: Simulation, where: Callable[[], Any]) -> None:
        self._simulation = simulation
        self._where = where
        self._alive: dict[Block, weakref.ref[Any]] = {}
        # what was answered when the storage of a block died
        self.marks: dict[Block, Any] = {}

    def begin(self) -> None:
        """Follow all tensors that there are, and those to come."""
        self._simulation.births.append(self._born)
        for life in tuple(self._simulation.tensors.lives.values()):
            if life.block and (storage := life()) is not None:
                self._follow(storage, life.block)

    def end(self) -> None:
        """Follow no more, and forget."""
        self._simulation.births.remove(self._born)
        self._alive.clear()
        self.marks.clear()

    def _born(self, tensor: Any, block: Block) -> None:
        self._follow(tensor.untyped_storage(), block)

    def _follow(self, storage: Any, block: Block) -> None:
        died = functools.partial(self._died, block)
        self._alive[block] = weakref.ref(storage, died)

    def _died(self, block: Block, reference: object) -> None:
        if self._alive.get(block) is reference:
            del self._alive[block]
            self.marks[block] = self._where()


def _spot_of(mark: PlaceMark | None) -> Spot | None:
    place = Place(*mark) if mark else None
    return place and Spot(place.file, place.line)


# ------------------------------------------------------------------------- a trace


@contextlib.contextmanager
def trace(box: Box, *, most: int | None = None) -> Iterator[Tracing]:
    """Trace what host and devices do; with `most`, about so many pieces of each."""
    scheduler = box.machine.scheduler
    if not isinstance(scheduler, Scheduler):
        raise DeviceError(
            "a graph is being captured, so that nothing runs that could be traced",
            "trace its replay",
        )
    tracing = SimulatedTracing(box, most)
    scheduler.traces.append(tracing.work)
    try:
        with (
            _listed(scheduler.wait_observers, tracing.waited),
            _listed(scheduler.launch_observers, tracing.launched),
        ):
            yield tracing
    finally:
        scheduler.stop_keeping(tracing.work)


class SimulatedTracing:
    """A `Tracing` of the simulated machine, to the nanosecond."""

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
        if self._most:
            self._pool(self._most)
            spans = [*self._pooled_spans()]
        else:
            spans = [*self._spans()]
        spans.sort(key=lambda span: (span.start_s, -span.end_s))
        return Trace(tuple(spans), self._seconds(self._ended_ns), is_cut=self._is_cut)

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
        if self._most and much:
            self._pool(self._most)

    def _seen(self) -> Iterator[tuple[_Lane, str, SpanKind, int, int, Work | None]]:
        lanes: dict[object, _Lane] = {
            stream.queue: (gpu.index, stream.number, None)  # as the process knows them
            for gpu in self._box.machine.all_gpus
            for stream in gpu.streams.values()
        }
        for work in self.work:
            late = self._is_cut and work.submitted_ns > self._ended_ns
            if not late:
                kind = _KINDS.get(work.engine, SpanKind.COPY)
                times = work.start_ns, work.end_ns
                yield lanes[work.stream], work.name, kind, *times, work
        for call in self._calls:
            yield _HOST, *call, None

    def _spans(self) -> Iterator[TraceSpan]:
        """All, to the last, as far as it lies in the window."""
        for lane, name, kind, start_ns, end_ns, work in self._seen():
            window = max(start_ns, self._began_ns), min(end_ns, self._ended_ns)
            if window[0] >= window[1]:
                continue
            known: dict[str, Any] = {}
            if work:
                told = ("nbytes", "bound", "place")
                known = {each: getattr(name, each, None) for each in told}
                known["launched_s"] = max(self._seconds(work.submitted_ns), 0.0)
            start_s, end_s = map(self._seconds, window)
            yield TraceSpan(name, kind, start_s, end_s, *lane, **known)

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
            for name, kind, start_s, end_s in pieces:
                if start_s < length_s:
                    yield TraceSpan(name, kind, start_s, min(end_s, length_s), *lane)

    def _seconds(self, at_ns: int) -> float:
        return (at_ns - self._began_ns) / 1e9


def as_chrome_trace(trace: Trace, label: str) -> dict[str, Any]:
    """Devices become processes, streams and threads of the host become threads."""
    names = {}
    for span in trace.spans:
        process, thread = _process_and_thread(span)
        device, lane = f"{label}, GPU {process}", "stream"
        if process == _HOST_PROCESS:
            device, lane = f"host of the {label}", "thread"
        names["process_name", process, 0] = device
        names["thread_name", process, thread] = f"{lane} {thread} ({label})"
    about = [
        {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}
        for (kind, process, thread), name in names.items()
    ]
    return {
        "displayTimeUnit": "ns",
        "otherData": {"machine": label, "length_us": trace.length_s * 1e6},
        "traceEvents": [*about, *map(_event, trace.spans)],
    }


def _process_and_thread(span: TraceSpan) -> tuple[int, int]:
    if span.device is None:
        return _HOST_PROCESS, span.thread or 0
    return span.device, span.stream or 0


def _event(span: TraceSpan) -> dict[str, Any]:
    process, thread = _process_and_thread(span)
    launched_us = None if span.launched_s is None else span.launched_s * 1e6
    told = {"launched_us": launched_us, "bytes": span.nbytes, "bound": span.bound}
    known: dict[str, Any] = {
        key: each for key, each in told.items() if each is not None
    }
    if (place := span.place) is not None:
        # In the words of torch's profiler, which counts what one rank puts in.
        parts = len(place.ranks) if place.name in _OF_ALL_PARTS else 1
        known |= {
            "Collective name": place.name,
            "Process Group Name": place.group,
            "Process Group Ranks": str([*place.ranks]),
            "Group size": len(place.ranks),
            "Seq": place.number,
            "In msg nelems": place.nbytes // parts,
            "dtype": "Byte",
        }
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
