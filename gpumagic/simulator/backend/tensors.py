"""Simulated device tensors: real torch tensors over the memory of a CPU tensor.

A tensor on `sim:1` is a plain `torch.Tensor`. Its storage points at the memory of a
CPU tensor, its *twin*, on which the numbers are computed. Views of it, parameters,
gradients and pickling are torch's own work; none of them needs a copy or a subclass.

What belongs to a storage hangs on its Python object: torch hands out the same one
as long as anything, in Python or C++, owns the storage, so that a weak reference to
it dies exactly when the memory is free. Such a death only appends to a queue; it may
come in the middle of anything.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import struct
import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch

from gpumagic.errors import DeviceError
from gpumagic.simulator.backend.registration import NAME
from gpumagic.simulator.hazards import Accesses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.simulator.allocator_blocks import Block
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.hazards import Operand
    from gpumagic.simulator.machine import SimulatedGpu, SimulatedStream

HOST, EXTENSION = 1, 12  # DLPack's numbers for kinds of devices
_FIXED = struct.Struct("<QiiiIQQQQQ")  # what does not grow with the dimensions
_LANES = 1 << 16
_CODES = {  # DLPack's for the kinds of types
    "int8 int16 int32 int64": 0,
    "uint8 uint16 uint32 uint64": 1,
    "float16 float32 float64": 2,
    "bfloat16": 4,
    "complex32 complex64 complex128": 5,
    "bool": 6,
}
_Kind = tuple[int, int, int, int]  # of device, its index, type, dimensions
# The bytes of a structure, how to fill in sizes, strides and pointer, where it lies.
_Form = tuple[bytearray, "Callable[..., None]", ctypes.c_void_p]


class Tensors:
    """Makes simulated tensors and finds their twins."""

    def __init__(
        self,
        device_type: str,
        gpu: Callable[[int], SimulatedGpu],
        kept: list[bytearray],
    ) -> None:
        self._gpu = gpu
        self._device_type = device_type
        maker = Maker(kept)
        self._make, self._types = maker.make, maker.types
        self._on_cpu = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
        aten = torch.ops.aten
        self._set = aten.set_.source_Storage_storage_offset._handle.redispatch_boxed
        self._view_as = aten.view.dtype._handle.redispatch_boxed
        # the storages that there are, by the identity of their record
        self.lives: dict[int, Life] = {}
        # those that have died and were not given back yet
        self.freed: collections.deque[Any] = collections.deque()
        self.wrap = self._wrapper()

    def _wrapper(self) -> Callable[..., Any]:
        """What makes a simulated tensor of a CPU tensor, which then belongs to it.

        On a stream's GPU, in a block of memory (None for nothing), which it is all of.
        """
        types, make, over_storage = self._types, self._make, self._over_storage
        died, lives = self.freed.append, self.lives
        # The host's address: programs are told another one, see below.
        pointer_of = torch._C.TensorBase.data_ptr

        def wrap(twin: Any, stream: SimulatedStream, block: Any, whole: Operand) -> Any:
            gpu = stream.gpu
            type_ = types.get(twin.dtype)
            if type_ and not twin.storage_offset():
                geometry = twin.size(), twin.stride()
                tensor = make(pointer_of(twin), EXTENSION, gpu.index, type_, *geometry)
            else:
                tensor = over_storage(twin, gpu.index)
            storage = tensor.untyped_storage()
            memory = Memory()
            memory.twin = twin
            memory.plain = True
            memory.gpu = gpu
            memory.accesses = accesses = whole[0]
            memory.whole = whole
            memory.life = life = Life(storage, died)
            storage._gpumagic = memory
            life.accesses = accesses
            life.block = block
            life.stream = stream
            life.recorded = ()
            lives[id(life)] = life
            return tensor

        return wrap

    def claimed(self, tensor: Any) -> Memory:
        """What a simulated tensor's storage is made of.

        torch's C++ builds some by itself, over our pointer: old pickles do that. The
        pointer is a host address, so its memory can be looked at.
        """
        memory = self.memory_of(tensor)
        if not memory:
            storage = tensor.untyped_storage()
            nbytes, uint8 = storage.nbytes(), self._types[torch.uint8]
            pointer = torch._C.StorageBase.data_ptr(storage)
            memory = Memory()
            memory.twin = self._make(pointer, HOST, 0, uint8, (nbytes,), (1,))
            memory.plain = False
            memory.gpu = self._gpu(tensor.device.index)
            memory.accesses = Accesses(nbytes)
            memory.whole = memory.accesses, 0, nbytes, None
            memory.life = life = Life(storage, self.freed.append)
            life.accesses, life.block, life.recorded = memory.accesses, None, ()
            life.stream = memory.gpu.default_stream
            self.lives[id(life)] = life
            storage._gpumagic = memory
        return memory

    def disown(self) -> None:
        """The machine is switched off: what lies on it is of no more use."""
        for life in tuple(self.lives.values()):
            storage = life()
            if storage is not None:
                storage._gpumagic.gpu = GoneGpu()

    def memory_of(self, tensor: Any) -> Memory | None:
        """What a tensor's storage is made of; None where it is not ours."""
        return getattr(tensor.untyped_storage(), "_gpumagic", None)

    def twin_of(self, tensor: Any) -> Any:
        """The CPU tensor with the same elements, in the same memory."""
        memory = self.claimed(tensor)
        return memory.twin if memory.plain else self.view_of_twin(tensor, memory.twin)

    def view_of_twin(self, tensor: Any, twin: Any) -> Any:
        """The twin, in the geometry of a tensor that may be a view of it."""
        size, stride = tensor.size(), tensor.stride()
        offset = tensor.storage_offset()
        if tensor.dtype is not twin.dtype:
            empty = torch.empty(0, dtype=tensor.dtype, device="cpu")
            twin = empty.set_(twin.untyped_storage(), offset, size, stride)
        elif (
            stride != twin.stride()
            or size != twin.size()
            or offset != twin.storage_offset()
        ):
            twin = twin.as_strided(size, stride, offset)
        # A view that conjugates or negates has a bit set and the same memory.
        if tensor.is_conj():
            twin = twin.conj()
        if tensor.is_neg():
            twin = torch._neg_view(twin)
        return twin

    def rebind(
        self, tensor: Any, storage: Any, offset: int, size: Any, stride: Any
    ) -> Any:
        """Let a tensor lie on another storage, in another geometry."""
        if memory := getattr(storage, "_gpumagic", None):
            memory.plain = False
        return self._set(self._on_cpu, tensor, storage, offset, size, stride)

    def _over_storage(self, twin: Any, index: int) -> Any:
        """A tensor in two steps, for what DLPack cannot say."""
        source = twin.untyped_storage()
        device = torch.device(self._device_type, index)
        storage = torch._C._construct_storage_from_data_pointer(
            source.data_ptr(), device, source.nbytes()
        )
        float32 = self._types[torch.float32]
        tensor = self._make(0, EXTENSION, index, float32, (0,), (1,))
        if twin.dtype is not torch.float32:
            tensor = self._view_as(self._on_cpu, tensor, twin.dtype)
        geometry = twin.storage_offset(), twin.size(), twin.stride()
        return self._set(self._on_cpu, tensor, storage, *geometry)


