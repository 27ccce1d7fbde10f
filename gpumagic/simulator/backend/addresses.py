"""Where simulated tensors lie: addresses, the bytes that a view touches, sizes.

The storage of a simulated tensor points at host memory, where its numbers are. torch's
C++ needs that pointer, and nobody else does: programs compare addresses, look them up
in a memory snapshot, or see that memory was used again. So what is written in Python
is told the address of the block in the simulated memory. Nothing is there to be read,
as little as the host can read a GPU's memory by its address.

FSDP empties storages that it will gather again. torch's C++ cannot resize memory that
it was handed: what changes is the simulated memory, and the twin keeps the bytes that
it was made with. What was given up holds NaN, or -1 in integers.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Protocol

import torch

from gpumagic.simulator.backend.books import return_block
from gpumagic.simulator.backend.refusals import not_simulated
from gpumagic.simulator.backend.registration import NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.backend.tensors import Memory
    from gpumagic.simulator.hazards import Accesses, Operand


_GIVEN_UP = 0xFF


class Accessed(Protocol):
    """Memory whose accesses are followed."""

    accesses: Accesses


def operand_of(tensor: Any, memory: Accessed) -> tuple[Operand, int]:
    """The bytes between the first and the last, and how many of them are touched.

    An expanded dimension is read once: its elements are the same bytes.
    """
    itemsize = tensor.element_size()
    low = tensor.storage_offset() * itemsize
    if tensor.is_contiguous():  # nearly all are
        nbytes = tensor.numel() * itemsize
        return (memory.accesses, low, low + nbytes, None), nbytes
    sizes, strides = tensor.size(), tensor.stride()
    reach = touched = 1
    for size, stride in zip(sizes, strides, strict=True):
        if size == 0:
            return (memory.accesses, low, low, None), 0
        reach += (size - 1) * stride
        touched *= size if stride else 1
    nbytes = min(touched, reach) * itemsize
    dense = touched == reach
    layout = (
        None
        if dense
        else (low, (*sizes,), (*(stride * itemsize for stride in strides),), itemsize)
    )
    return (memory.accesses, low, low + reach * itemsize, layout), nbytes


def simulated_addresses(simulation: Simulation) -> Iterator[tuple[Any, str, Any]]:
    """What to put in the place of torch's own while on: object, name, replacement."""
    base, of_storage = torch._C.TensorBase, torch._C.StorageBase.data_ptr
    device_of, claimed = base.device.__get__, simulation.tensors.claimed

    def of_tensor(plain: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(plain)
        def data_ptr(self: Any) -> int:
            pointer = plain(self)  # first: it refuses what has no memory
            if not pointer or device_of(self).type != NAME:
                return pointer
            begins = _base(claimed(self))
            if begins is None:
                return pointer
            offset_bytes: int = self.storage_offset() * self.element_size()
            return begins + offset_bytes

        return data_ptr

    @functools.wraps(of_storage)
    def data_ptr(self: Any) -> int:
        pointer: int = of_storage(self)
        begins = _base(getattr(self, "_gpumagic", None)) if pointer else None
        return pointer if begins is None else begins

    for name in ("data_ptr", "const_data_ptr"):
        if hasattr(base, name):  # torch 2.11 has not both
            yield torch.Tensor, name, of_tensor(getattr(base, name))
    yield torch.UntypedStorage, "data_ptr", data_ptr


def _base(memory: Memory | None) -> int | None:
    """Where the block of a storage begins; None where it has none."""
    block = None if memory is None or memory.life is None else memory.life.block
    address: int | None = None if block is None else block.address
    return address


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
