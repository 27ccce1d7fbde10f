"""How large an output will be, before this machine's RAM is asked to hold it.

What a simulated GPU has room for may be more than there is. An operating system that
runs out of memory ends a process without a word, so large outputs are foreseen: by a
formula where there is one, else by running the operator on torch's meta device, which
knows shapes and no numbers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gpumagic.simulator.backend.host_memory import WATCHED_BYTES
from gpumagic.simulator.operators import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.simulator.backend.operations import Operation
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.simulated_gpu import SimulatedGpu

_SMALL_BYTES = 1 << 12  # inputs below this make no large output, unless told to
_LARGE_NUMBER = 1 << 20  # an argument that may be a size
_WIDEST_ITEM_BYTES = 8

# Their output is no larger than their inputs.
_SHRINKING = frozenset(
    (
        Kind.SOFTMAX,
        Kind.LOG_SOFTMAX,
        Kind.NORM,
        Kind.NORM_BACKWARD,
        Kind.OPTIMIZER,
        Kind.METADATA,
    )
)


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
    """Refuse an operation whose output the RAM of this machine cannot hold.

    Raises:
        OutOfMemoryError: The simulated GPU could not hold it either.
        HostMemoryFull: It says what there is and how to go on.
    """
    __tracebackhide__ = True
    kind, tensor = operation.rule.kind, simulation.torch.Tensor
    if kind in _SHRINKING:
        return
    shapes = [each.shape for each in _flat(inner) if isinstance(each, tensor)]
    if kind is Kind.ELEMENTWISE and shapes and not operation.takes_sizes:
        nbytes = _WIDEST_ITEM_BYTES * _broadcast_elements(shapes)
    elif kind is Kind.MATMUL and len(shapes) > 1:
        nbytes = _WIDEST_ITEM_BYTES * math.prod(shapes[-2][:-1]) * shapes[-1][-1]
    elif _at_most(shapes, (*inner, *named.values())) < WATCHED_BYTES:
        return
    else:
        nbytes = _by_shapes_alone(simulation, operation, inner, named)
    simulation.foresee(nbytes, gpu)


def _is_large(value: Any) -> bool:
    if type(value) is list:
        return (
            bool(value) and isinstance(value[0], int) and _product(value) > _SMALL_BYTES
        )
    return type(value) in (int, float) and abs(value) > _LARGE_NUMBER


def _flat(values: Sequence[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list):
            yield from value
        else:
            yield value


def _product(sizes: Sequence[int]) -> int:
    return math.prod(abs(each) or 1 for each in sizes)


def _broadcast_elements(shapes: Sequence[Any]) -> int:
    first = shapes[0]
    if all(shape == first for shape in shapes):
        return math.prod(first)
    longest = max(map(len, shapes))
    padded = [(1,) * (longest - len(shape)) + (*shape,) for shape in shapes]
    return math.prod(map(max, zip(*padded, strict=True)))


def _at_most(shapes: Sequence[Any], values: Sequence[Any]) -> int:
    """No output is larger than all sizes multiplied."""
    product = math.prod(max(1, math.prod(shape)) for shape in shapes)
    for value in values:
        if type(value) in (int, float) and math.isfinite(value):
            product *= max(1, abs(int(value)))
        elif type(value) is list and value and isinstance(value[0], int):
            product *= _product(value)
    return _WIDEST_ITEM_BYTES * product


def _by_shapes_alone(
    simulation: Simulation,
    operation: Operation,
    inner: Sequence[Any],
    named: dict[str, Any],
) -> int:
    """What an operator makes, run where there are no numbers; 0 if that cannot be."""
    torch = simulation.torch

    def shape_of(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to("meta")
        if isinstance(value, list):
            return [shape_of(each) for each in value]
        if isinstance(value, torch.Generator):
            return None
        return torch.device("meta") if isinstance(value, torch.device) else value

    try:
        made = operation.call(
            *map(shape_of, inner),
            **{key: shape_of(each) for key, each in named.items()},
        )
    except (RuntimeError, NotImplementedError, ValueError):
        return 0  # its size depends on numbers, or it is an error torch will tell
    tensors = made if isinstance(made, (list, tuple)) else (made,)
    return sum(each.nbytes for each in tensors if isinstance(each, torch.Tensor))
