"""CUDA graphs: work that is captured once and replayed at the price of one launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.simulator.backend.graph_nodes import Nodes
from gpumagic.simulator.backend.graph_values import Values
from gpumagic.simulator.backend.graph_words import block_class, graph_class
from gpumagic.simulator.backend.operator_mode import operator_mode
from gpumagic.simulator.backend.refusals import not_simulated

if TYPE_CHECKING:
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.backend.words import Words


class Graphs:
    """The graphs of one simulation; at most one is being captured.

    Args:
        simulation: The one that is on.

        words: What it offers.
    """

    def __init__(self, simulation: Simulation, words: Words) -> None:
        self._simulation = simulation
        self._words = words
        self._pools = 0
        self._stream: Any = None
        self._capture: Capture | None = None

    def as_mapping(self) -> dict[str, Any]:
        """The words of `torch.cuda` that are about graphs."""
        return {
            "CUDAGraph": graph_class(self),
            "graph": block_class(self),
            "graph_pool_handle": self.pool_handle,
            "is_current_stream_capturing": self.is_capturing,
        }

    def is_capturing(self) -> bool:
        """Whether the current stream of this thread is being captured."""
        if self._capture is None or not self._capture.nodes.mine:
            return False
        simulation = self._simulation
        return self._capture.nodes.captures(simulation.stream(simulation.gpu()).queue)

    def pool_handle(self) -> tuple[int, int]:
        """A token for a pool of memory that no other graph uses."""
        self._pools += 1
        return (0, self._pools)

    def stream_for_capture(self) -> Any:
        """The stream that graphs are captured on where none is named."""
        if self._stream is None:
            self._stream = self._words.as_mapping()["Stream"]()
        return self._stream

    def prepare(self) -> None:
        """Let the device finish, and give back what no tensor uses."""
        self._words.synchronize()
        self._words.empty_cache()

    def begin(self) -> None:
        """Capture the work of this thread from now on."""
        simulation = self._simulation
        if self._capture is not None:
            raise RuntimeError(
                simulation.says("only one capture may be underway in a process")
            )
        gpu = simulation.gpu()
        stream = simulation.stream(gpu)
        if stream is gpu.default_stream:
            raise RuntimeError(
                simulation.says(
                    "CUDA graphs must be captured on a non-default stream. (However, "
                    "after capture, it's ok to replay them on the default stream.)"
                )
            )
        self._capture = Capture(simulation, stream)
        self._capture.begin()

    def end(self) -> Capture:
        """The work of this capture, which is over."""
        capture, self._capture = self._capture, None
        if capture is None:
            raise RuntimeError(self._simulation.says("no capture is underway"))
        capture.end()
        return capture

    def abandon(self) -> None:
        """End whatever is being captured; the simulation ends."""
        capture, self._capture = self._capture, None
        if capture is not None:
            capture.end()

    def replay(self, capture: Capture) -> None:
        """Do the work of a capture once, on the current stream."""
        if self._capture is not None:
            raise not_simulated(
                "a graph within the capture of another", "replay it outside"
            )
        capture.replay()


class Capture:
    """One capture: its numbers and its nodes.

    Args:
        simulation: The one that is captured.

        stream: Where the capture begins.
    """

    def __init__(self, simulation: Simulation, stream: Any) -> None:
        self._simulation = simulation
        self._gpu = stream.gpu
        self.nodes = Nodes(simulation.machine, stream, simulation.says)
        self._values = Values(simulation)
        self._mode = _watching(self._values)

    def begin(self) -> None:
        """Watch every operator, and keep it from the device."""
        self.nodes.begin()
        self._mode.__enter__()

    def end(self) -> None:
        """Put back everything but what has been written down."""
        self._mode.__exit__(None, None, None)
        self._values.end()
        self.nodes.end()

    def replay(self) -> None:
        """Compute everything again, and submit it in one call."""
        simulation = self._simulation
        self._values.replay()
        stream = simulation.stream(self._gpu)
        with simulation.books():
            cost_ns = self._gpu.costs.host.graph_replay_ns
            simulation.machine.scheduler.elapse(cost_ns)
            races = self.nodes.replay(stream)
        if races:
            simulation.tell(races)


def _watching(values: Values) -> Any:
    class Watching(operator_mode()):  # type: ignore[misc]  # made with torch
        """Shows each operator, also those of a backward pass, to the capture."""

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            del types
            return values.watch(func, args, kwargs or {})

    return Watching()
