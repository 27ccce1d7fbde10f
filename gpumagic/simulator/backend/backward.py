"""On which stream the operations of a backward pass run.

A node runs where its forward operation ran, and waits for those before it: that
stream is the current one in it, for its hooks and for whatever a custom function does.
When the pass is over, the caller's streams wait for all that took part, and are the
current ones again. So a whole backward pass orders with its surroundings like one
operation.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from gpumagic.simulator.backend.registration import NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.simulated_gpu import SimulatedGpu, SimulatedStream

_REMEMBERED = 1 << 16  # forward operations; a graph that is older lost its streams


class _Pass:
    """A backward pass that a thread is in.

    Attributes:
        callers: The current streams of whoever began it.

        node: The number of the node that it is in.

        entered: The GPUs that this node has used.

        last: The stream of the node before.

        used: The streams of all nodes so far.
    """

    __slots__ = ("callers", "entered", "last", "node", "used")

    def __init__(self, callers: dict[SimulatedGpu, SimulatedStream]) -> None:
        self.callers = callers
        self.node: int | None = None
        self.entered: set[SimulatedGpu] = set()
        self.last: SimulatedStream | None = None
        self.used: dict[SimulatedStream, None] = {}


class _Thread(threading.local):
    """The pass that a thread is in, and how many nodes it had made when last asked."""

    inside: _Pass | None = None
    numbered = 0


class BackwardStreams:
    """Remembers the streams of forward operations; in use once there are several."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._core = simulation.torch._C
        self._count = simulation.torch._C._autograd._get_sequence_nr
        self._forward: dict[int, SimulatedStream] = {}  # by the number of the node
        self._thread = _Thread()

    def stream_for(self, gpu: SimulatedGpu) -> SimulatedStream:
        """Where work on a GPU goes, in this thread and now."""
        here, thread = self._simulation.here, self._thread
        if thread.inside is not None:
            node = self._core._current_autograd_node()
            if node is not None:
                self._enter(thread.inside, node._sequence_nr(), gpu)
        current = here.streams.get(gpu, gpu.default_stream)
        if self._count() != thread.numbered:
            self._remember(current)
        return current

    def start(self) -> _Pass | None:
        """A pass begins; answers with the one that it is part of."""
        outer = self._thread.inside
        self._thread.inside = _Pass(dict(self._simulation.here.streams))
        return outer

    def finish(self, outer: _Pass | None) -> None:
        """It is over: its caller's streams are current again, and wait for it."""
        here, inside = self._simulation.here, self._thread.inside
        self._thread.inside = outer
        if inside is None or not inside.used:
            return
        here.streams.clear()
        here.streams.update(inside.callers)
        for stream in inside.used:
            self._wait(here.streams.get(stream.gpu, stream.gpu.default_stream), stream)

    def _remember(self, stream: SimulatedStream) -> None:
        """The nodes made since this thread was last looked at are of this stream."""
        count, forward = self._count(), self._forward
        first, self._thread.numbered = self._thread.numbered, count
        if stream is stream.gpu.default_stream:
            return
        for number in range(max(first, count - _REMEMBERED), count):
            forward[number] = stream
        for _ in range(len(forward) - _REMEMBERED):
            del forward[next(iter(forward))]

    def _enter(self, inside: _Pass, number: int, gpu: SimulatedGpu) -> None:
        """Make the stream of a node's forward operation the current one in it."""
        streams = self._simulation.here.streams
        if inside.node != number:
            inside.node = number
            inside.entered.clear()
            streams.clear()
            stream = self._forward.get(number)
            if stream is not None:
                streams[stream.gpu] = stream
        if gpu not in inside.entered:
            inside.entered.add(gpu)
            stream = streams.get(gpu, gpu.default_stream)
            callers = inside.callers.get(gpu, gpu.default_stream)
            self._wait(stream, inside.last or callers)
            inside.last = stream
            inside.used[stream] = None

    def _wait(self, stream: SimulatedStream, other: SimulatedStream) -> None:
        if stream is not other:
            with self._simulation.books():
                self._simulation.machine.wait(stream, other)


def finishing(run_backward: Any, simulation: Simulation) -> Any:
    """A backward pass that ends by ordering its streams with the caller's."""
    import functools

    @functools.wraps(run_backward)
    def run(*arguments: Any, **options: Any) -> Any:
        outer = simulation.backward.start()
        try:
            return run_backward(*arguments, **options)
        except RuntimeError as error:
            error.args = (*_in_words_of(simulation, error.args),)
            raise
        finally:
            simulation.backward.finish(outer)

    return run


def _in_words_of(simulation: Simulation, said: Iterable[Any]) -> Iterator[Any]:
    """What torch's engine says of devices, with the name that the user knows."""
    for each in said:
        known = isinstance(each, str)
        yield each.replace(f"{NAME}:", f"{simulation.word}:") if known else each
