"""One call of an operator with whatever arguments there may be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.simulator.backend.call import Call
from gpumagic.simulator.backend.foresight import foresee, may_be_large
from gpumagic.simulator.backend.operations import INDICES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpumagic.simulator.backend.operations import Operation
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.hazards import Operand
    from gpumagic.simulator.operators import Rule
    from gpumagic.simulator.simulated_gpu import SimulatedGpu


class General:
    """An operator that returns new tensors, or writes into its arguments."""

    __slots__ = ("_device_type", "_operation", "_simulation", "_tensor")

    def __init__(self, simulation: Simulation, operation: Operation) -> None:
        self._simulation = simulation
        self._operation = operation
        self._tensor = simulation.torch.Tensor
        self._device_type = simulation.device_type

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Run it; the arguments are those that torch hands to a kernel."""
        __tracebackhide__ = True
        simulation, operation = self._simulation, self._operation
        call = Call(simulation)
        inner = [self._inner(call, each, where) for where, each in enumerate(args)]
        named = {key: self._inner(call, each, key) for key, each in options.items()}
        gpu = self._place(call, named)
        if gpu is None:
            return operation.call(*inner, **named)
        call.require_one_device()
        if operation.takes_generator:
            give_generator(simulation, operation, gpu, inner, named)
        if call.expanded or may_be_large(call.nbytes, args):
            foresee(simulation, gpu, operation, inner, named)
        reads, writes = self._split(call)
        if simulation.poisons:
            inner = self._poisoned(call, gpu, inner, args)
        result = operation.run(inner, named)
        first = next((each for each in inner if isinstance(each, self._tensor)), None)
        if first is None:
            first = next((each for each in _tensors_in(result, self._tensor)), None)
        dtype = None if first is None else first.dtype
        formula = operation.flops
        own = {id(twin): given for twin, given in zip(inner, args, strict=False)}
        fresh = [
            each for each in _tensors_in(result, self._tensor) if id(each) not in own
        ]
        outputs, _ = simulation.launch(
            gpu,
            operation,
            fresh,
            reads,
            writes,
            call.nbytes,
            sum(high - low for _, low, high, _ in writes),
            count_flops(formula, inner, named, result, self._tensor) if formula else 0,
            dtype,
            self._rule(call, inner, dtype),
        )
        made = {id(twin): tensor for twin, tensor in zip(fresh, outputs, strict=True)}
        return _replaced(result, self._tensor, {**own, **made})

    def _inner(self, call: Call, value: Any, where: int | str) -> Any:
        if isinstance(value, self._tensor):
            return call.twin(value, where)
        if where == INDICES and self._operation.mixes:
            return call.twins_of_indices(value, where)
        if type(value) is list and value and not isinstance(value[0], (int, float)):
            return call.twins(value, where)
        return value

    def _place(self, call: Call, named: dict[str, Any]) -> SimulatedGpu | None:
        """Where the result goes; the twins stay on the CPU whatever `device=` says."""
        device = named.get("device") if self._operation.takes_device else None
        if device is None:
            return call.gpu
        if device.type != self._device_type:
            return None
        named["device"] = self._simulation.torch.device("cpu")
        named.pop("pin_memory", None)
        return self._simulation.gpu(device.index)

    def _split(self, call: Call) -> tuple[list[Operand], list[Operand]]:
        """What is read only, and what is written."""
        writes = [
            operand
            for where in self._operation.written
            for operand in call.found.get(where, ())
        ]
        if not writes:
            return call.reads, writes
        return [each for each in call.reads if each not in writes], writes

    def _rule(self, call: Call, inner: list[Any], dtype: Any) -> Rule:
        operation = self._operation
        if operation.mixes:
            return operation.rule_with_mask(call.indices)
        dense = all(layout is None for *_, layout in call.reads)
        if operation.by_shape or not dense:
            word = self._simulation.words.get(dtype, "fp32")
            return operation.rule_by_shape(inner, word, dense=dense)
        return operation.rule

    def _poisoned(
        self, call: Call, gpu: SimulatedGpu, inner: list[Any], args: tuple[Any, ...]
    ) -> list[Any]:
        """Poison in the place of what is read before it is sure to be there."""
        simulation = self._simulation
        return [
            simulation.poisoned(each)
            if isinstance(given, self._tensor)
            and where not in self._operation.written
            and simulation.reads_too_early(gpu, call.found.get(where, ()))
            else each
            for where, (each, given) in enumerate(zip(inner, args, strict=True))
        ]


def give_generator(
    simulation: Simulation,
    operation: Operation,
    gpu: SimulatedGpu,
    inner: list[Any],
    named: dict[str, Any],
) -> None:
    """Let random numbers come from the GPU's own generator, or the one that is given.

    Raises:
        RuntimeError: The one that is given is for another device.
    """
    where = operation.generator_at
    given = named.get("generator")
    if given is None and where < len(inner):
        given = inner[where]
    source = simulation.random_state(gpu.index, given).draw()
    if where < len(inner):
        inner[where] = source
    else:
        named["generator"] = source


def count_flops(
    formula: Callable[..., Any],
    inner: Sequence[Any],
    named: dict[str, Any],
    result: Any,
    tensor: Any,
) -> float:
    """Count by torch's own formula, which wants shapes in the places of tensors."""
    shapes = [each.shape if isinstance(each, tensor) else each for each in inner]
    if isinstance(result, tensor):
        out = result.shape
    else:
        out = tuple(each.shape if isinstance(each, tensor) else None for each in result)
    if named:
        named = {
            key: each.shape if isinstance(each, tensor) else each
            for key, each in named.items()
        }
    return float(formula(*shapes, **named, out_shape=out))


def _tensors_in(result: Any, tensor: type) -> list[Any]:
    """All tensors of a result, however deep they are."""
    if isinstance(result, tensor):
        return [result]
    if isinstance(result, (list, tuple)):
        return [found for each in result for found in _tensors_in(each, tensor)]
    return []


def _replaced(result: Any, tensor: type, by: dict[int, Any]) -> Any:
    if isinstance(result, tensor):
        return by[id(result)]
    if isinstance(result, (list, tuple)):
        return type(result)(_replaced(each, tensor, by) for each in result)
    return result
