"""Storages that change their size: FSDP empties those that it will gather again.

torch's C++ cannot resize memory that it was handed. What changes is the simulated
memory; the twin keeps the bytes that it was made with, which is as large as the
storage can become again. What was given up holds NaN, or -1 in integers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gpumagic.simulator.backend.books import return_block
from gpumagic.simulator.backend.refusals import not_simulated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.simulator.backend.simulation import Simulation

_GIVEN_UP = 0xFF


def resized_storages(simulation: Simulation) -> Iterator[tuple[Any, str, Any]]:
    """What to put in the place of torch's own while on: object, name, replacement."""
    storage = torch.UntypedStorage
    original, capacity = storage.resize_, torch._C.StorageBase.nbytes

    def resize_(storage: Any, nbytes: int) -> Any:
        memory = getattr(storage, "_gpumagic", None)
        if memory is None or memory.life is None:
            return original(storage, nbytes)
        if nbytes > capacity(storage):
            raise not_simulated(
                "storages that become larger than they were made",
                "let tensor.resize_(...) do it",
            )
        if nbytes != storage.nbytes():
            _change(simulation, memory, nbytes)
            storage._gpumagic_nbytes = nbytes
        return storage

    yield storage, "resize_", resize_
    for name in ("nbytes", "size", "__len__"):
        yield storage, name, _asking(getattr(storage, name))


def _asking(original: Callable[[Any], int]) -> Callable[[Any], int]:
    """How large a storage is, by what it was resized to."""

    def size(self: Any) -> int:
        resized: int | None = getattr(self, "_gpumagic_nbytes", None)
        return original(self) if resized is None else resized

    return size


def _change(simulation: Simulation, memory: Any, nbytes: int) -> None:
    """Another block, with what fits of the old one's numbers."""
    gpu, life = memory.gpu, memory.life
    stream = simulation.stream(gpu)
    memory.twin.untyped_storage()[nbytes:].fill_(_GIVEN_UP)
    with simulation.books() as tracker:
        block, accesses = None, memory.accesses
        if nbytes:
            block, accesses = simulation.take(nbytes, gpu, stream)
        return_block(tracker, life)
        memory.accesses = life.accesses = accesses
        memory.whole = accesses, 0, nbytes, None
        life.block, life.stream, life.recorded = block, stream, ()
