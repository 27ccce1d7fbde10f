"""Copies: on a GPU, between two, and between host and device; what waits, and why.

On the host side it matters whether memory is pinned. Only then can a copy go on
while Python does: with `non_blocking=True` it returns at once, and until something
has waited for the stream, the host must neither read what arrives nor overwrite what
leaves.

Pinned memory is a CPU tensor whose storage carries a mark. torch offers no way to
supply an allocator of pinned memory from Python. But the operators that pin, and that
ask for it, are ordinary ones: kernels for them on the CPU key are in force in every
thread, and gone when they are taken back. Nothing is really page-locked.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import types
import weakref
from typing import TYPE_CHECKING, Any

import torch

from gpumagic.simulator.backend.call import General
from gpumagic.simulator.backend.in_flight import PinnedBuffer, pinned_buffer
from gpumagic.simulator.backend.operations import Operation
from gpumagic.simulator.backend.refusals import not_simulated
from gpumagic.simulator.backend.registration import NAME, lies_there
from gpumagic.simulator.backend.tensors import operand_of
from gpumagic.simulator.operators import CAST, COPY, strided_rule
from gpumagic.simulator.scheduler import Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.simulator.backend.in_flight import Flights
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.hazards import Operand, Race
    from gpumagic.simulator.machine import SimulatedGpu

_NUMBERS = frozenset((bool, int, float, complex))
# So much pageable memory the driver takes at once, whatever the stream has to do.
_SENT_AT_ONCE_BYTES = 64 << 10
# The factories that can be asked for pinned memory, and the methods of a tensor.
_FACTORIES = (
    "arange", "empty", "empty_like", "empty_strided", "eye", "full", "full_like",
    "linspace", "logspace", "ones", "ones_like", "rand", "rand_like", "randint",
    "randint_like", "randn", "randn_like", "randperm", "tensor", "zeros", "zeros_like",
)  # fmt: skip
_METHODS = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros")
_LOOKED_AT = 64  # blocks, for one that is free
_RULES = {True: COPY, False: CAST}  # by whether both have one type


class Transfers:
    """The kernels of `copy_`, of one or of lists, `_to_copy`, `_local_scalar_dense`."""

    def __init__(self, simulation: Simulation, flights: Flights) -> None:
        self._simulation = simulation
        self._flights = flights
        self._type = simulation.device_type
        self._copy = Operation("aten::copy_")
        self._copy_lists = General(simulation, Operation("aten::_foreach_copy_"))
        self._empty_like = torch.ops.aten.empty_like.default
        self._pin = torch.ops.aten._pin_memory.default

    def copy_(self, target: Any, source: Any, non_blocking: bool = False) -> Any:
        """`target.copy_(source)`, whatever side each of them lies on.

        What is of another type or has gaps goes by way of another tensor on the device,
        as in torch's own: a type is changed there if the copy is not waited for.
        """
        simulation = self._simulation
        twin_of = simulation.tensors.twin_of
        if not isinstance(source, torch.Tensor):  # a number
            source = torch.scalar_tensor(source, dtype=target.dtype)
        if source.size() != target.size():  # lazy parameters have no shape
            like = functools.partial(torch.empty, device="meta")
            like(target.size()).copy_(like(source.size()))  # which says what is wrong
        to, from_ = self._gpu_of(target), self._gpu_of(source)
        if from_ and to:
            twin_of(target).copy_(self._on_device(to, from_, source, target))
        elif not target.numel():
            return target
        elif to:
            landed = self._landing(target, source, non_blocking=non_blocking)
            self._arrive(to, landed, source, non_blocking=non_blocking)
            with torch._C.DisableTorchFunctionSubclass():
                # it is under way now, and watched
                twin_of(landed).copy_(source)
            if landed is not target:
                self.copy_(target, landed)
        else:
            packed = self._packed(target, source, non_blocking=non_blocking)
            self._leave(from_, packed, target, non_blocking=non_blocking)
        return target

    def copy_all(self, targets: Any, sources: Any, non_blocking: bool = False) -> None:
        """`torch._foreach_copy_`: at once on one GPU, one by one between two sides."""
        if len({self._gpu_of(each) for each in (*targets, *sources)}) == 1:
            self._copy_lists(targets, sources, non_blocking)
            return
        for target, source in zip(targets, sources, strict=True):
            self.copy_(target, source, non_blocking)

    def to_copy(
        self,
        source: Any,
        *,
        dtype: Any = None,
        layout: Any = None,
        device: Any = None,
        pin_memory: Any = None,
        non_blocking: bool = False,
        memory_format: Any = None,
    ) -> Any:
        """`source.to(...)`, which always makes a new tensor."""
        simulation = self._simulation
        refuse_layout(layout)
        from_ = to = self._gpu_of(source)
        if device is not None:
            to = simulation.gpu(device.index) if device.type == self._type else None
        numbers = simulation.tensors.twin_of(source) if from_ else source
        simulation.foresee(numbers.numel() * (dtype or numbers.dtype).itemsize, to)
        target = self._empty_like(numbers, dtype=dtype, memory_format=memory_format)
        if to:
            target = simulation.place(target, to)
        elif non_blocking or pin_memory:
            target = self._pin(target)  # as on CUDA, so that it can arrive later
        return self.copy_(target, source, non_blocking)

    def item(self, source: Any) -> Any:
        """`source.item()`: a copy of one element, for which the host waits."""
        gpu = self._gpu_of(source)
        read, nbytes = self._operands(source)
        races = self._move(gpu, Engine.D2H, nbytes, read, (), waits=".item()")
        return self._seen(races, source).item()

    def _seen(self, races: Sequence[Race], source: Any) -> Any:
        """Tell of races; answers with what the reader gets to see."""
        simulation = self._simulation
        twin = simulation.tensors.twin_of(source)
        if races:
            simulation.tell(races)
            if simulation.poisons:
                return simulation.poisoned(twin)
        return twin

    # --------------------------------------------------------------- the ways

    def _landing(self, target: Any, source: Any, *, non_blocking: bool) -> Any:
        """Where it arrives on the device: the target, or what is then copied to it."""
        dtype = source.dtype if non_blocking else target.dtype
        if dtype is target.dtype and (target.is_contiguous() or _alike(target, source)):
            return target
        packed = torch.contiguous_format
        return self._empty_like(target, dtype=dtype, memory_format=packed)

    def _packed(self, target: Any, source: Any, *, non_blocking: bool) -> Any:
        """What leaves the device: the source, or a copy of it that has no gaps."""
        if source.dtype is target.dtype and _alike(target, source):
            return source
        if non_blocking and source.dtype is not target.dtype:
            source = self.to_copy(source, dtype=target.dtype)
        return source.expand_as(target).contiguous()

    def _on_device(
        self, to: SimulatedGpu, from_: SimulatedGpu, source: Any, target: Any
    ) -> Any:
        """From device to device; answers with what the reader gets to see.

        Between two it is on the source's stream, with a barrier to and from the other.
        """
        simulation, machine = self._simulation, self._simulation.machine
        read, nbytes = self._operands(source)
        written, written_bytes = self._operands(target)
        if to is not from_:
            stream, other = simulation.stream(from_), simulation.stream(to)
            with simulation.books():
                to.start()
                machine.wait(stream, other)
                races = self._move(from_, Engine.PEER, nbytes, read, written)
                machine.wait(other, stream)
            return self._seen(races, source)
        rule = None
        if source.dtype is not target.dtype or not (
            source.is_contiguous() and target.is_contiguous()
        ):
            rule = _RULES[source.dtype is target.dtype]
            if source.stride() != target.stride():
                rule = strided_rule(rule)
        races = simulation.launch(
            to,
            self._copy,
            (),
            read,
            written,
            nbytes,
            written_bytes,
            0.0,
            source.dtype,
            rule,
        )[1]
        twin = simulation.tensors.twin_of(source)
        return simulation.poisoned(twin) if races and simulation.poisons else twin

    def _arrive(
        self, gpu: SimulatedGpu, target: Any, source: Any, *, non_blocking: bool
    ) -> None:
        """From the host to a device."""
        buffer, waits = pinned_buffer(source), ""
        if not non_blocking:
            waits = "copy to the device"
        (read, _), (written, nbytes) = map(self._operands, (source, target))
        if not buffer and (waits or nbytes > _SENT_AT_ONCE_BYTES):
            waits = "copy from pageable memory"
        with self._simulation.books():
            races = self._move(gpu, Engine.H2D, nbytes, read, written, waits=waits)
            if buffer and not waits:
                self._flights.leave(source, buffer, self._simulation.stream(gpu))
        if races:
            self._simulation.tell(races)

    def _leave(
        self, gpu: SimulatedGpu, source: Any, target: Any, *, non_blocking: bool
    ) -> None:
        """From a device to the host."""
        buffer, waits, streams = pinned_buffer(target), "copy to the host", []
        if buffer and non_blocking:
            waits, streams = "", [self._simulation.stream(gpu)]
        (read, nbytes), (written, _) = map(self._operands, (source, target))
        pinned = bool(buffer)
        races = self._move(gpu, Engine.D2H, nbytes, read, written, waits, pinned=pinned)
        twin = self._seen(races, source)
        if buffer:
            self._flights.arrive(target, buffer, twin, *streams)
        else:
            target.copy_(twin)

    def _move(
        self, gpu: SimulatedGpu, engine: Engine, nbytes: int, read: Sequence[Operand],
        written: Sequence[Operand], waits: str = "", *, pinned: bool = True,
    ) -> Sequence[Race]:  # fmt: skip
        """Enter a copy by an engine of its own, on the current stream of a GPU.

        The host waits for it if that has a name. Pageable memory is no operand.
        """
        simulation, machine = self._simulation, self._simulation.machine
        stream, began_ns = simulation.stream(gpu), None
        staged = engine is Engine.H2D and not read
        with simulation.books() as tracker:
            if staged and waits:
                began_ns = machine.stage(stream, nbytes)
            gpu.copy(stream, engine, nbytes, pinned=pinned, staged=staged)
            here = simulation.places.here()
            races = tracker.operate(stream.order, read, written, here)
            if waits:
                machine.synchronize_stream(stream, waits, began_ns)
        return races

    # -------------------------------------------------------------- its parts

    def _gpu_of(self, tensor: Any) -> Any:
        if tensor.device.type != self._type:
            return None
        gpu = self._simulation.tensors.claimed(tensor).gpu
        return self._simulation.gpu(gpu.index)

    def _operands(self, tensor: Any) -> tuple[list[Operand], int]:
        """Its memory for the tracker, unless that is pageable, and its bytes."""
        if tensor.device.type == self._type:
            operand, nbytes = operand_of(
                tensor, self._simulation.tensors.claimed(tensor)
            )
            return [operand], nbytes
        if buffer := pinned_buffer(tensor):
            return [buffer.operand(tensor)], tensor.nbytes
        return [], tensor.nbytes


def _alike(one: Any, other: Any) -> bool:
    """Whether both have their elements in one order, without gaps."""
    if one.shape != other.shape or one.stride() != other.stride():
        contiguous = one.is_contiguous() and other.is_contiguous()
        return bool(contiguous and one.shape == other.shape)
    by_stride = sorted(range(one.dim()), key=one.stride, reverse=True)
    return bool(one.permute(by_stride).is_contiguous())


def refuse_layout(layout: Any) -> None:
    """Refuse by name the layouts that the simulated GPU does not know."""
    if layout is not None and str(layout) != "torch.strided":
        raise not_simulated(
            f"tensors of the layout {layout}",
            "use a dense tensor (.to_dense()), or work with this one on the CPU",
        )


def assigning() -> dict[str, Callable[..., Any]]:
    """`x[index] = 3` on the device: as on CUDA, the number begins on the host."""
    plain = torch.Tensor.__setitem__

    def __setitem__(self: Any, index: Any, value: Any) -> None:  # noqa: N807
        if type(value) in _NUMBERS and lies_there(self.untyped_storage()):
            value = torch.scalar_tensor(value, dtype=self.dtype, device="cpu")
        plain(self, index, value)

    return {"__setitem__": __setitem__}


class Pinning:
    """The kernels on the CPU key, while the simulator is on."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        aten = torch.ops.aten
        self._empty_like = aten.empty_like.default._op
        self._copy = aten.copy_.default._op
        # By size: blocks that torch would keep, each with its latest owner.
        self._blocks: dict[int, list[weakref.ref[PinnedBuffer]]] = {}

    def is_pinned(self, tensor: Any, device: Any = None) -> bool:  # noqa: ARG002
        """`tensor.is_pinned()`."""
        return bool(pinned_buffer(tensor))

    def pin(self, tensor: Any, device: Any = None) -> Any:  # noqa: ARG002
        """`tensor.pin_memory()` of one that is not: a marked copy."""
        pinned = self._empty_like(tensor)
        self._copy(pinned, tensor)
        storage = pinned.untyped_storage()
        buffer = storage._gpumagic_pinned = PinnedBuffer(storage)
        # Pinned memory is taken in powers of two, and used again if one is free.
        size = 1 << max(storage.nbytes() - 1, 0).bit_length()
        blocks = self._blocks.setdefault(size, [])
        free = [each for each in blocks[:_LOOKED_AT] if not each()][:1]
        for each in free:
            blocks.remove(each)
        blocks.append(weakref.ref(buffer))
        machine = self._simulation.machine
        if machine.gpus:
            elapse, costs = machine.scheduler.elapse, machine.gpus[0].costs
            # A thread that pins does it beside the program, which the clock is of.
            if threading.current_thread() is threading.main_thread():
                elapse(costs.host_copy_ns(pinned.nbytes))
            if not free:  # locking takes time
                elapse(costs.host_alloc_ns(size))
        return pinned


