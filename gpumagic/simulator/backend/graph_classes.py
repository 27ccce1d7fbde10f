"""The classes for graphs, as torch offers them; each simulation has its own."""

from __future__ import annotations

import contextlib
import types
from typing import TYPE_CHECKING, Any

from gpumagic.simulator.backend.refusals import not_simulated

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpumagic.simulator.backend.generators import RandomState, SeedAndOffset
    from gpumagic.simulator.backend.graphs import Capture, Graphs

_CUDA, _ACCELERATOR = "torch.cuda.graphs", "torch.accelerator.graphs"
_ERROR_MODES = ("default", "global", "thread_local", "relaxed")
_OF_THE_DRIVER = "the graph can be captured and replayed"


class CUDAGraph:
    """Work that is captured once and replayed as often as wanted.

    Args:
        keep_graph: Makes no difference here: there is no graph of the driver's.
    """

    _graphs: Graphs  # set in the subclass of each simulation
    _capture: Capture | None = None
    _watches_inputs = False
    _random: Mapping[RandomState, SeedAndOffset] = types.MappingProxyType({})

    def __init__(self, keep_graph: bool = False) -> None:
        del keep_graph

    def __del__(self) -> None:
        self._forget()

    def capture_begin(
        self,
        pool: Any = None,
        capture_error_mode: str = "global",
        check_input_liveness: bool = False,
    ) -> None:
        """Capture the work of the current stream from now on."""
        if self._capture is not None:
            raise RuntimeError(
                "This CUDAGraph instance already owns a captured graph. To capture a "
                "new graph, create a new instance."
            )
        if capture_error_mode not in _ERROR_MODES:
            raise RuntimeError(
                f"Unknown capture error mode. Expected {', '.join(_ERROR_MODES[1:])}, "
                f"got {capture_error_mode}"
            )
        self._graphs.require_none()
        self.register_generator_state(None)
        self._graphs.begin(pool)
        self._watches_inputs = check_input_liveness

    def capture_end(self) -> None:
        """End the capture; from now on it can be replayed."""
        self._capture = self._graphs.end()
        self._graphs.warn_of_empty(self._capture)

    def instantiate(self) -> None:
        """Nothing is left to do."""

    def register_generator_state(self, generator: Any) -> None:
        """Take two small blocks for a generator, as long as this object lives.

        They are all that it needs: each generator goes on at each replay.
        """
        state = self._graphs.random_state(generator)
        self._random = {**self._random, state: state.blocks_for_graphs()}

    def replay(self) -> None:
        """Do the captured work once, on the current stream."""
        if self._capture is None:
            raise RuntimeError(
                "Called CUDAGraph::replay without a preceding successful capture."
            )
        if self._watches_inputs:
            self._capture.require_inputs()
        self._graphs.replay(self._capture)

    def reset(self) -> None:
        """Forget the captured work."""
        self._forget()

    def pool(self) -> Any:
        """A token for the memory of this graph."""
        if self._capture is None:
            raise RuntimeError(
                "Called CUDAGraph::pool() without a preceding successful capture."
            )
        return self._capture.pool

    def pools(self) -> list[Any]:
        """The tokens of all its memory: there is one."""
        return [self.pool()]

    def enable_debug_mode(self) -> None:
        """There is nothing to be dumped."""

    def debug_dump(self, debug_path: str) -> None:
        """Refused: there is no graph of the driver's to be written."""
        raise not_simulated(
            "CUDAGraph.debug_dump()", f"nothing was written to {debug_path}"
        )

    def raw_cuda_graph(self) -> int:
        """Refused: there is no graph of the driver's."""
        raise not_simulated("CUDAGraph.raw_cuda_graph()", _OF_THE_DRIVER)

    def raw_cuda_graph_exec(self) -> int:
        """Refused: there is no graph of the driver's."""
        raise not_simulated("CUDAGraph.raw_cuda_graph_exec()", _OF_THE_DRIVER)

    def get_graph_data(self) -> dict[str, Any]:
        """Refused: there is no graph of the driver's."""
        raise not_simulated("CUDAGraph.get_graph_data()", _OF_THE_DRIVER)

    def _forget(self) -> None:
        capture, self._capture = self._capture, None
        if capture is not None:
            capture.forget()


class Graph(CUDAGraph):
    """`torch.accelerator.Graph`, which is a block of its own."""

    def __init__(
        self,
        keep_graph: bool = False,
        *,
        pool: Any = None,
        capture_error_mode: str = "default",
    ) -> None:
        super().__init__(keep_graph)
        self.graph_pool = pool
        self.capture_error_mode = capture_error_mode

    def capture_begin(self) -> None:  # type: ignore[override]  # as torch has it
        """Capture the work of the current stream from now on."""
        super().capture_begin(self.graph_pool, self.capture_error_mode)

    def __enter__(self) -> None:
        self._graphs.prepare()
        self.capture_begin()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.capture_end()
        else:
            self._graphs.abandon()


class graph:  # noqa: N801 -- torch's own name
    """Capture the work of a `with` block.

    Args:
        cuda_graph: What is to hold it.

        pool: Of another graph, with which it may share its memory.

        stream: Where to capture; None is one kept for that.

        capture_error_mode: Makes no difference to one thread.

        enable_annotations: Refused: they need a graph of the driver's.

        check_input_liveness: Whether a replay says that an input is gone.
    """

    _graphs: Graphs  # set in the subclass of each simulation

    def __init__(
        self,
        cuda_graph: Any,
        pool: Any = None,
        stream: Any = None,
        capture_error_mode: str = "global",
        enable_annotations: bool = False,
        check_input_liveness: bool = False,
    ) -> None:
        if enable_annotations:
            raise not_simulated("annotated graphs", "leave enable_annotations out")
        self._graph = cuda_graph
        self._stream = stream or self._graphs.stream_for_capture()
        self._options = {"pool": pool, "capture_error_mode": capture_error_mode}
        if check_input_liveness:
            self._options["check_input_liveness"] = True

    def __enter__(self) -> None:
        self._graphs.prepare()
        with contextlib.ExitStack() as undo:
            undo.enter_context(self._stream)
            self._graph.capture_begin(**self._options)
            undo.pop_all()

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if kind is None:
                self._graph.capture_end()
            else:
                self._graphs.abandon()  # the block's own error says more
        finally:
            self._stream.__exit__(kind, *rest)


def graph_classes(graphs: Graphs) -> dict[str, type]:
    """The classes of one simulation, by their names in `torch.cuda` and elsewhere."""
    own = {"_graphs": graphs}
    return {
        "CUDAGraph": type("CUDAGraph", (CUDAGraph,), {**own, "__module__": _CUDA}),
        "graph": type("graph", (graph,), {**own, "__module__": _CUDA}),
        "Graph": type("Graph", (Graph,), {**own, "__module__": _ACCELERATOR}),
    }
