"""One call of an operator with `out=`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.simulator.backend.call import Call
from gpumagic.simulator.backend.foresight import foresee, may_be_large
from gpumagic.simulator.backend.general import count_flops, give_generator
from gpumagic.simulator.backend.operations import INDICES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.simulator.backend.operations import Operation
    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.simulated_gpu import SimulatedGpu


class IntoOutputs:
    """An operator that writes into tensors it is given for that alone.

    It computes into fresh tensors and then hands over: a CPU kernel may resize what
    it writes into, and a resized twin would leave the simulated tensor dangling.
    """

    __slots__ = ("_operation", "_simulation", "_tensor")

    def __init__(self, simulation: Simulation, operation: Operation) -> None:
        self._simulation = simulation
        self._operation = operation
        self._tensor = simulation.torch.Tensor

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Run it; the arguments are those that torch hands to a kernel."""
        simulation, operation = self._simulation, self._operation
        targets = {name: options.pop(name) for name in operation.outs}
        call = Call(simulation)
        inner = [self._inner(call, each, where) for where, each in enumerate(args)]
        named = {key: self._inner(call, each, key) for key, each in options.items()}
        inputs, read_bytes = list(call.reads), call.nbytes
        for target in targets.values():
            call.twins(_as_list(target), "out")
        gpu = call.gpu
        if gpu is None:
            return operation.call(*inner, **named, **targets)
        call.require_one_device()
        if operation.takes_generator:
            give_generator(simulation, operation, gpu, inner, named)
        results = {name: self._fresh(target) for name, target in targets.items()}
        if call.expanded or may_be_large(call.nbytes, args):
            foresee(simulation, gpu, operation, inner, {**named, **results})
        operation.run(inner, {**named, **results})
        written_bytes = call.nbytes - read_bytes
        simulation.launch(
            gpu,
            operation,
            (),
            inputs,
            call.found["out"],
            read_bytes,
            written_bytes,
            *self._work(inner, named, next(iter(results.values()))),
        )
        for target, result in _pairs(targets, results):
            self._hand_over(gpu, target, result)
        if operation.silent:
            return None
        given = (*targets.values(),)
        return given[0] if len(given) == 1 else given

    def _work(
        self, inner: list[Any], named: dict[str, Any], result: Any
    ) -> tuple[float, Any]:
        """Its floating point operations, and the type that it computes in."""
        formula = self._operation.flops
        if formula is None or not isinstance(result, self._tensor):
            return 0, getattr(result, "dtype", None)
        return count_flops(formula, inner, named, result, self._tensor), result.dtype

    def _inner(self, call: Call, value: Any, where: int | str) -> Any:
        if isinstance(value, self._tensor):
            return call.twin(value, where)
        if where == INDICES and self._operation.mixes:
            return call.twins_of_indices(value, where)
        return call.twins(value, where) if type(value) is list else value

    def _fresh(self, target: Any) -> Any:
        empty = self._simulation.torch.empty
        if isinstance(target, list):
            # Operators with a list of outputs do not resize them, but compare.
            return [
                empty(each.shape, dtype=each.dtype, device="cpu") for each in target
            ]
        return empty(0, dtype=target.dtype, device="cpu")

    def _hand_over(self, gpu: SimulatedGpu, target: Any, result: Any) -> None:
        """Give it its numbers, in its own memory if they fit in it."""
        simulation = self._simulation
        if target.shape == result.shape:
            simulation.tensors.twin_of(target).copy_(result)
            return
        storage = simulation.place(result, gpu).untyped_storage()
        simulation.tensors.rebind(target, storage, 0, result.size(), result.stride())


def _pairs(targets: dict[str, Any], results: dict[str, Any]) -> Iterator[Any]:
    for name, target in targets.items():
        yield from zip(_as_list(target), _as_list(results[name]), strict=True)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
