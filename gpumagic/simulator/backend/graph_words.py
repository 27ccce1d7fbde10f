"""The classes for graphs, as `torch.cuda` offers them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.simulator.backend.refusals import not_simulated

if TYPE_CHECKING:
    from gpumagic.simulator.backend.graphs import Capture, Graphs


def graph_class(graphs: Graphs) -> type:  # noqa: C901 -- torch's class has as many methods
    """`torch.cuda.CUDAGraph`."""

    class CUDAGraph:
        """Work that is captured once and replayed as often as wanted."""

        def __init__(self, keep_graph: bool = False) -> None:
            del keep_graph
            self._capture: Capture | None = None
            self._pool: Any = None

        def capture_begin(
            self,
            pool: Any = None,
            capture_error_mode: str = "global",
            **_: Any,
        ) -> None:
            """Capture the work of the current stream from now on."""
            del capture_error_mode
            graphs.begin()
            self._pool = pool if pool is not None else graphs.pool_handle()

        def capture_end(self) -> None:
            """End the capture; from now on it can be replayed."""
            self._capture = graphs.end()

        def instantiate(self) -> None:
            """Nothing is left to do."""

        def register_generator_state(self, generator: Any) -> None:
            """Nothing is left to do: each generator goes on at each replay."""

        def replay(self) -> None:
            """Do the captured work once, on the current stream."""
            if self._capture is None:
                raise RuntimeError(
                    "Called CUDAGraph::replay without a preceding successful capture."
                )
            graphs.replay(self._capture)

        def reset(self) -> None:
            """Forget the captured work."""
            self._capture = None

        def pool(self) -> Any:
            """A token for the memory of this graph."""
            return self._pool

        def enable_debug_mode(self) -> None:
            """There is nothing to be dumped."""

        def debug_dump(self, debug_path: str) -> None:
            """Refused: there is no graph of the driver's to be written."""
            raise not_simulated(
                "CUDAGraph.debug_dump()", f"nothing was written to {debug_path}"
            )

    CUDAGraph.__qualname__ = CUDAGraph.__name__
    CUDAGraph.__module__ = "torch.cuda"
    return CUDAGraph


def block_class(graphs: Graphs) -> type:
    """`torch.cuda.graph`."""

    class graph:  # noqa: N801 -- torch's own name
        """Capture the work of a `with` block.

        Args:
            cuda_graph: What is to hold it.

            pool: Of another graph, with which it may share its memory.

            stream: Where to capture; None is one kept for that.
        """

        def __init__(
            self, cuda_graph: Any, pool: Any = None, stream: Any = None, **_: Any
        ) -> None:
            self._graph = cuda_graph
            self._pool = pool
            self._stream = stream or graphs.stream_for_capture()

        def __enter__(self) -> None:
            graphs.prepare()
            self._stream.__enter__()
            self._graph.capture_begin(pool=self._pool)

        def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
            try:
                self._graph.capture_end()
            except RuntimeError:
                if kind is None:
                    raise  # else the block's own error says more
            finally:
                self._stream.__exit__(kind, *rest)
            if kind is not None:
                self._graph.reset()

    graph.__qualname__ = graph.__name__
    graph.__module__ = "torch.cuda"
    return graph
