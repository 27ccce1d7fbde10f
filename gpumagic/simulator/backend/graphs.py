"""CUDA graphs: operations that are recorded once, and replayed by one launch.

An operation is recorded with the twins of its arguments and of its results, so that a
replay is the same computation into the same memory; and with what it would launch.
During a capture torch computes as ever, for the shapes' sake; what was there before and
was written into is put back at the end. A graph is captured on one stream.
"""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree

from gpumagic.simulator.backend.call import tensors_in
from gpumagic.simulator.backend.operations import operator_mode
from gpumagic.simulator.backend.refusals import not_simulated
from gpumagic.simulator.backend.special import MADE
from gpumagic.simulator.scheduler import FULL_SHARE, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.hazards import Operand
    from gpumagic.simulator.machine import SimulatedStream
    from gpumagic.simulator.scheduler import Engine, Scheduler, Stream

    # an operator, its arguments as twins, and where its results belong by their place
    _Step = tuple[Callable[..., Any], Any, dict[str, Any], list[tuple[int, Any]]]

_NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"
_WAITS = ("wait_for", "wait_for_device", "busy", "done")
_OF_SEVERAL = ("record", "wait")
_READ_AT_REPLAY = ("copy_", "_to_copy")  # host memory; other host numbers go by value
_NO_NUMBERS = ("empty", "empty_like", "empty_strided", "new_empty", "record_stream")


def graph_names(simulation: Simulation) -> dict[str, Any]:
    """The names of `torch.cuda` that are about graphs; its `graph` stays as it is."""
    numbers = itertools.count(1)
    own = {"_simulation": simulation, "_numbers": numbers}
    return {
        "CUDAGraph": type("CUDAGraph", (CUDAGraph,), own),
        "graph_pool_handle": lambda: (0, next(numbers)),
        "is_current_stream_capturing": lambda: is_captured(
            simulation, simulation.stream(simulation.gpu())
        ),
    }


def is_captured(simulation: Simulation, stream: SimulatedStream) -> bool:
    """Whether a stream is being captured."""
    capture = simulation.capture
    return bool(capture and capture.stream is stream)


