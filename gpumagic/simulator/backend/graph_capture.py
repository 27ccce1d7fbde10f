"""What stands where the scheduler and the tracker stand while a graph is captured.

What is given to a stream of the capture is written down instead of done; the host's
own time passes as ever; and whoever would wait for the device hears what CUDA says
to that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.simulator.work import FULL_SHARE, Work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumagic.simulator.backend.graph_nodes import Nodes, Replay
    from gpumagic.simulator.hazards import Mark, Operand, Tracker
    from gpumagic.simulator.machine import Machine
    from gpumagic.simulator.races import Race
    from gpumagic.simulator.scheduler import Scheduler
    from gpumagic.simulator.work import Engine, Stream

_UNCAPTURED = "CUDA error: dependency created on uncaptured work in another stream"
_OTHER_CAPTURE = "CUDA error: attempted to merge separate capture sequences"
_CAPTURED_EVENT = (
    "CUDA error: operation not permitted on an event last recorded in a "
    "capturing stream"
)


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
        raise RuntimeError(self.nodes.says(_CAPTURED_EVENT))


class CapturingScheduler:
    """Stands in for the scheduler during a capture.

    Args:
        scheduler: The one it stands in for.

        nodes: Where it writes down what is submitted.
    """

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

    Args:
        tracker: The one that follows what is not captured.

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
