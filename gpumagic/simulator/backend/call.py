"""Calls an operator: turns its arguments into their twins, computes, enters it.

What a simulated GPU has room for may be more than this machine's RAM. An operating
system that runs out of memory ends a process without a word, so large outputs are
foreseen. A formula gives what an output is at most, which is little for nearly all; for
the others torch's meta device, which knows shapes and no numbers, runs the operator.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import torch

from gpumagic.devices.host import available_bytes
from gpumagic.errors import DeviceError
from gpumagic.report.units import bytes_text
from gpumagic.simulator.allocator_segments import OutOfSimulatedMemory
from gpumagic.simulator.backend.operations import (
    INDICES,
    MASKS,
    OF_THEIR_INPUTS_SIZE,
)
from gpumagic.simulator.backend.tensors import operand_of
from gpumagic.simulator.costs import Blocks
from gpumagic.simulator.operators import strided_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpumagic.simulator.backend.operations import Operation
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.costs import Amount
    from gpumagic.simulator.hazards import Operand
    from gpumagic.simulator.machine import SimulatedGpu
    from gpumagic.simulator.operators import Rule


WATCHED_BYTES = 1 << 26  # what is smaller is not looked at
_SEGMENT_BYTES = 2 << 20  # the allocator takes multiples of it
_SPARE_BYTES = 512 << 20  # for the kernel, the notebook and the operation itself
_SMALL_BYTES = 1 << 12  # inputs below this make no large output, unless told to
_LARGE = 1 << 20  # numbers that may be a size
_WIDEST_ITEM_BYTES = 16


class Call:
    """The arguments of one call, on their way to the twins."""

    __slots__ = (
        "_copied", "_simulation", "expanded", "found", "gpu", "indices",
        "nbytes", "on_host", "reads",
    )  # fmt: skip

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        # the one GPU on which all simulated arguments lie; None if there is none
        self.gpu: SimulatedGpu | None = None
        self.reads: list[Operand] = []  # storages, as the tracker wants them
        # those of an argument, by its position or name
        self.found: dict[int | str, list[Operand]] = {}
        self.nbytes = 0
        self.expanded = False  # whether one names the same bytes again and again
        self.on_host = False  # whether a CPU tensor is more than a number
        self.indices: list[Any] = []  # of an operator that indexes: those on the GPU
        self._copied: list[Any] = []  # to the GPU, for as long as the call

    def twin(self, tensor: Any, where: int | str) -> Any:
        """What stands for a tensor on the CPU; notes the storage it lies on."""
        __tracebackhide__ = True
        memory = getattr(tensor.untyped_storage(), "_gpumagic", None)
        if not memory:
            if tensor.device.type != self._simulation.device_type:
                self.on_host = self.on_host or tensor.dim() > 0
                return tensor
            memory = self._simulation.tensors.claimed(tensor)
        gpu = memory.gpu
        self.gpu = self.gpu or gpu
        if self.gpu is not gpu:
            self._refuse_mixing(f"{self._simulation.shown_type}:{gpu.index}")
        if memory.plain:
            twin, operand = memory.twin, memory.whole
            nbytes = operand[2]
        else:
            twin = self._simulation.tensors.view_of_twin(tensor, memory.twin)
            operand, nbytes = operand_of(tensor, memory)
            self.expanded = self.expanded or tensor.numel() > nbytes
        if self.reads[-1:] != [operand]:  # x + x reads x once
            self.nbytes += nbytes
        self.reads.append(operand)
        self.found.setdefault(where, []).append(operand)
        return twin

    def twins(self, items: Any, where: int | str, *, index: bool = False) -> list[Any]:
        """Likewise for a list of tensors, in which None may stand as well.

        An index may lie on the CPU: as CUDA does, it is copied over, and the host waits
        for that; of a mask goes what it selects.
        """
        twins, simulated = [], self._simulation.device_type
        for each in items:
            if not isinstance(each, torch.Tensor):
                twins.append(each)
            elif index and each.device.type != simulated:
                gpu: Any = self.gpu
                there = torch.device(simulated, gpu.index)
                sent = each
                if str(each.dtype) in MASKS:
                    sent = each.nonzero()
                copied = torch.ops.aten._to_copy.default(sent, device=there)
                self._copied.append(copied)
                self.twin(copied, where)
                twins.append(each)
            else:
                twins.append(self.twin(each, where))
                if index:
                    self.indices.append(twins[-1])
        return twins

    def given(self, operation: Operation, value: Any, where: int | str) -> Any:
        """What an operation is given in the place of an argument."""
        if isinstance(value, torch.Tensor):
            return self.twin(value, where)
        if type(value) is list and value and not isinstance(value[0], (int, float)):
            index = where == INDICES and operation.mixes and bool(self.gpu)
            return self.twins(value, where, index=index)
        return value

    def require_one_device(self) -> None:
        """Refuse CPU tensors beside simulated ones, as CUDA does.

        A CPU tensor may index a simulated one; a simulated one never a CPU one.
        """
        __tracebackhide__ = True
        if self.on_host and self.gpu:
            self._refuse_mixing("cpu")

    def _refuse_mixing(self, other: str) -> None:
        __tracebackhide__ = True
        gpu: Any = self.gpu
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two "
            f"devices, {self._simulation.shown_type}:{gpu.index} and {other}!"
        )


class General:
    """An operator that returns new tensors, or writes into its arguments.

    Into tensors that are given as outputs alone it does not compute itself: a CPU
    kernel may resize what it writes into, and a resized twin would leave the simulated
    tensor dangling. So it computes into fresh ones, and the tensor is resized as
    `resize_` does it, in its own memory while that is enough.
    """

    __slots__ = ("_operation", "_simulation")

    def __init__(self, simulation: Simulation, operation: Operation) -> None:
        self._simulation = simulation
        self._operation = operation

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Run it; the arguments are those that torch hands to a kernel."""
        __tracebackhide__ = True
        simulation, operation = self._simulation, self._operation
        call = Call(simulation)
        targets = {name: options.pop(name) for name in operation.outs}
        inner = [call.given(operation, each, at) for at, each in enumerate(args)]
        named = {key: call.given(operation, it, key) for key, it in options.items()}
        reads, writes = self._split(call)
        nbytes, rule_of = call.nbytes, self._rule(call)
        for target in targets.values():
            call.twins(tensors_in(target), "out")
        gpu = self._place(call, named)
        if not gpu:
            return operation.call(*inner, **named, **targets)
        call.require_one_device()
        if operation.takes_generator:
            self._give_generator(gpu, inner, named)
        given = {**named, **{name: _fresh(each) for name, each in targets.items()}}
        if call.expanded or call.nbytes > _SMALL_BYTES or _multiplied(inner) > _LARGE:
            foresee(simulation, gpu, operation, inner, given)
        if simulation.poisons:
            inner = self._poisoned(call, gpu, inner, args)
        result = operation.run(inner, given)
        pairs = [
            pair
            for name, target in targets.items()
            for pair in zip(tensors_in(target), tensors_in(given[name]), strict=True)
        ]
        written = sum(high - low for _, low, high, _ in writes)
        if targets:
            filled = Call(simulation)
            for target, values in pairs:
                _resize(target, values)
                filled.twin(target, "out")
            writes, written = filled.reads, filled.nbytes
        own = {id(twin): each for twin, each in zip(inner, args, strict=False)}
        own |= {id(values): target for target, values in pairs}
        found = tensors_in(result)
        fresh = [each for each in found if id(each) not in own]
        first = next((e for e in (*inner, *found) if isinstance(e, torch.Tensor)), None)
        outputs, _ = simulation.launch(
            gpu,
            operation,
            fresh,
            reads,
            writes,
            nbytes,
            written,
            work_of(operation, inner, named, result),
            getattr(first, "dtype", None),
            rule_of(inner, result),
        )
        for target, values in pairs:
            simulation.tensors.twin_of(target).copy_(values)
        made = {id(twin): tensor for twin, tensor in zip(fresh, outputs, strict=True)}
        return _replaced(result, own | made)

    def _place(self, call: Call, named: dict[str, Any]) -> SimulatedGpu | None:
        """Where the result goes; the twins stay on the CPU whatever `device=` says."""
        device = named.get("device")
        if not (device and self._operation.takes_device):
            return call.gpu
        if device.type != self._simulation.device_type:
            return None
        named["device"] = torch.device("cpu")
        named.pop("pin_memory", None)
        return self._simulation.gpu(device.index)

    def _split(self, call: Call) -> tuple[list[Operand], list[Operand]]:
        """What is read only, and what is written."""
        writes = [
            operand
            for where in self._operation.written
            for operand in call.found.get(where, ())
        ]
        return [each for each in call.reads if each not in writes], writes

    def _rule(self, call: Call) -> Callable[[list[Any], Any], Rule]:
        """What tells the cost by what was computed on, and by the result."""
        operation = self._operation
        dense = not any(layout for *_, layout in call.reads)

        def rule(inner: list[Any], result: Any) -> Rule:
            if operation.copies and result.stride() != inner[0].stride():
                return strided_rule(operation.rule)
            if operation.mixes:
                return operation.rule_with_mask(call.indices)
            if operation.by_shape or not dense:
                return operation.rule_by_shape(inner, dense=dense)
            return operation.rule

        return rule

    def _give_generator(
        self, gpu: SimulatedGpu, inner: list[Any], named: dict[str, Any]
    ) -> None:
        """Let random numbers come from the generator given, or the GPU's own."""
        where = self._operation.generator_at
        given = named.get("generator")
        if given is None and where < len(inner):
            given = inner[where]
        source = self._simulation.random_source(gpu.index, given)
        if where < len(inner):
            inner[where] = source
        else:
            named["generator"] = source

    def _poisoned(
        self, call: Call, gpu: SimulatedGpu, inner: list[Any], args: tuple[Any, ...]
    ) -> list[Any]:
        """Poison in the place of what is read before it is sure to be there."""
        simulation = self._simulation
        return [
            simulation.poisoned(each)
            if isinstance(given, torch.Tensor)
            and where not in self._operation.written
            and simulation.reads_too_early(gpu, call.found.get(where, ()))
            else each
            for where, (each, given) in enumerate(zip(inner, args, strict=True))
        ]