def pinning_in(owner: Any) -> dict[str, Callable[..., Any]]:
    """Factories of torch, or methods of a tensor, that pin what they make, by name.

    torch's own ask C++ for an allocator that cannot be supplied. Replacing the
    kernels beneath them would cost every CPU operation that needs new memory several
    microseconds; this costs a factory that is called from Python a fifth of one.
    """

    def pinning(original: Callable[..., Any]) -> Callable[..., Any]:
        def make(*args: Any, pin_memory: bool = False, **options: Any) -> Any:
            __tracebackhide__ = True
            made = original(*args, **options)
            if pin_memory:
                made = made.pin_memory()
            return made

        return make

    names = {torch: _FACTORIES, torch.Tensor: _METHODS}[owner]
    return {name: pinning(getattr(owner, name)) for name in names}


# ------------------------------------------- one program on several GPUs


def several_gpus(simulation: Simulation) -> Iterator[tuple[Any, str, Any]]:
    """What to put in the place of torch's own while on: object, name, replacement.

    A torch without CUDA lacks the C++ that spreads tensors over GPUs and collects them;
    what is written in Python on top of it is torch's own. As without NCCL, tensors are
    copied from GPU to GPU one after another, each on the current stream of its source.
    """
    copies, core = _Copies(simulation), torch._C
    for name in ("broadcast", "broadcast_coalesced", "scatter", "gather"):
        yield core, f"_{name}", getattr(copies, name)
    yield torch.cuda.nccl, "is_available", lambda _: False  # copied and added instead
    stream_of = functools.cache(torch.Stream)

    def get_stream(device: Any) -> Any:
        if device.type != "cpu":
            return stream_of(simulation.gpu(device.index).index)
        return None

    yield torch.nn.parallel._functions, "_get_stream", get_stream
    replicas = sys.modules["torch.nn.parallel.parallel_apply"]  # hidden by its function
    in_turn = types.SimpleNamespace(Thread=_InTurn, Lock=threading.Lock)
    yield replicas, "threading", in_turn
    if torch.distributed.is_available():
        from gpumagic.simulator.backend.process_groups import process_groups

        yield from process_groups(simulation)