class Memory:
    """What a simulated storage is made of."""

    __slots__ = ("accesses", "gpu", "life", "plain", "twin", "whole")

    twin: Any  # the CPU tensor with the numbers
    plain: bool  # whether every tensor on this storage has the geometry of the twin
    gpu: SimulatedGpu  # the simulated GPU that it lies on
    accesses: Accesses  # who has read and written it
    whole: Operand  # all of it, as the tracker wants what is read or written
    life: Life  # what is to be given back at its end


class Life(weakref.ref[Any]):
    """Dies with a storage, and knows what is to be given back then."""

    __slots__ = ("accesses", "block", "recorded", "stream")

    accesses: Accesses
    block: Block | None  # None where there is nothing to give back
    recorded: tuple[int, ...]  # the orders of other streams that it was marked for
    stream: SimulatedStream


class GoneGpu:
    """In the place of the GPU of a machine that was switched off."""

    gone = True  # tells it from a GPU, of which everything else can be asked

    def __getattr__(self, name: str) -> Any:
        raise DeviceError(
            "this tensor lies on a simulated machine that was switched off",
            "make it again on the one that is on",
        )


def holds_either() -> Callable[[Any, Any], bool]:
    """The kernel that lets `tensor.data = other` take a tensor to the device, or away.

    Moving a module is such an assignment to each parameter, which so stays the object
    that it was, with its hooks and attributes. torch asks first whether both are made
    of one class in C++. Its list of devices for which dense tensors are leaves out
    those that are registered from Python, though they are no different.
    """
    keys_of, key = torch._C._dispatch_keys, torch._C.DispatchKey
    dense = key.CPU, key.PrivateUse1

    def kernel(tensor: Any, other: Any) -> bool:
        return all(any(map(keys_of(each).has, dense)) for each in (tensor, other))

    return kernel


