"""CUDA graphs: work captured once and replayed at the price of one launch."""

from __future__ import annotations

import contextlib
import itertools
import threading
from typing import TYPE_CHECKING, Any

from gpumagic.simulator.backend.graph_capture import Nodes
from gpumagic.simulator.backend.graph_classes import graph_classes
from gpumagic.simulator.backend.graph_values import Values
from gpumagic.simulator.backend.operations import operator_mode
from gpumagic.simulator.backend.race_warnings import warn_at
from gpumagic.simulator.backend.refusals import not_simulated
from gpumagic.simulator.backend.streams import index_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.simulator.allocator_blocks import PoolId
    from gpumagic.simulator.backend.generators import RandomState
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.backend.torch_sim import TorchSim
    from gpumagic.simulator.simulated_gpu import SimulatedStream

_EMPTY = (
    "The CUDA Graph is empty. This usually means that the graph was attempted to be "
    "captured on wrong device or stream."
)


class Graphs:
    """The graphs of one simulation; at most one is being captured."""

    def __init__(self, simulation: Simulation, torch_sim: TorchSim) -> None:
        self._simulation = simulation
        self._torch_sim = torch_sim
        self._pools = PoolNames()
        self._stream: Any = None
        self._capture: Capture | None = None

    def as_mapping(self) -> dict[str, Any]:
        """The names of `torch.cuda` that are about graphs."""
        classes = graph_classes(self)
        return {
            "CUDAGraph": classes["CUDAGraph"],
            "graph": classes["graph"],
            "graph_pool_handle": self.pool_handle,
            "is_current_stream_capturing": self.is_capturing,
            **memory_pools(self._simulation, self._pools),
        }

    def elsewhere(self) -> Iterator[tuple[Any, str, Any]]:
        """What is about graphs outside of `torch.cuda`: object, name, replacement."""
        accelerator = self._simulation.torch.accelerator
        if hasattr(accelerator, "Graph"):  # older ones have none
            graph = graph_classes(self)["Graph"]
            yield accelerator, "Graph", graph
            yield accelerator.graphs, "Graph", graph

    def is_capturing(self) -> bool:
        """Whether the current stream of this thread is being captured."""
        if self._capture is None or not self._capture.nodes.mine:
            return False
        simulation = self._simulation
        return self.captures(simulation.stream(simulation.gpu()))

    def captures(self, stream: SimulatedStream) -> bool:
        """Whether a stream is being captured."""
        return self._capture is not None and self._capture.nodes.captures(stream.queue)

    def pool_handle(self) -> PoolId:
        """A token for a pool of memory that no other graph uses."""
        return self._pools.for_user()

    def stream_for_capture(self) -> Any:
        """The stream that graphs are captured on where none is named."""
        if self._stream is None:
            self._stream = self._torch_sim.as_mapping()["Stream"]()
        return self._stream

    def prepare(self) -> None:
        """Let the device finish, and give back what no tensor uses."""
        self._torch_sim.synchronize()
        self._torch_sim.empty_cache()

    def require_none(self) -> None:
        """Say that there can be one capture at a time, if there is one."""
        if self._capture is not None:
            raise RuntimeError(
                self._simulation.says("only one capture may be underway in a process")
            )

    def random_state(self, generator: Any) -> RandomState:
        """What a generator draws from now; None is that of the current GPU."""
        return self._simulation.random_state(self._simulation.here.device, generator)

    def begin(self, pool: PoolId | None) -> None:
        """Capture the work of this thread from now on."""
        simulation = self._simulation
        self.require_none()
        gpu = simulation.gpu()
        stream = simulation.stream(gpu)
        if stream is gpu.default_stream:
            raise RuntimeError(
                simulation.says(
                    "CUDA graphs must be captured on a non-default stream. (However, "
                    "after capture, it's ok to replay them on the default stream.)"
                )
            )
        capture = Capture(simulation, stream, pool or self._pools.for_graph())
        capture.begin()
        self._capture = capture

    def end(self) -> Capture:
        """The work of this capture, which is over."""
        capture, simulation = self._capture, self._simulation
        if capture is None or not capture.nodes.mine:
            raise RuntimeError(simulation.says("no capture is underway"))
        if simulation.stream(capture.gpu) is not capture.origin:
            raise RuntimeError(
                simulation.says("Capture must end on the same stream it began on.")
            )
        self._capture = None
        capture.end()
        return capture

    def warn_of_empty(self, capture: Capture) -> None:
        """Say that a graph does nothing, as CUDA does."""
        if capture.nodes.empty:
            warn_at(self._simulation.places.here(), _EMPTY, UserWarning)

    def abandon(self) -> None:
        """End whatever is being captured, for nothing."""
        capture, self._capture = self._capture, None
        if capture is not None:
            with contextlib.suppress(RuntimeError):
                capture.end()
            capture.forget()

    def replay(self, capture: Capture) -> None:
        """Do the work of a capture once, on the current stream."""
        if self._capture is not None:
            raise not_simulated(
                "a graph within the capture of another", "replay it outside"
            )
        capture.replay()


