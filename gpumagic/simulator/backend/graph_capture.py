"""Captures a graph: what stands in for the scheduler, and what would be launched.

What is given to a stream of the capture is written down instead of done; the host's
own time passes as ever; and whoever would wait for the device hears what CUDA says
to that.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from gpumagic.simulator.engines import FULL_SHARE, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpumagic.simulator.accesses import Operand
    from gpumagic.simulator.engines import Engine, Stream
    from gpumagic.simulator.hazards import Mark, Tracker
    from gpumagic.simulator.machine import Machine
    from gpumagic.simulator.races import Race
    from gpumagic.simulator.scheduler import Scheduler
    from gpumagic.simulator.simulated_gpu import SimulatedStream

_UNCAPTURED = "CUDA error: dependency created on uncaptured work in another stream"
_OTHER_CAPTURE = "CUDA error: attempted to merge separate capture sequences"
_CAPTURED_EVENT = (
    "CUDA error: operation not permitted on an event last recorded in a "
    "capturing stream"
)
NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"
_UNJOINED = "CUDA error: capturing stream has unjoined work"
_INVALIDATED = "CUDA error: operation failed due to a previous error during capture"


class CapturedMark(Work):
    """The record of an event within a capture, which the device never passes."""

    __slots__ = ("nodes",)

    nodes: Nodes

    @property
    def end_ns(self) -> int | None:
        """Nobody may ask when it ended, or wait for that."""
        self.require_submitted()
        return None

    @end_ns.setter
    def end_ns(self, _: int | None) -> None:
        """It never ends."""

    def require_submitted(self) -> None:
        """Say what CUDA says of an event that a capture has recorded."""
        raise torch.AcceleratorError(self.nodes.says(_CAPTURED_EVENT))


class CapturingScheduler:
    """Stands in for the scheduler during a capture."""

    def __init__(self, scheduler: Scheduler, nodes: Nodes) -> None:
        self._scheduler = scheduler
        self._nodes = nodes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    @property
    def trace(self) -> list[Work] | None:
        """The scheduler's own, which goes on after the capture."""
        return self._scheduler.trace

    @trace.setter
    def trace(self, trace: list[Work] | None) -> None:
        self._scheduler.trace = trace

    def launch(
        self,
        stream: Stream,
        engine: Engine,
        duration_ns: int,
        share: int = FULL_SHARE,
        host_ns: int = 0,
        name: str = "",
    ) -> Work:
        """Write down a kernel or a copy."""
        nodes, scheduler = self._nodes, self._scheduler
        if not nodes.mine:
            return scheduler.launch(stream, engine, duration_ns, share, host_ns, name)
        nodes.require(stream)
        scheduler.elapse(host_ns)

        def step(replay: Replay) -> Sequence[Race]:
            duration = duration_ns + replay.node_ns
            queue = replay.queue(stream)
            replay.scheduler.launch(queue, engine, duration, share, 0, name)
            return ()

        nodes.add_launch(step)
        return Work(stream, engine, duration_ns, share, scheduler.now_ns, 0, name)

    def record(self, stream: Stream, host_ns: int = 0) -> Work:
        """Write down the record of an event."""
        nodes, scheduler = self._nodes, self._scheduler
        if not (nodes.mine and nodes.captures(stream)):
            return scheduler.record(stream, host_ns)
        scheduler.elapse(host_ns)
        mark = CapturedMark(stream, None, 0, 0, scheduler.now_ns, 0, "")
        mark.nodes = nodes

        def step(replay: Replay) -> Sequence[Race]:
            replay.works[id(mark)] = replay.scheduler.record(replay.queue(stream))
            return ()

        nodes.add(step)
        return mark

    def wait(self, stream: Stream, record: Work | None, host_ns: int = 0) -> None:
        """Write down that a stream waits for an event."""
        nodes, scheduler = self._nodes, self._scheduler
        if not isinstance(record, CapturedMark):
            if nodes.mine and nodes.captures(stream) and record is not None:
                raise nodes.failed(_UNCAPTURED)
            scheduler.wait(stream, record, host_ns)
            return
        if record.nodes is not nodes or not nodes.mine:
            raise nodes.failed(_OTHER_CAPTURE)
        scheduler.elapse(host_ns)
        nodes.join(stream, record)

        def step(replay: Replay) -> Sequence[Race]:
            work = replay.works[id(record)]
            replay.scheduler.wait(replay.queue(stream), work)
            return ()

        nodes.add(step)

    def busy(self, stream: Stream) -> bool:
        """Nobody may ask that of a stream that is captured."""
        if self._nodes.mine and self._nodes.captures(stream):
            raise self._nodes.not_permitted()
        return self._scheduler.busy(stream)

    def done(self, work: Work | None) -> bool:
        """Nobody may ask that of an event that is captured."""
        if isinstance(work, CapturedMark):
            raise self._nodes.not_permitted()
        return self._scheduler.done(work)

    def wait_for(self, work: Work | None) -> None:
        """The host may not wait."""
        self._only_others()
        self._scheduler.wait_for(work)

    def wait_for_stream(self, stream: Stream) -> None:
        """The host may not wait."""
        self._only_others()
        self._scheduler.wait_for_stream(stream)

    def wait_for_device(self, device: int) -> None:
        """The host may not wait."""
        self._only_others()
        self._scheduler.wait_for_device(device)

    def _only_others(self) -> None:
        if self._nodes.mine:
            raise self._nodes.not_permitted()


