"""CUDA graphs: operations that are recorded once, and replayed by one launch.

An operation is recorded with the twins of its arguments and of its results, so that a
replay is the same computation into the same memory; and with what it would launch.
During a capture torch computes as ever, for the shapes' sake; what it has written into
is put back at the end. A graph is captured on one stream.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils import _pytree

from gpumagic.simulator.backend.cuda_only import MADE
from gpumagic.simulator.backend.operations import operator_mode
from gpumagic.simulator.backend.refusals import not_simulated
from gpumagic.simulator.scheduler import FULL_SHARE, Work

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.simulator.allocator_blocks import PoolId
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.backend.torch_sim import TorchSim
    from gpumagic.simulator.hazards import Operand
    from gpumagic.simulator.machine import SimulatedStream
    from gpumagic.simulator.scheduler import Engine, Scheduler, Stream

_NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"
_FAILED = "CUDA error: operation failed due to a previous error during capture"
_WAITS = ("wait_for", "wait_for_device", "busy", "done")
_OF_SEVERAL = ("record", "wait")
_READ_AT_REPLAY = ("copy_", "_to_copy")  # host memory; other host numbers go by value
_NO_NUMBERS = ("empty", "empty_like", "empty_strided", "new_empty", "record_stream")


class Graphs:
    """The graphs of one simulation; at most one is being captured."""

    def __init__(self, simulation: Simulation, torch_sim: TorchSim) -> None:
        self.simulation = simulation
        self.torch_sim = torch_sim
        self.capture: Capture | None = None
        self.numbers = itertools.count(1)

    def as_mapping(self) -> dict[str, Any]:
        """The names of `torch.cuda` that are about graphs."""
        own = {"_graphs": self, "__module__": "torch.cuda.graphs"}
        return {
            "CUDAGraph": type("CUDAGraph", (CUDAGraph,), dict(own)),
            "graph": type("graph", (graph,), dict(own)),
            "graph_pool_handle": lambda: (0, next(self.numbers)),
            "is_current_stream_capturing": self.is_capturing,
        }

    def is_capturing(self) -> bool:
        """Whether the current stream is being captured."""
        simulation = self.simulation
        return self.captures(simulation.stream(simulation.gpu()))

    def captures(self, stream: SimulatedStream) -> bool:
        """Whether a stream is being captured."""
        return self.capture is not None and self.capture.stream is stream

    def begin(self, pool: PoolId | None) -> None:
        """Record what is done on the current stream from now on."""
        simulation = self.simulation
        stream = simulation.stream(simulation.gpu())
        if self.capture is not None or stream is stream.gpu.default_stream:
            raise RuntimeError(
                simulation.says(
                    "CUDA graphs are captured one at a time, on a non-default stream"
                )
            )
        self.capture = Capture(simulation, stream, pool or (next(self.numbers), 0))

    def end(self, *, abandon: bool = False) -> Capture | None:
        """The capture, which is over; for nothing if it is abandoned."""
        capture, self.capture = self.capture, None
        if capture is None:
            return None
        capture.end()
        if abandon or capture.failed:
            capture.forget()
        if capture.failed and not abandon:
            raise torch.AcceleratorError(self.simulation.says(_FAILED))
        return capture


class _Step(NamedTuple):
    """One operator on twins, and where its results belong."""

    compute: Callable[..., Any]
    args: Any
    options: dict[str, Any]
    targets: list[tuple[int, Any]]  # by their places among all results


class Capture:
    """What was done on a stream while it was captured."""

    def __init__(
        self, simulation: Simulation, stream: SimulatedStream, pool: PoolId
    ) -> None:
        self._simulation = simulation
        self.stream, self.pool, self.failed = stream, pool, False
        self.nodes: list[tuple[Engine, int, int, str]] = []
        self._steps: list[_Step] = []
        self._made: dict[int, Any] = {}  # the bytes of a storage
        self._before: dict[int, tuple[Any, Any]] = {}  # bytes of a storage, and a copy
        self._reads: dict[int, Operand] = {}
        self._writes: dict[int, Operand] = {}
        sources = simulation.generators.values()
        self._random = [(each, each.get_state()) for each in sources]
        machine = simulation.machine
        self._scheduler = machine.scheduler
        with simulation.books():
            stream.gpu.allocator.divert(pool, lambda number: number == stream.number)
        machine.scheduler = _Recorder(machine.scheduler, self)  # type: ignore[assignment]
        self._mode: Any = operator_mode(self._watch)()
        self._mode.__enter__()

    def end(self) -> None:
        """Put everything back that was there before."""
        self._mode.__exit__(None, None, None)
        self._simulation.machine.scheduler = self._scheduler
        with self._simulation.books() as tracker:
            self.stream.gpu.allocator.end_diversion()
            tracker.host_waits_for(self.stream.order)  # nothing of it has run
        for now, before in self._before.values():
            now.copy_(before)
        for made in self._made.values():
            made.zero_()
        for random, state in self._random:
            random.set_state(state)
        self._before.clear()
        self._made.clear()

    def forget(self) -> None:
        """It is not replayed again: its memory may serve others."""
        self.stream.gpu.allocator.release_pool(self.pool)

    def replay(self) -> None:
        """Compute everything again, and submit it to the current stream at once."""
        simulation, gpu = self._simulation, self.stream.gpu
        source, default = simulation.generators[gpu.index], torch.default_generator
        host_state = default.get_state()
        default.set_state(source.get_state())
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            for step in self._steps:
                results = step.compute(*step.args, **step.options)
                leaves = _pytree.tree_leaves(results) if step.targets else ()
                for place, target in step.targets:
                    target.copy_(leaves[place])
        source.set_state(default.get_state())
        default.set_state(host_state)
        stream, scheduler = simulation.stream(gpu), simulation.machine.scheduler
        host, gap_ns = gpu.costs.host, scheduler.latencies.gap_ns
        node_ns = max(0, host.graph_node_ns - gap_ns)  # that gap is between any two
        writes = [*self._writes.values()]
        reads = [each for key, each in self._reads.items() if key not in self._writes]
        with simulation.books() as tracker:
            scheduler.elapse(host.graph_replay_ns)
            for engine, duration_ns, share, name in self.nodes:
                each_ns = duration_ns + node_ns
                scheduler.launch(stream.queue, engine, each_ns, share, 0, name)
            here = simulation.places.here()
            races = tracker.operate(stream.order, reads, writes, here)
        if races:
            simulation.tell(races)

    # ---------------------------------------------------------------- recording

    def _watch(self, func: Any, args: Any, options: dict[str, Any]) -> Any:
        """Compute one operator as ever, and write it down."""
        name = func._schema.name.removeprefix("aten::")
        leaves = _pytree.tree_leaves((args, options))
        ours = [each for each in leaves if self._memory(each)]
        by_value = name not in _READ_AT_REPLAY
        inner, named = _pytree.tree_map(
            lambda each: self._twin(each, by_value=by_value), (args, options)
        )
        named.pop("pin_memory", None)
        written = _written(func, args, options)
        for each in written:
            self._keep(each)
        result = func(*args, **options)
        given = set(map(_storage, ours))
        fresh = [
            (place, each)
            for place, each in enumerate(_pytree.tree_leaves(result))
            if isinstance(each, torch.Tensor)
            and _storage(each) not in given
            and (given or self._memory(each))
        ]
        made = [each for _, each in fresh if self._memory(each)]
        self._made.update((_storage(each), self._bytes(each)) for each in made)
        for among, tensors in (self._reads, ours), (self._writes, [*made, *written]):
            for memory in map(self._memory, tensors):
                if memory:
                    among[id(memory.accesses)] = memory.whole
        if (given or made) and (fresh or written) and name not in _NO_NUMBERS:
            targets = [(place, self._twin(each)) for place, each in fresh]
            compute = MADE.get(name) or func
            self._steps.append(_Step(compute, inner, named, targets))
        return result

    def _memory(self, value: Any) -> Any:
        """What lies on the device under a value; None if nothing does."""
        if not isinstance(value, torch.Tensor):
            return None
        return self._simulation.tensors.memory_of(value)

    def _twin(self, value: Any, *, by_value: bool = False) -> Any:
        """What stands for a value in a replay."""
        if self._memory(value):
            return self._simulation.tensors.twin_of(value)
        if isinstance(value, torch.Tensor):
            return value.clone() if by_value and not value.dim() else value
        if isinstance(value, torch.device):
            return torch.device("cpu")
        return None if isinstance(value, torch.Generator) else value

    def _keep(self, tensor: Any) -> None:
        key = _storage(tensor)
        if key not in self._before and key not in self._made:
            now = self._bytes(tensor)
            self._before[key] = now, now.clone()

    def _bytes(self, tensor: Any) -> Any:
        storage = self._twin(tensor).untyped_storage()
        nothing = torch.empty(0, dtype=torch.uint8, device="cpu")
        return nothing.set_(storage, 0, (storage.nbytes(),), (1,))


class _Recorder:
    """Stands in for the scheduler during a capture: the host alone goes on."""

    def __init__(self, scheduler: Scheduler, capture: Capture) -> None:
        self._scheduler, self._capture = scheduler, capture

    def __getattr__(self, name: str) -> Any:
        """Nobody may wait for the device, or ask it, while nothing runs there."""
        if name in _WAITS:
            self._capture.failed = True
            raise torch.AcceleratorError(self._capture._simulation.says(_NOT_PERMITTED))
        if name in _OF_SEVERAL:
            self._capture.failed = True
            raise not_simulated(
                "events or several streams in one graph",
                "capture the work of one stream",
            )
        return getattr(self._scheduler, name)

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
        if stream is not self._capture.stream.queue:
            self.__getattr__("wait_for")
        self._scheduler.elapse(host_ns)
        self._capture.nodes.append((engine, duration_ns, share, name))
        now_ns = self._scheduler.now_ns
        return Work(stream, engine, duration_ns, share, now_ns, 0, name)


def _written(func: Any, args: Any, options: dict[str, Any]) -> list[Any]:
    found: list[Any] = []
    for position, each in enumerate(func._schema.arguments):
        if each.alias_info is not None and each.alias_info.is_write:
            value = args[position] if position < len(args) else options.get(each.name)
            found += value if isinstance(value, (list, tuple)) else [value]
    return [each for each in found if each is not None]


def _storage(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


class CUDAGraph:
    """Work that is captured once and replayed as often as wanted."""

    _graphs: Graphs  # set in the subclass of each simulation
    _capture: Capture | None = None

    def __init__(self, keep_graph: bool = False) -> None:
        del keep_graph

    def __del__(self) -> None:
        self.reset()

    def capture_begin(self, pool: Any = None, *_: Any, **__: Any) -> None:
        """Capture the work of the current stream from now on."""
        self.reset()
        self._graphs.begin(pool)

    def capture_end(self) -> None:
        """End the capture; from now on it can be replayed."""
        self._capture = self._graphs.end()

    def register_generator_state(self, _: Any) -> None:
        """Nothing is left to do: each replay draws anew."""

    def replay(self) -> None:
        """Do the captured work once, on the current stream."""
        if self._graphs.capture is not None:
            raise not_simulated("graph within a graph", "replay it outside")
        self._captured().replay()

    def reset(self) -> None:
        """Forget the captured work."""
        capture, self._capture = self._capture, None
        if capture is not None:
            capture.forget()

    def pool(self) -> Any:
        """A token for the memory of this graph."""
        return self._captured().pool

    def _captured(self) -> Capture:
        if self._capture is None:
            raise RuntimeError(
                "Called CUDAGraph without a preceding successful capture."
            )
        return self._capture


class graph:  # noqa: N801 -- torch's own name
    """Capture the work of a `with` block."""

    _graphs: Graphs  # set in the subclass of each simulation
    _default: Any = None  # the stream where none is named

    def __init__(
        self, cuda_graph: Any, pool: Any = None, stream: Any = None, **_: Any
    ) -> None:
        self._graph, self._pool = cuda_graph, pool
        kind = type(self)
        if stream is None and kind._default is None:
            kind._default = self._graphs.torch_sim.as_mapping()["Stream"]()
        self._stream = stream or kind._default

    def __enter__(self) -> None:
        self._graphs.torch_sim.synchronize()
        self._graphs.torch_sim.empty_cache()
        with contextlib.ExitStack() as undo:
            undo.enter_context(self._stream)
            self._graph.capture_begin(self._pool)
            undo.pop_all()

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if kind is None:
                self._graph.capture_end()
            else:
                self._graphs.end(abandon=True)  # the block's own error says more
        finally:
            self._stream.__exit__(kind, *rest)
