"""On which stream the operations of a backward pass run.

Each runs where its forward operation ran, and waits for those before it; when the
pass is over, the caller's streams wait for all that took part. So a whole backward
pass orders with its surroundings like one operation.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.simulated_gpu import SimulatedGpu, SimulatedStream

_REMEMBERED = 1 << 16  # forward operations; a graph that is older lost its streams


class _Pass(threading.local):
    """The backward pass that this thread is in: the streams it has used so far."""

    last: SimulatedStream | None = None
    used: dict[SimulatedStream, None] | None = None


class BackwardStreams:
    """Remembers the streams of forward operations; in use once there are several."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._core = simulation.torch._C
        self._forward: dict[int, SimulatedStream] = {}  # by the number of the node
        self._now = _Pass()

    def stream_for(
        self, gpu: SimulatedGpu, current: SimulatedStream
    ) -> SimulatedStream:
        """Where an operation goes whose thread has this current stream."""
        core = self._core
        if core._current_graph_task_id() == -1:
            # What a hook does with a saved tensor is not the node's own operation.
            if current is not gpu.default_stream and core.is_grad_enabled():
                self._remember(current)
            return current
        node = core._current_autograd_node()
        if node is None:
            return current
        stream = self._forward.get(node._sequence_nr())
        if stream is None or stream.gpu is not gpu:
            stream = gpu.default_stream
        self._follow(stream, current)
        return stream

    def finish(self) -> None:
        """The outermost pass is over: the caller's streams wait for all of it."""
        used, self._now.used, self._now.last = self._now.used, None, None
        for stream in used or ():
            gpu = stream.gpu
            current = self._simulation.here.streams.get(gpu, gpu.default_stream)
            if stream is not current:
                self._wait(current, stream)

    def _remember(self, stream: SimulatedStream) -> None:
        newest = self._core._autograd._get_sequence_nr() - 1
        self._forward[newest] = stream
        if len(self._forward) > _REMEMBERED:
            del self._forward[next(iter(self._forward))]

    def _follow(self, stream: SimulatedStream, current: SimulatedStream) -> None:
        now = self._now
        if now.used is None:
            now.used = {}
        last = now.last or current
        if stream is not last:
            self._wait(stream, last)
        now.last = stream
        now.used[stream] = None

    def _wait(self, stream: SimulatedStream, other: SimulatedStream) -> None:
        with self._simulation.books():
            self._simulation.machine.wait(stream, other)


def finishing(run_backward: Any, simulation: Simulation) -> Any:
    """A backward pass that ends by ordering its streams with the caller's."""
    import functools

    @functools.wraps(run_backward)
    def run(*arguments: Any, **options: Any) -> Any:
        try:
            return run_backward(*arguments, **options)
        finally:
            core = simulation.torch._C
            if simulation.side_streams and core._current_graph_task_id() == -1:
                simulation.backward.finish()

    return run
