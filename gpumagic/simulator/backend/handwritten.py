"""Kernels that the general one cannot be: memory, geometry, streams."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from gpumagic.simulator.backend.books import return_block
from gpumagic.simulator.backend.call import General
from gpumagic.simulator.backend.operations import Operation
from gpumagic.simulator.backend.refusals import NO_SPARSE, not_simulated, refusing
from gpumagic.simulator.backend.registration import lies_there
from gpumagic.simulator.backend.special import names_in, overload_of
from gpumagic.simulator.backend.transfers import refuse_layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.machine import SimulatedGpu

# They change which elements a tensor names. torch's own C++ does that for any device,
# reached by redispatching to the CPU with the simulated tensor itself.
_GEOMETRY = names_in(
    "as_strided as_strided_ view view.dtype unfold _reshape_alias _unsafe_view"
    " view_as_real view_as_complex is_set_to _conj _neg_view set_.source_Storage"
    " set_.source_Storage_storage_offset set_.source_Tensor"
)
_NOT_DENSE = names_in(
    "_nested_tensor_from_tensor_list _nested_tensor_from_mask _nested_from_padded"
    " _nested_view_from_buffer quantize_per_tensor"
)
# They write by index, and may be given a number that lies on the host.
_ASSIGNING = ("index_put_", "_index_put_impl_")
_MOST_BYTES = (1 << 63) - 1


def handwritten(simulation: Simulation) -> dict[str, Callable[..., Any]]:
    """The kernels by the names of their operators."""
    memory = _Memory(simulation)
    return {
        "empty.memory_format": memory.empty,
        "empty_strided": memory.empty_strided,
        "resize_": memory.resize_,
        "_efficientzerotensor": memory.zeros,
        "record_stream": memory.record_stream,
        **{name: _index_put(simulation, name) for name in _ASSIGNING},
        # An encoder takes no padding out, for there are no nested tensors.
        "_nested_tensor_from_mask_left_aligned": lambda *_: False,
        **dict.fromkeys(_NOT_DENSE, refusing(*NO_SPARSE)),
        **{name: _geometry(name) for name in _GEOMETRY},
    }


def _geometry(name: str) -> Callable[..., Any]:
    redispatch = overload_of(f"aten::{name}")._handle.redispatch_boxed
    core = torch._C
    on_cpu = core.DispatchKeySet(core.DispatchKey.CPU)
    tensor = torch.Tensor

    def kernel(*args: Any, **options: Any) -> Any:
        for each in args[:2]:  # the second is what `set_` takes its memory from
            storage = each.untyped_storage() if isinstance(each, tensor) else each
            if memory := getattr(storage, "_gpumagic", None):
                memory.plain = False
        return redispatch(on_cpu, *args, **options)

    return kernel


class _Memory:
    """Kernels that make memory, or change how much there is."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def empty(
        self, size: Any, dtype: Any = None, layout: Any = None, device: Any = None,
        pin_memory: Any = None, memory_format: Any = None,
    ) -> Any:  # fmt: skip
        """`torch.empty`, and through it most other factories."""
        __tracebackhide__ = True
        gpu = self._where(size, dtype, layout, device, pin_memory)
        memory_format = memory_format or torch.contiguous_format
        named = {"dtype": dtype, "device": "cpu", "memory_format": memory_format}
        return self._simulation.place(torch.empty(size, **named), gpu, made=True)

    def empty_strided(
        self, size: Any, stride: Any, dtype: Any = None, layout: Any = None,
        device: Any = None, pin_memory: Any = None,
    ) -> Any:  # fmt: skip
        """`torch.empty_strided`."""
        __tracebackhide__ = True
        gpu = self._where(size, dtype, layout, device, pin_memory)
        twin = torch.empty_strided(size, stride, dtype=dtype, device="cpu")
        return self._simulation.place(twin, gpu, made=True)

    def zeros(self, *args: Any, **options: Any) -> Any:
        """`_efficientzerotensor`, which is a plain one full of zeros here."""
        return self.empty(*args, **options).zero_()

    def resize_(self, tensor: Any, size: Any, memory_format: Any = None) -> Any:
        """Change the shape, in new memory where the old is too small."""
        simulation = self._simulation
        count, offset = math.prod(size), tensor.storage_offset()
        storage = tensor.untyped_storage()
        needed = (count + offset) * tensor.element_size()
        if count and needed > storage.nbytes():
            gpu = simulation.gpu(tensor.device.index)
            simulation.foresee(needed, gpu)
            larger = torch.empty(count + offset, dtype=tensor.dtype, device="cpu")
            old = simulation.tensors.claimed(tensor).twin
            kept = torch.empty(0, dtype=tensor.dtype, device="cpu")
            kept.set_(old.untyped_storage())
            larger[: kept.numel()].copy_(kept)
            storage = simulation.place(larger, gpu).untyped_storage()
        memory_format = memory_format or torch.contiguous_format
        stride = torch.empty(size, device="meta", memory_format=memory_format).stride()
        return simulation.tensors.rebind(tensor, storage, offset, size, stride)

    def record_stream(self, tensor: Any, stream: Any) -> None:
        """Keep the memory, once it is free, until this stream is done with it."""
        simulation = self._simulation
        memory = simulation.tensors.claimed(tensor)
        life, used_by = memory.life, memory.gpu.streams.get(stream.stream_id)
        if life.block and used_by:
            with simulation.books():
                memory.gpu.allocator.record_stream(life.block, used_by.number)
                life.recorded = (*life.recorded, used_by.order)

    def _where(
        self, size: Any, dtype: Any, layout: Any, device: Any, pin_memory: Any
    ) -> SimulatedGpu:
        """The GPU, which this machine's RAM has to hold so much more of."""
        __tracebackhide__ = True
        refuse_layout(layout)
        if pin_memory:
            raise RuntimeError("Only dense CPU tensors can be pinned")
        nbytes = (dtype or torch.get_default_dtype()).itemsize * math.prod(size)
        if nbytes > _MOST_BYTES:
            raise RuntimeError(
                f"Storage size calculation overflowed with sizes={[*size]}"
            )
        gpu = self._simulation.gpu(getattr(device, "index", None))
        self._simulation.foresee(nbytes, gpu)
        return gpu