def _fresh(target: Any) -> Any:
    """What stands for an output, of its geometry, by which a kernel sees what fits."""
    if isinstance(target, list):
        return [_fresh(each) for each in target]
    size, stride = target.size(), target.stride()
    return torch.empty_strided(size, stride, dtype=target.dtype, device="cpu")


def _resize(target: Any, result: Any) -> None:
    """Give an output the result's shape, if it has another one."""
    if target.shape == result.shape:
        return
    ops = torch.ops.aten
    ops.resize_.default(target, result.size())
    if target.stride() != result.stride():
        ops.as_strided_.default(target, result.size(), result.stride())


def work_of(
    operation: Operation, inner: Sequence[Any], named: dict[str, Any], result: Any
) -> Amount:
    """What an operation computes, by the shapes of its arguments."""
    if operation.blocks:
        return Blocks(0.0, operation.blocks(inner))
    if not operation.work:
        return 0.0
    options = {key: _shape(each) for key, each in named.items()}
    return operation.work(*map(_shape, inner), **options, out_shape=_shape(result))


def _shape(value: Any) -> Any:
    if isinstance(value, tuple):
        return (*map(_shape, value),)
    return getattr(value, "shape", value)


def tensors_in(result: Any) -> list[Any]:
    """All tensors of a result, however deep they are."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, (list, tuple)):
        return [found for each in result for found in tensors_in(each)]
    return []


def _replaced(result: Any, by: dict[int, Any]) -> Any:
    if isinstance(result, torch.Tensor):
        return by[id(result)]
    if isinstance(result, (list, tuple)):
        return type(result)(_replaced(each, by) for each in result)
    return result


# ---------------------------------------------- what the RAM of this machine can hold


class HostMemoryFull(DeviceError):
    """The RAM of this machine cannot hold what the simulated GPU could."""


def require_room(simulation: Simulation, nbytes: int, gpu: SimulatedGpu | None) -> None:
    """Refuse an output that the RAM of this machine cannot hold."""
    __tracebackhide__ = True
    if nbytes < WATCHED_BYTES:
        return
    free = available_bytes()
    if free is None or nbytes <= free - _SPARE_BYTES:
        return
    where = f"the {simulation.label}"
    if gpu:
        where = f"{simulation.shown_type}:{gpu.index}, a {where[4:]},"
        with simulation.books():  # run out of simulated memory, if that comes first
            gpu.start()
            # else a trial would leave a segment of that size in the cache
            if nbytes + _SEGMENT_BYTES > gpu.allocator.mem_info()[0]:
                try:
                    block = gpu.allocator.allocate(nbytes, gpu.default_stream.number)
                except OutOfSimulatedMemory as full:
                    raise simulation.out_of_memory(full) from None
                gpu.allocator.free(block)
    raise HostMemoryFull(
        f"{where} has room for {bytes_text(nbytes)} more, but its memory lies in "
        f"this machine's RAM, of which {bytes_text(free)} is left",
        'use smaller tensors; a smaller card, as in gpumagic.simulate("h100", '
        'memory="2GiB"), runs out of memory sooner than the machine',
    )


def foresee(
    simulation: Simulation,
    gpu: SimulatedGpu,
    operation: Operation,
    inner: Sequence[Any],
    named: dict[str, Any],
) -> None:
    """Refuse an operation whose output the RAM of this machine cannot hold."""
    __tracebackhide__ = True
    if at_most_bytes(operation, inner, named) >= WATCHED_BYTES:
        simulation.foresee(bytes_by_shapes(operation, inner, named), gpu)


def at_most_bytes(
    operation: Operation, inner: Sequence[Any], named: dict[str, Any]
) -> int:
    """What is never less than an operation makes, found without running anything."""
    given = [*_flat((*inner, *named.values()))]
    shapes = [each.shape for each in given if isinstance(each, torch.Tensor)]
    if not operation.makes:
        return 0
    if operation.is_product:
        elements = math.prod(shapes[-2][:-1]) * shapes[-1][-1]
    elif operation.pointwise:
        elements = math.prod(_broadcast(shapes))
    elif operation.over_lists or operation.rule.kind in OF_THEIR_INPUTS_SIZE:
        elements = sum(map(math.prod, shapes))
    else:  # no output is larger than all sizes and numbers multiplied
        tensors = math.prod(max(1, math.prod(shape)) for shape in shapes)
        elements = tensors * _multiplied(given)
    return int(_WIDEST_ITEM_BYTES * operation.makes * elements)


def bytes_by_shapes(
    operation: Operation, inner: Sequence[Any], named: dict[str, Any]
) -> int:
    """What an operator makes, run where there are no numbers; 0 if that cannot be."""

    def shape_of(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to("meta")
        if isinstance(value, list):
            return [shape_of(each) for each in value]
        if isinstance(value, torch._C.Generator):  # also those made before ours
            return None
        if isinstance(value, torch.device):
            return torch.device("meta")
        return value

    try:
        made = operation.call(
            *map(shape_of, inner),
            **{key: shape_of(each) for key, each in named.items()},
        )
    except (RuntimeError, NotImplementedError, ValueError, AssertionError):
        return 0  # its size depends on numbers, or it is an error torch will tell
    return sum(each.nbytes for each in tensors_in(made))


def _multiplied(values: Sequence[Any]) -> int:
    """The numbers of a call: each may be a factor, or be added at either end."""
    product = 1
    for value in _flat(values):
        if type(value) in (int, float) and math.isfinite(value):
            product *= math.ceil(abs(value)) + 1
    return product


def _flat(values: Sequence[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list):
            yield from value
        else:
            yield value


def _broadcast(shapes: list[Any]) -> Iterable[int]:
    """The sizes to which all shapes stretch, in any order."""
    if shapes.count(shapes[0]) == len(shapes):
        sizes: Iterable[int] = shapes[0]
        return sizes
    return map(max, itertools.zip_longest(*map(reversed, shapes), fillvalue=1))
