"""Copies: on a GPU, between two, and between host and device; what waits, and why.

On the host side it matters whether memory is pinned. Only then can a copy go on
while Python does: with `non_blocking=True` it returns at once, and until something
has waited for the stream, the host must neither read what arrives nor overwrite what
leaves.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from gpumagic.simulator.backend.addresses import operand_of
from gpumagic.simulator.backend.call import General
from gpumagic.simulator.backend.operations import Operation
from gpumagic.simulator.backend.pinning import pinned_buffer
from gpumagic.simulator.backend.registration import lies_there
from gpumagic.simulator.operators import CAST, COPY, strided_rule
from gpumagic.simulator.scheduler import Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpumagic.simulator.backend.in_flight import Flights
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.hazards import Operand, Race
    from gpumagic.simulator.machine import SimulatedGpu
    from gpumagic.simulator.operators import Rule


# So much pageable memory the driver takes at once, whatever the stream has to do.
_NUMBERS = frozenset((bool, int, float, complex))
_SENT_AT_ONCE_BYTES = 64 << 10


class Transfers:
    """The kernels of `copy_`, of one or of lists, `_to_copy`, `_local_scalar_dense`."""

    def __init__(self, simulation: Simulation, flights: Flights) -> None:
        self._simulation = simulation
        self._flights = flights
        self._type = simulation.device_type
        self._copy = Operation("aten::copy_")
        lists = Operation("aten::_foreach_copy_")
        self._copy_lists = General(simulation, lists)
        self._empty_like = torch.ops.aten.empty_like.default
        self._pin = torch.ops.aten._pin_memory.default

    def copy_(self, target: Any, source: Any, non_blocking: bool = False) -> Any:
        """`target.copy_(source)`, whatever side each of them lies on.

        What is of another type or has gaps goes by way of another tensor on the device,
        as in torch's own: a type is changed there if the copy is not waited for.
        """
        simulation = self._simulation
        if not isinstance(source, torch.Tensor):  # a number
            source = torch.scalar_tensor(source, dtype=target.dtype)
        if source.size() != target.size():  # lazy parameters have no shape
            _require_fit(target, source)
        to, from_ = self._gpu_of(target), self._gpu_of(source)
        if from_ and to:
            numbers = simulation.tensors.twin_of(source)
            sent = self._on_device(to, from_, source, target, numbers)
            simulation.tensors.twin_of(target).copy_(sent)
        elif not target.numel():
            return target
        elif to:
            landed = self._landing(target, source, non_blocking=non_blocking)
            sent = self._arrive(to, landed, source, non_blocking=non_blocking)
            with torch._C.DisableTorchFunctionSubclass():
                # it is under way now, and watched
                simulation.tensors.twin_of(landed).copy_(sent)
            if landed is not target:
                self.copy_(target, landed)
        else:
            packed = self._packed(target, source, non_blocking=non_blocking)
            self._leave(from_, packed, target, non_blocking=non_blocking)
        return target

    def copy_all(self, targets: Any, sources: Any, non_blocking: bool = False) -> None:
        """`torch._foreach_copy_`: at once on one GPU, one by one between two sides."""
        gpus = {self._gpu_of(each) for each in (*targets, *sources)}
        if len(gpus) == 1:
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
        from_ = self._gpu_of(source)
        to = from_
        if device is not None:
            to = simulation.gpu(device.index) if device.type == self._type else None
        numbers = simulation.tensors.twin_of(source) if from_ else source
        simulation.foresee(numbers.numel() * (dtype or numbers.dtype).itemsize, to)
        target = self._empty_like(numbers, dtype=dtype, memory_format=memory_format)
        if to is not None:
            target = simulation.place(target, to)
        elif non_blocking or pin_memory:
            target = self._pin(target)  # as on CUDA, so that it can arrive later
        return self.copy_(target, source, non_blocking)

    def item(self, source: Any) -> Any:
        """`source.item()`: a copy of one element, for which the host waits."""
        simulation = self._simulation
        gpu = self._gpu_of(source)
        twin = simulation.tensors.twin_of(source)
        operand, nbytes = self._operand(source)
        stream = simulation.stream(gpu)
        with simulation.books() as tracker:
            gpu.copy(stream, Engine.D2H, nbytes, pinned=True)
            races = tracker.operate(
                stream.order, (operand,), (), simulation.places.here()
            )
            simulation.machine.synchronize_stream(stream, ".item()")
        return self._seen(races, twin).item()

    def _seen(self, races: Sequence[Race], twin: Any) -> Any:
        """Tell of races; answers with what the reader gets to see."""
        simulation = self._simulation
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
        self, to: SimulatedGpu, from_: SimulatedGpu, source: Any, target: Any, twin: Any
    ) -> Any:
        """From device to device; answers with what the reader gets to see."""
        simulation = self._simulation
        read, nbytes = self._operand(source)
        written, written_bytes = self._operand(target)
        dtype, rule = twin.dtype, None
        if dtype is not target.dtype or not (
            twin.is_contiguous() and target.is_contiguous()
        ):
            rule = _rule_of_copy(source, target)
        if to is not from_:
            races = self._between(to, from_, read, written, nbytes)
        else:
            races = simulation.launch(
                to,
                self._copy,
                (),
                [read],
                [written],
                nbytes,
                written_bytes,
                0.0,
                dtype,
                rule,
            )[1]
        if races and simulation.poisons:
            return simulation.poisoned(twin)
        return twin

    def _between(
        self,
        to: SimulatedGpu,
        from_: SimulatedGpu,
        read: Operand,
        written: Operand,
        nbytes: int,
    ) -> Any:
        """On the source's stream, with a barrier to and from the target's."""
        simulation = self._simulation
        source, target = simulation.stream(from_), simulation.stream(to)
        with simulation.books() as tracker:
            to.start()
            simulation.machine.wait(source, target)
            from_.copy(source, Engine.PEER, nbytes, pinned=True)
            races = tracker.operate(
                source.order, (read,), (written,), simulation.places.here()
            )
            simulation.machine.wait(target, source)
        if races:
            simulation.tell(races)
        return races

    def _arrive(
        self, gpu: SimulatedGpu, target: Any, source: Any, *, non_blocking: bool
    ) -> Any:
        """From the host to a device; answers with what arrives there."""
        simulation, machine = self._simulation, self._simulation.machine
        written, nbytes = self._operand(target)
        stream, buffer = simulation.stream(gpu), pinned_buffer(source)
        reads = () if buffer is None else (buffer.operand(source),)
        what = "copy from pageable memory" if buffer is None else "copy to the device"
        began_ns: int | None = None
        waits = not non_blocking
        if buffer is None:
            waits = waits or nbytes > _SENT_AT_ONCE_BYTES
        with simulation.books() as tracker:
            if buffer is None and waits:
                began_ns = machine.stage(stream, nbytes)
            gpu.copy(stream, Engine.H2D, nbytes, pinned=True, staged=buffer is None)
            races = tracker.operate(
                stream.order, reads, (written,), simulation.places.here()
            )
            if waits:
                machine.synchronize_stream(stream, what, began_ns)
            elif buffer is not None:
                self._flights.leave(source, buffer, stream)
        if races:
            simulation.tell(races)
        return source

    def _leave(
        self,
        gpu: SimulatedGpu | None,
        source: Any,
        target: Any,
        *,
        non_blocking: bool,
    ) -> None:
        """From a device to the host."""
        simulation, machine = self._simulation, self._simulation.machine
        assert gpu is not None  # noqa: S101 -- a copy within the host never comes here
        read, nbytes = self._operand(source)
        twin = simulation.tensors.twin_of(source)
        stream, buffer = simulation.stream(gpu), pinned_buffer(target)
        writes = () if buffer is None else (buffer.operand(target),)
        with simulation.books() as tracker:
            gpu.copy(stream, Engine.D2H, nbytes, pinned=buffer is not None)
            races = tracker.operate(
                stream.order, (read,), writes, simulation.places.here()
            )
            if buffer is None or not non_blocking:
                machine.synchronize_stream(stream, "copy to the host")
        twin = self._seen(races, twin)
        if buffer is None:
            target.copy_(twin)
        else:
            pending = stream if non_blocking else None
            self._flights.arrive(target, buffer, twin, pending)

    # -------------------------------------------------------------- its parts

    def _gpu_of(self, tensor: Any) -> Any:
        if tensor.device.type != self._type:
            return None
        gpu = self._simulation.tensors.claimed(tensor).gpu
        return self._simulation.gpu(gpu.index)

    def _operand(self, tensor: Any) -> tuple[Operand, int]:
        memory = self._simulation.tensors.claimed(tensor)
        return operand_of(tensor, memory)


def _require_fit(target: Any, source: Any) -> None:
    """Let torch say that a tensor cannot be copied into one of another shape."""
    like = functools.partial(torch.empty, device="meta")
    like(target.size()).copy_(like(source.size()))


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
        from gpumagic.simulator.backend.refusals import not_simulated

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


def _rule_of_copy(source: Any, target: Any) -> Rule:
    """What a copy within a GPU costs: by its types, and the order of its elements."""
    rule = COPY if source.dtype is target.dtype else CAST
    return rule if source.stride() == target.stride() else strided_rule(rule)