def _index_put(simulation: Simulation, name: str) -> Callable[..., Any]:
    """A number from the host is copied over, except to where a mask says so."""
    general = General(simulation, Operation(f"aten::{name}"))
    tensor, booleans = torch.Tensor, (torch.bool,)
    ops = torch.ops.aten

    def kernel(
        target: Any, indices: Any, value: Any, accumulate: bool = False, *more: bool
    ) -> Any:
        if value.dim() or lies_there(value.untyped_storage()):
            return general(target, indices, value, accumulate, *more)
        given = [each for each in indices if isinstance(each, tensor)]
        if not accumulate and len(given) == 1 and given[0].dtype in booleans:
            (mask,) = given
            if indices[0] is mask and lies_there(mask.untyped_storage()):
                gaps = (1,) * (target.dim() - mask.dim())
                fitting = mask.view(*mask.shape, *gaps)
                return target.masked_fill_(fitting, value.item())
        there = ops._to_copy.default(value, device=target.device)
        return general(target, indices, there, accumulate, *more)

    return kernel


def resized_storages(simulation: Simulation) -> Iterator[tuple[Any, str, Any]]:
    """What to put in the place of torch's own while on: object, name, replacement.

    FSDP empties storages that it will gather again. torch's C++ cannot resize memory
    that it was handed: what changes is the simulated memory, and the twin keeps the
    bytes that it was made with.
    """
    storage = torch.UntypedStorage
    original, capacity = storage.resize_, torch._C.StorageBase.nbytes

    def resize_(storage: Any, nbytes: int) -> Any:
        memory = getattr(storage, "_gpumagic", None)
        if not memory:
            return original(storage, nbytes)
        if nbytes > capacity(storage):
            raise not_simulated(
                "storages that become larger than they were made",
                "let tensor.resize_(...) do it",
            )
        if nbytes == storage.nbytes():
            return storage
        life, stream = memory.life, simulation.stream(memory.gpu)
        with simulation.books() as tracker:
            block, accesses = None, memory.accesses
            if nbytes:
                block, accesses = simulation.take(nbytes, memory.gpu, stream)
            return_block(tracker, life)
            memory.accesses = life.accesses = accesses
            memory.whole = accesses, 0, nbytes, None
            life.block, life.stream, life.recorded = block, stream, ()
        storage._gpumagic_nbytes = nbytes
        return storage

    def asking(original: Callable[[Any], int]) -> Callable[[Any], int]:
        def size(self: Any) -> int:
            if hasattr(self, "_gpumagic_nbytes"):
                return int(self._gpumagic_nbytes)
            return original(self)

        return size

    yield storage, "resize_", resize_
    for name in ("nbytes", "size", "__len__"):
        yield storage, name, asking(getattr(storage, name))