class Capture:
    """One capture: its numbers, its nodes and its memory."""

    def __init__(
        self, simulation: Simulation, origin: SimulatedStream, pool: PoolId
    ) -> None:
        self._simulation = simulation
        self.gpu = origin.gpu
        self.origin = origin
        self.pool = pool
        self.nodes = Nodes(simulation.machine, origin, simulation.says)
        self._values = Values(simulation)
        self._mode = _watching(self._values)
        self._undo = contextlib.ExitStack()
        self._keeps_pool = False

    def begin(self) -> None:
        """Watch every operator, and keep it and its memory from the device."""
        with contextlib.ExitStack() as undo:
            undo.callback(self._end_diversion)
            with self._simulation.books():
                self.gpu.allocator.divert(self.pool, self._takes_memory_for)
            self._keeps_pool = True
            undo.callback(self.nodes.end)
            self.nodes.begin()
            undo.callback(self._values.end)
            self._mode.__enter__()
            undo.callback(self._stop_watching)
            self._undo = undo.pop_all()

    def end(self) -> None:
        """Put back everything but what has been written down."""
        try:
            self._undo.close()
        except RuntimeError:
            self.forget()
            raise

    def forget(self) -> None:
        """It is not replayed again: its memory may serve others."""
        if self._keeps_pool:
            self._keeps_pool = False
            self.gpu.allocator.release_pool(self.pool)

    def require_inputs(self) -> None:
        """Say which inputs are gone; what lies in its own pool may be."""
        dead = [
            f"{each.address:#x}"
            for each in self._values.inputs.values()
            if each.storage() is None and each.pool != self.pool
        ]
        if dead:
            raise RuntimeError(
                self._simulation.says(
                    f"CUDA graph replay detected {len(dead)} dead tensor(s): "
                    f"{', '.join(dead)}"
                )
            )

    def replay(self) -> None:
        """Compute everything again, and submit it in one call."""
        simulation = self._simulation
        self._values.replay()
        stream = simulation.stream(self.gpu)
        with simulation.books():
            cost_ns = self.gpu.costs.host.graph_replay_ns
            simulation.machine.scheduler.elapse(cost_ns)
            races = self.nodes.replay(stream)
        if races:
            simulation.tell(races)

    def _takes_memory_for(self, number: int) -> bool:
        return self.nodes.mine and self.nodes.captures(self.gpu.streams[number].queue)

    def _end_diversion(self) -> None:
        with self._simulation.books():
            self.gpu.allocator.end_diversion(self.pool)

    def _stop_watching(self) -> None:
        if self.nodes.mine:  # each thread has modes of its own
            self._mode.__exit__(None, None, None)


def _watching(values: Values) -> Any:
    class Watching(operator_mode()):  # type: ignore[misc]  # made with torch
        """Shows each operator, also those of a backward pass, to the capture."""

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            del types
            return values.watch(func, args, kwargs or {})

    return Watching()


class PoolNames:
    """Names for pools, as torch makes them: those of users begin with 0."""

    def __init__(self) -> None:
        self._graphs = itertools.count(1)
        self._users = itertools.count(1)

    def for_graph(self) -> PoolId:
        """The name of a pool that a graph has for itself."""
        return next(self._graphs), 0

    def for_user(self) -> PoolId:
        """The name of a pool that somebody has asked for."""
        return 0, next(self._users)


def memory_pools(simulation: Simulation, names: PoolNames) -> dict[str, Any]:
    """`torch.cuda.MemPool` and `torch.cuda.use_mem_pool`."""
    return {
        "MemPool": _pool_class(simulation, names),
        "use_mem_pool": _use_mem_pool(simulation),
    }


def _pool_class(simulation: Simulation, names: PoolNames) -> type:
    class MemPool:
        """Memory that serves what is made in a block of `use_mem_pool`, and no more.

        Args:
            allocator: Of the user's own; there is no memory that it could hand out.

            use_on_oom: Whether others may have it when memory has run out.

            no_split: Whether its segments are handed out whole.
        """

        def __init__(
            self,
            allocator: Any = None,
            use_on_oom: bool = False,
            no_split: bool = False,
        ) -> None:
            for asked, what in (
                (allocator, "memory pools with an allocator of their own"),
                (use_on_oom, "memory pools with use_on_oom=True"),
                (no_split, "memory pools with no_split=True"),
            ):
                if asked:
                    raise not_simulated(what, "torch.cuda.MemPool() works")
            self._pool = names.for_user()
            self._gpu = simulation.gpu()
            self._gpu.allocator.keep_pool(self._pool)

        def __del__(self) -> None:
            if hasattr(self, "_gpu"):
                self._gpu.allocator.release_pool(self._pool)

        @property
        def id(self) -> PoolId:
            """Its name, as it stands in snapshots."""
            return self._pool

        @property
        def allocator(self) -> None:
            """The user's own allocator: none."""

        def use_count(self) -> int:
            """How many use it: this object, graphs and blocks that are open."""
            return self._gpu.allocator.pool_uses(self._pool)

        def snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:
            """Its segments."""
            del include_traces
            with simulation.books():
                return [
                    segment
                    for gpu in simulation.machine.gpus
                    for segment in gpu.allocator.memory_snapshot(self._pool)
                ]

    MemPool.__qualname__ = MemPool.__name__
    MemPool.__module__ = "torch.cuda.memory"
    return MemPool


def _use_mem_pool(simulation: Simulation) -> Any:
    @contextlib.contextmanager
    def use_mem_pool(pool: Any, device: Any = None) -> Iterator[None]:
        """Take the memory of this thread's tensors from a pool."""
        thread = threading.get_ident()
        allocator = simulation.gpu(index_of(device, simulation.shown_type)).allocator
        with simulation.books():
            allocator.divert(pool.id, lambda _: threading.get_ident() == thread)
        try:
            yield
        finally:
            with simulation.books():
                allocator.end_diversion(pool.id)
                allocator.release_pool(pool.id)

    return use_mem_pool