class CapturingTracker:
    """The tracker of a machine whose work can be captured.

    It takes the tracker's place from the beginning: whoever enters every operation
    has its methods at hand, and does not ask anew which object is there.

    Attributes:
        nodes: Where it writes down who touches what, during a capture.
    """

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._operate = tracker.operate
        self.nodes: Nodes | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tracker, name)

    def operate(
        self,
        stream: int,
        reads: Sequence[Operand],
        writes: Sequence[Operand],
        place: Any,
    ) -> Sequence[Race]:
        """Check one operation, or write it down."""
        nodes = self.nodes
        if nodes is None or not (nodes.mine and nodes.captures_order(stream)):
            return self._operate(stream, reads, writes, place)
        read, written = tuple(reads), tuple(writes)

        def step(replay: Replay) -> Sequence[Race]:
            order = replay.order(stream)
            return replay.tracker.operate(order, read, written, place)

        nodes.add(step)
        return ()

    def record(self, stream: int) -> Mark:
        """An event behind all that a stream was given, or the note of one."""
        nodes, mark = self.nodes, self._tracker.record(stream)
        if nodes is not None and nodes.mine and nodes.captures_order(stream):
            nodes.marks[id(mark)] = mark

            def step(replay: Replay) -> Sequence[Race]:
                order = replay.order(stream)
                replay.marks[id(mark)] = replay.tracker.record(order)
                return ()

            nodes.add(step)
        return mark

    def wait(self, stream: int, mark: Mark) -> None:
        """Let a stream come after a mark, or write that down."""
        nodes = self.nodes
        if nodes is None or id(mark) not in nodes.marks:
            self._tracker.wait(stream, mark)
            return
        nodes.join_order(stream)

        def step(replay: Replay) -> Sequence[Race]:
            replay.tracker.wait(replay.order(stream), replay.marks[id(mark)])
            return ()

        nodes.add(step)


def make_capturable(machine: Machine) -> None:
    """Let the work of a machine be captured; before anything has run on it."""
    machine.tracker = CapturingTracker(machine.tracker)  # type: ignore[assignment]


