"""The classes for graphs, as `torch.cuda` offers them."""

from __future__ import annotations

import contextlib
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

        def __del__(self) -> None:
            self.reset()

        def capture_begin(
            self,
            pool: Any = None,
            capture_error_mode: str = "global",
            **_: Any,
        ) -> None:
            """Capture the work of the current stream from now on."""
            del capture_error_mode
            graphs.begin(pool)

        def capture_end(self) -> None:
            """End the capture; from now on it can be replayed."""
            self.reset()
            self._capture = graphs.end()
            graphs.warn_of_empty(self._capture)

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
            capture, self._capture = self._capture, None
            if capture is not None:
                capture.forget()

        def pool(self) -> Any:
            """A token for the memory of this graph."""
            if self._capture is None:
                raise RuntimeError(
                    "Called CUDAGraph::pool() without a preceding successful capture."
                )
            return self._capture.pool

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
            with contextlib.ExitStack() as undo:
                undo.enter_context(self._stream)
                self._graph.capture_begin(pool=self._pool)
                undo.pop_all()

        def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
            try:
                if kind is None:
                    self._graph.capture_end()
                else:
                    graphs.abandon()  # the block's own error says more
            finally:
                self._stream.__exit__(kind, *rest)

    graph.__qualname__ = graph.__name__
    graph.__module__ = "torch.cuda"
    return graph
