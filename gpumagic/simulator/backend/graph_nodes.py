"""The device's side of a graph: what would be launched, and in which order."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from gpumagic.simulator.backend.graph_capture import CapturingScheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpumagic.simulator.hazards import Mark
    from gpumagic.simulator.machine import Machine
    from gpumagic.simulator.races import Race
    from gpumagic.simulator.simulated_gpu import SimulatedStream
    from gpumagic.simulator.work import Stream, Work

NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"
_UNJOINED = "CUDA error: capturing stream has unjoined work"
_INVALIDATED = "CUDA error: operation failed due to a previous error during capture"


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
        """Give the machine back what it had.

        Raises:
            RuntimeError: Something was not permitted, or a stream that branched off
                did not come back.
        """
        self._machine.scheduler = self._scheduler
        self._tracker.nodes = None
        if self._invalid:
            raise RuntimeError(self.says(_INVALIDATED))
        if self._unjoined:
            raise RuntimeError(self.says(_UNJOINED))

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
            raise RuntimeError(self.says(_INVALIDATED))
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
        return RuntimeError(self.says(text))

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