class Nodes:
    """What a capture has written down, for any number of replays.

    Args:
        machine: The one that is captured.

        origin: The stream that the capture began on.

        says: Puts the label of the simulation on a message.
    """

    def __init__(
        self, machine: Machine, origin: SimulatedStream, says: Callable[[str], str]
    ) -> None:
        self._machine = machine
        self._scheduler = machine.scheduler
        self._tracker: Any = machine.tracker  # one that captures; see `make_capturable`
        self._thread = threading.get_ident()
        self._origin = origin
        self.says = says
        self._steps: list[Callable[[Replay], Sequence[Race]]] = []
        self._queues = {id(origin.queue)}
        self._orders = {origin.order}
        self._unjoined: set[int] = set()
        self._launches = 0
        self._invalid = False
        self.marks: dict[int, Mark] = {}  # by identity, which holding them keeps

    # ----------------------------------------------------------------- capture

    def begin(self) -> None:
        """Write down what is launched from now on, by this thread."""
        self._machine.scheduler = CapturingScheduler(self._scheduler, self)  # type: ignore[assignment]
        self._tracker.nodes = self

    def end(self) -> None:
        """Give the machine back what it had."""
        self._machine.scheduler = self._scheduler
        self._tracker.nodes = None
        if self._invalid:
            raise torch.AcceleratorError(self.says(_INVALIDATED))
        if self._unjoined:
            raise torch.AcceleratorError(self.says(_UNJOINED))

    @property
    def empty(self) -> bool:
        """Whether a replay would launch nothing."""
        return not self._launches

    @property
    def mine(self) -> bool:
        """Whether this is the thread whose work is captured."""
        return threading.get_ident() == self._thread

    def captures(self, queue: Stream) -> bool:
        """Whether work on this stream belongs to the capture."""
        return id(queue) in self._queues

    def captures_order(self, order: int) -> bool:
        """Likewise, by the stream's place in the tracker."""
        return order in self._orders

    def require(self, queue: Stream) -> None:
        """Refuse work on a stream that has not branched off from the first."""
        if self._invalid:
            raise torch.AcceleratorError(self.says(_INVALIDATED))
        if not self.captures(queue):
            raise self.not_permitted()
        if queue is not self._origin.queue:
            self._unjoined.add(id(queue))

    def join(self, queue: Stream, mark: Work) -> None:
        """A stream waits for another: it belongs to the capture from here on."""
        self._queues.add(id(queue))
        if queue is self._origin.queue:
            self._unjoined.discard(id(mark.stream))
        elif mark.stream is not queue:
            self._unjoined.add(id(queue))
            self._unjoined.discard(id(mark.stream))

    def join_order(self, order: int) -> None:
        """Likewise, by the stream's place in the tracker."""
        self._orders.add(order)

    def add(self, step: Callable[[Replay], Sequence[Race]]) -> None:
        """Write down what to do at each replay."""
        self._steps.append(step)

    def add_launch(self, step: Callable[[Replay], Sequence[Race]]) -> None:
        """Likewise, for what is a node of the graph."""
        self._launches += 1
        self.add(step)

    def not_permitted(self) -> RuntimeError:
        """What CUDA says to whoever waits while it captures."""
        return self.failed(NOT_PERMITTED)

    def failed(self, text: str) -> RuntimeError:
        """An error that leaves nothing of the capture, also where it is caught."""
        self._invalid = True
        error: RuntimeError = torch.AcceleratorError(self.says(text))
        return error

    # ------------------------------------------------------------------ replay

    def replay(self, stream: SimulatedStream) -> list[Race]:
        """Submit everything at one price, to this stream in place of the first."""
        replay = Replay(self._machine, self._origin, stream)
        races: list[Race] = []
        for step in self._steps:
            races += step(replay)
        return races


class Replay:
    """One replay: which real stream and which real event stand for captured ones."""

    def __init__(
        self, machine: Machine, origin: SimulatedStream, stream: SimulatedStream
    ) -> None:
        self.scheduler, self.tracker = machine.scheduler, machine.tracker
        self._origin, self._stream = origin, stream
        self.works: dict[int, Work] = {}
        self.marks: dict[int, Mark] = {}
        costs = stream.gpu.costs.host
        # The scheduler has a gap of its own between two works of a stream.
        gap_ns = machine.scheduler.latencies.gap_ns
        self.node_ns = max(0, costs.graph_node_ns - gap_ns)

    def queue(self, captured: Stream) -> Stream:
        """The stream to submit to."""
        return self._stream.queue if captured is self._origin.queue else captured

    def order(self, captured: int) -> int:
        """Its place in the tracker."""
        return self._stream.order if captured == self._origin.order else captured
