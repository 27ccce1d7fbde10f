"""How large an output will be, before this machine's RAM is asked to hold it.

What a simulated GPU has room for may be more than there is. An operating system that
runs out of memory ends a process without a word, so large outputs are foreseen. A
formula gives what an output is at most, which is little for nearly all; for the others
torch's meta device, which knows shapes and no numbers, runs the operator.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from gpumagic.devices.host import available_bytes
from gpumagic.errors import DeviceError
from gpumagic.report.units import bytes_text
from gpumagic.simulator.allocator_segments import OutOfSimulatedMemory
from gpumagic.simulator.backend.operations import OF_THEIR_INPUTS_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.simulator.backend.operations import Operation
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.machine import SimulatedGpu

    Shape = Sequence[int]

WATCHED_BYTES = 1 << 26  # what is smaller is not looked at
_SEGMENT_BYTES = 2 << 20  # the allocator takes multiples of it
_SPARE_BYTES = 512 << 20  # for the kernel, the notebook and the operation itself
_SMALL_BYTES = 1 << 12  # inputs below this make no large output, unless told to
_LARGE_NUMBER = 1 << 20  # an argument that may be a size
_WIDEST_ITEM_BYTES = 16
_ON_A_DIAGONAL = frozenset(("aten::diag_embed", "aten::block_diag"))
_JOINING = frozenset(("aten::cat", "aten::stack", "aten::_stack"))


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
    if gpu is not None:
        where = f"{simulation.shown_type}:{gpu.index}, a {where[4:]},"
        _require_room_on(simulation, gpu, nbytes)
    raise HostMemoryFull(
        f"{where} has room for {bytes_text(nbytes)} more, but its memory lies in "
        f"this machine's RAM, of which {bytes_text(free)} is left",
        'use smaller tensors; a smaller card, as in gpumagic.simulate("h100", '
        'memory="2GiB"), runs out of memory sooner than the machine',
    )


def _require_room_on(simulation: Simulation, gpu: SimulatedGpu, nbytes: int) -> None:
    """Run out of simulated memory, if that comes first."""
    __tracebackhide__ = True
    with simulation.books():
        gpu.start()
        if nbytes + _SEGMENT_BYTES <= gpu.allocator.mem_info()[0]:
            return  # a trial would leave a segment of that size in the cache
        try:
            block = gpu.allocator.allocate(nbytes, gpu.default_stream.number)
        except OutOfSimulatedMemory as full:
            raise simulation.out_of_memory(full) from None
        if block is not None:
            gpu.allocator.free(block)


def may_be_large(nbytes: int, args: Sequence[Any]) -> bool:
    """Whether an operator with these arguments deserves a look."""
    return nbytes > _SMALL_BYTES or any(map(_is_large, args))


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
        exactly = bytes_by_shapes(operation, inner, named)
        simulation.foresee(exactly, gpu)


def at_most_bytes(
    operation: Operation, inner: Sequence[Any], named: dict[str, Any]
) -> int:
    """What is never less than an operation makes, found without running anything."""
    if not operation.makes:
        return 0
    values = (*inner, *named.values())
    shapes = [each.shape for each in _flat(values) if isinstance(each, torch.Tensor)]
    if operation.is_product:
        elements = math.prod(shapes[-2][:-1]) * shapes[-1][-1]
    elif operation.pointwise:
        elements = _broadcast_elements(shapes)
    elif (
        operation.over_lists
        or operation.name in _JOINING
        or operation.rule.kind in OF_THEIR_INPUTS_SIZE
    ):
        elements = sum(map(math.prod, shapes))
    elif operation.name in _ON_A_DIAGONAL:
        length = sum(max(1, math.prod(shape)) for shape in shapes)
        elements = (length * _numbers_multiplied(values)) ** 2
    else:  # no output is larger than all sizes multiplied
        tensors = math.prod(max(1, math.prod(shape)) for shape in shapes)
        elements = tensors * _numbers_multiplied(values)
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
        return torch.device("meta") if isinstance(value, torch.device) else value

    try:
        made = operation.call(
            *map(shape_of, inner),
            **{key: shape_of(each) for key, each in named.items()},
        )
    except (RuntimeError, NotImplementedError, ValueError, AssertionError):
        return 0  # its size depends on numbers, or it is an error torch will tell
    made = made if isinstance(made, (list, tuple)) else (made,)
    return sum(each.nbytes for each in _flat(made) if isinstance(each, torch.Tensor))


def _is_large(value: Any) -> bool:
    if type(value) is list:
        return (
            bool(value)
            and isinstance(value[0], (int, float))
            and _numbers_multiplied(value) > _SMALL_BYTES
        )
    return type(value) in (int, float) and abs(value) > _LARGE_NUMBER


def _flat(values: Sequence[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list):
            yield from value
        else:
            yield value


def _broadcast_elements(shapes: Sequence[Shape]) -> int:
    first = shapes[0] if shapes else ()
    if shapes.count(first) == len(shapes):
        return math.prod(first)
    longest = max(map(len, shapes))
    padded = [(1,) * (longest - len(shape)) + (*shape,) for shape in shapes]
    return math.prod(map(max, zip(*padded, strict=True)))


def _numbers_multiplied(values: Sequence[Any]) -> int:
    """A number may be a factor, or be added to a size at either end."""
    product = 1
    for value in _flat(values):
        if type(value) in (int, float) and math.isfinite(value):
            product *= math.ceil(abs(value)) + 1
    return product