def operand_of(tensor: Any, memory: Any) -> tuple[Operand, int]:
    """The bytes between the first and the last, and how many of them are touched.

    `memory` is that of its storage, on the device or pinned. An expanded dimension is
    read once: its elements are the same bytes.
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
    layout = None
    if touched != reach:
        layout = low, (*sizes,), (*(each * itemsize for each in strides),), itemsize
    return (memory.accesses, low, low + reach * itemsize, layout), nbytes


def simulated_addresses(simulation: Simulation) -> Iterator[tuple[Any, str, Any]]:
    """What to put in the place of torch's own while on: object, name, replacement.

    The storage of a simulated tensor points at host memory, where its numbers are.
    torch's C++ needs that pointer, and nobody else does: programs compare addresses,
    look them up in a memory snapshot, or see that memory was used again. So what is
    written in Python is told the address of the block in the simulated memory.
    """
    base, of_storage = torch._C.TensorBase, torch._C.StorageBase.data_ptr
    device_of, claimed = base.device.__get__, simulation.tensors.claimed

    def of_tensor(plain: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(plain)
        def data_ptr(self: Any) -> int:
            pointer = plain(self)  # first: it refuses what has no memory
            if not pointer or device_of(self).type != NAME:
                return pointer
            if not (block := claimed(self).life.block):
                return pointer
            offset_bytes: int = self.storage_offset() * self.element_size()
            return block.address + offset_bytes

        return data_ptr

    @functools.wraps(of_storage)
    def data_ptr(self: Any) -> int:
        pointer: int = of_storage(self)
        memory: Memory | None = getattr(self, "_gpumagic", None)
        if pointer and memory and memory.life.block:
            return memory.life.block.address
        return pointer

    for name in ("data_ptr", "const_data_ptr"):
        if hasattr(base, name):  # torch 2.11 has not both
            yield torch.Tensor, name, of_tensor(getattr(base, name))
    yield torch.UntypedStorage, "data_ptr", data_ptr


class Maker:
    """Makes tensors by DLPack.

    That hands a tensor over as a C structure: pointer, device, type, sizes, strides.
    One structure is kept for each kind of tensor, filled but for the pointer, the sizes
    and the strides, and for each thread: another may run between filling and handing
    over. torch reads a structure again when the storage dies, so none is ever given up.
    """

    def __init__(self, kept: list[bytearray]) -> None:
        self.types = {
            dtype: dtype.itemsize << 11 | code | _LANES
            for names, code in _CODES.items()
            for dtype in (getattr(torch, name) for name in names.split())
        }
        self._kept = kept  # until the process ends
        self._forms = _Forms()
        self._take = torch._C._from_dlpack
        self._capsule = ctypes.pythonapi["PyCapsule_New"]
        self._capsule.restype = ctypes.py_object
        self._capsule.argtypes = [ctypes.c_void_p] * 3  # the cheapest to convert
        self._word = ctypes.create_string_buffer(b"dltensor")
        self.make = self._maker(ctypes.cast(self._word, ctypes.c_void_p))

    def _maker(self, name: ctypes.c_void_p) -> Callable[..., Any]:
        """What makes a tensor, with all that it needs within reach."""
        forms, new_form, capsule = self._forms, self._new_form, self._capsule
        take = self._take

        def make(
            pointer: int, kind: int, index: int, type_: int, size: Any, stride: Any
        ) -> Any:
            which = kind, index, type_, len(size)
            form = forms.by_kind.get(which) or new_form(which)
            structure, fill, address = form
            fill(structure, 0, *size, *stride, pointer)
            return take(capsule(address, name, None))

        return make

    def _new_form(self, which: _Kind) -> _Form:
        kind, index, type_, dimensions = which
        # Sizes and strides lie in front, so that the pointer follows them.
        sizes_bytes = 8 * dimensions
        structure = bytearray(2 * sizes_bytes + _FIXED.size)
        array = (ctypes.c_char * len(structure)).from_buffer(structure)
        sizes = ctypes.addressof(array)
        strides, fixed = sizes + sizes_bytes, sizes + 2 * sizes_bytes
        about = 0, kind, index, dimensions, type_, sizes, strides, 0, 0, 0
        _FIXED.pack_into(structure, 2 * sizes_bytes, *about)
        fill = struct.Struct("<" + "q" * (2 * dimensions) + "Q").pack_into
        self._kept.append(structure)
        form = structure, fill, ctypes.c_void_p(fixed)
        self._forms.by_kind[which] = form
        return form


class _Forms(threading.local):
    """The structures of this thread, by kind."""

    def __init__(self) -> None:
        self.by_kind: dict[_Kind, _Form] = {}
        # The engine must run backward in the calling thread: it has one queue for a
        # device registered from Python, and would fail on the second GPU.
        torch.autograd.set_multithreading_enabled(False)