class CUDAGraph:
    """Work that is captured once and replayed as often as wanted."""

    _simulation: Simulation  # set in the subclass of each simulation
    _numbers: Iterator[int]
    stream: SimulatedStream
    _pool: Any = None  # None where nothing is captured
    failed = False

    def __init__(self, keep_graph: bool = False) -> None:
        """Nothing is captured yet."""

    def __del__(self) -> None:
        self.reset()

    def capture_begin(self, pool: Any = None, *_: Any, **__: Any) -> None:
        """Capture the work of the current stream from now on."""
        self.reset()
        simulation, machine = self._simulation, self._simulation.machine
        self.stream = stream = simulation.stream(simulation.gpu())
        if simulation.capture or stream is stream.gpu.default_stream:
            raise RuntimeError(
                simulation.says(
                    "CUDA graphs are captured one at a time, on a non-default stream"
                )
            )
        simulation.capture, self.failed = self, False
        self._pool = pool or (next(self._numbers), 0)
        self.nodes: list[tuple[Engine, int, int, str]] = []
        self._steps: list[_Step] = []
        self._made: dict[int, Any] = {}  # the bytes of a storage
        self._before: dict[int, tuple[Any, Any]] = {}  # bytes of a storage, and a copy
        self._touched: tuple[dict[int, Operand], ...] = {}, {}  # read, written
        sources = simulation.generators.values()
        self._random = [(each, each.get_state()) for each in sources]
        self._scheduler = machine.scheduler
        with simulation.books():
            stream.gpu.allocator.divert(
                self._pool, lambda number: number == stream.number
            )
        machine.scheduler = _Recorder(machine.scheduler, self)  # type: ignore[assignment]
        # The class of a mode is a circle, and would keep the graph alive.
        watch: Any = weakref.WeakMethod(self._watch)

        def look(func: Any, args: Any, options: dict[str, Any]) -> Any:
            return watch()(func, args, options)

        self._mode: Any = operator_mode(look)()
        self._mode.__enter__()

    def capture_end(self) -> None:
        """Put everything back that was there before; from now on it can be replayed.

        After a failure it cannot be: the block's own error says why.
        """
        simulation, simulation.capture = self._simulation, None
        self._mode.__exit__(None, None, None)
        simulation.machine.scheduler = self._scheduler
        with simulation.books() as tracker:
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
        if self.failed:
            self.reset()

    def register_generator_state(self, _: Any) -> None:
        """Nothing is left to do: each replay draws anew."""

    def reset(self) -> None:
        """It is not replayed again: its memory may serve others."""
        pool, self._pool = self._pool, None
        if pool:
            self.stream.gpu.allocator.release_pool(pool)
            self._steps.clear()

    def pool(self) -> Any:
        """A token for the memory of this graph."""
        if not self._pool:
            raise RuntimeError(
                "Called CUDAGraph without a preceding successful capture."
            )
        return self._pool

    def replay(self) -> None:
        """Compute everything again, and submit it to the current stream at once."""
        self.pool()
        simulation, gpu = self._simulation, self.stream.gpu
        if simulation.capture:
            raise not_simulated("graph within a graph", "replay it outside")
        source, default = simulation.generators[gpu.index], torch.default_generator
        host_state = default.get_state()
        default.set_state(source.get_state())
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            for compute, args, options, targets in self._steps:
                results = compute(*args, **options)
                leaves = _pytree.tree_leaves(results)
                for place, target in targets:
                    target.copy_(leaves[place])
        source.set_state(default.get_state())
        default.set_state(host_state)
        stream, scheduler = simulation.stream(gpu), simulation.machine.scheduler
        host, gap_ns = gpu.costs.host, scheduler.latencies.gap_ns
        node_ns = max(0, host.graph_node_ns - gap_ns)  # that gap is between any two
        read, written = self._touched
        reads = [each for key, each in read.items() if key not in written]
        with simulation.books() as tracker:
            scheduler.elapse(host.graph_replay_ns)
            for engine, duration_ns, share, name in self.nodes:
                each_ns = duration_ns + node_ns
                scheduler.launch(stream.queue, engine, each_ns, share, 0, name)
            here, writes = simulation.places.here(), [*written.values()]
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
        written = [
            each
            for at, declared in enumerate(func._schema.arguments)
            if declared.alias_info and declared.alias_info.is_write
            for each in tensors_in([*args[at : at + 1]] or options[declared.name])
        ]
        for each in written:
            key = _storage(each)
            if key not in self._before and key not in self._made:
                now = self._bytes(each)
                self._before[key] = now, now.clone()
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
        for among, tensors in zip(self._touched, (ours, made + written), strict=True):
            for memory in filter(None, map(self._memory, tensors)):
                among[id(memory.accesses)] = memory.whole
        if (given or made) and (fresh or written) and name not in _NO_NUMBERS:
            targets = [(place, self._twin(each)) for place, each in fresh]
            self._steps.append((MADE.get(name) or func, inner, named, targets))
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

    def _bytes(self, tensor: Any) -> Any:
        storage = self._twin(tensor).untyped_storage()
        nothing = torch.empty(0, dtype=torch.uint8, device="cpu")
        return nothing.set_(storage, 0, (storage.nbytes(),), (1,))


class _Recorder:
    """Stands in for the scheduler during a capture: the host alone goes on."""

    def __init__(self, scheduler: Scheduler, graph: CUDAGraph) -> None:
        self._scheduler, self._graph = scheduler, graph

    def __getattr__(self, name: str) -> Any:
        """Nobody may wait for the device, or ask it, while nothing runs there."""
        if name not in {*_WAITS, *_OF_SEVERAL}:
            return getattr(self._scheduler, name)
        self._graph.failed = True
        if name in _WAITS:
            raise torch.AcceleratorError(self._graph._simulation.says(_NOT_PERMITTED))
        raise not_simulated(
            "events, collectives or several streams in one graph",
            "capture the work of one stream",
        )

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
        if stream is not self._graph.stream.queue:
            self.__getattr__("wait_for")
        self._scheduler.elapse(host_ns)
        self._graph.nodes.append((engine, duration_ns, share, name))
        now_ns = self._scheduler.now_ns
        return Work(stream, engine, duration_ns, share, now_ns, 0, name)


def _storage(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)