class _InTurn(threading.Thread):
    """A thread of a replica that has ended when it was started.

    How several share Python's lock is up to chance: so each run takes the same time.
    """

    def start(self) -> None:
        super().start()
        self.join()


class _Copies:
    """Spreads tensors over GPUs, and collects them."""

    def __init__(self, simulation: Simulation) -> None:
        self._gpu = simulation.gpu

    def _on(self, index: int | None) -> Any:
        return torch.device(NAME, self._gpu(index).index)

    def broadcast(self, tensor: Any, devices: Sequence[int]) -> list[Any]:
        return [tensor.to(self._on(each), non_blocking=True) for each in devices]

    def broadcast_coalesced(
        self, tensors: Sequence[Any], devices: Sequence[int], buffer_size: int
    ) -> list[list[Any]]:
        """All of these tensors on each GPU, sent in a few large pieces."""
        from torch import _utils

        copies: list[dict[int, Any]] = [{} for _ in devices[1:]]
        for chunk in _utils._take_tensors(tensors, buffer_size):
            flat = _utils._flatten_dense_tensors(chunk)
            for own, sent in zip(
                copies, self.broadcast(flat, devices)[1:], strict=True
            ):
                # They share memory, and nobody is told: each has its own version.
                parts = _utils._unflatten_dense_tensors(sent, chunk)
                own.update(zip(map(id, chunk), (p.data for p in parts), strict=True))
        return [[*tensors], *([own[id(each)] for each in tensors] for own in copies)]

    def scatter(
        self, tensor: Any, devices: Sequence[int], sizes: Any, dim: int, streams: Any
    ) -> list[Any]:
        """A part of the tensor on each GPU."""
        chunks = tensor.chunk(len(devices), dim)
        if sizes:
            chunks = tensor.split([*sizes], dim)
        streams, parts = streams or [None] * len(devices), []
        for chunk, index, stream in zip(chunks, devices, streams, strict=False):
            with stream or contextlib.nullcontext():
                parts.append(chunk.to(self._on(index), non_blocking=True))
        return parts

    def gather(self, tensors: Sequence[Any], dim: int, destination: int | None) -> Any:
        """These tensors behind each other, on one GPU or on the CPU."""
        if any(each.get_device() == -1 for each in tensors):
            raise RuntimeError("gather expects all tensors to be on a GPU")
        shape = [*tensors[0].shape]
        shape[dim] = sum(each.size(dim) for each in tensors)
        device = "cpu" if destination == -1 else self._on(destination)
        result = torch.empty(shape, dtype=tensors[0].dtype, device=device)
        chunks = result.split_with_sizes([each.size(dim) for each in tensors], dim)
        for chunk, each in zip(chunks, tensors, strict=True):
            chunk.copy_(each, non_blocking=destination != -1)
        return result
