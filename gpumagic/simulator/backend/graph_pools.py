"""Pools of memory by their names: those of graphs, and `torch.cuda.MemPool`."""

from __future__ import annotations

import contextlib
import itertools
import threading
from typing import TYPE_CHECKING, Any

from gpumagic.simulator.backend.refusals import not_simulated
from gpumagic.simulator.backend.streams import index_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.simulator.allocator_pools import PoolId
    from gpumagic.simulator.backend.simulation import Simulation


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
        allocator = simulation.gpu(index_of(device, simulation.word)).allocator
        with simulation.books():
            allocator.divert(pool.id, lambda _: threading.get_ident() == thread)
        try:
            yield
        finally:
            with simulation.books():
                allocator.end_diversion(pool.id)
                allocator.release_pool(pool.id)

    return use_mem_pool
