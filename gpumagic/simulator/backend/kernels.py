"""The kernel behind nearly every operator: compute on the twins, keep the books.

torch calls it with simulated tensors in the places of some arguments. It finds their
twins, lets torch's CPU kernel compute, and enters what happened into the books.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from gpumagic.simulator.backend.call import (
    WATCHED_BYTES,
    General,
    foresee,
    work_of,
)
from gpumagic.simulator.backend.operations import Operation
from gpumagic.simulator.backend.refusals import NO_SPARSE, refusing
from gpumagic.simulator.backend.registration import KEY
from gpumagic.simulator.backend.tensors import operand_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpumagic.simulator.backend.simulation import Simulation
    from gpumagic.simulator.costs import Amount
    from gpumagic.simulator.hazards import Operand

    Kernel = Callable[..., Any]

# Sizes multiplied up to here make no large output.
_FEW_PAIRS = WATCHED_BYTES >> 4


def kernels_on(simulation: Simulation) -> Callable[[str], Kernel]:
    """What makes the kernel of an operator, or of all others that come to a key."""
    others = _fallback(simulation)

    def make(name: str) -> Kernel:
        if "::" in name:
            return study(simulation, name)
        return {KEY: others}.get(name) or refusing(*NO_SPARSE)

    return make


def study(simulation: Simulation, name: str) -> Kernel:
    """The kernel of one operator."""
    operation = Operation(name)
    if operation.missing:
        return refusing(
            f"kernel for {name}, which has none for the CPU either",
            "run this part where there is a real GPU",
        )
    general = General(simulation, operation)
    quick = (
        not (operation.takes_generator or operation.takes_device or operation.outs)
        and (operation.single or operation.several)
        and operation.written in ((), (0,))  # at most the first
        and not simulation.poisons
    )
    if quick:
        return _quick(simulation, operation, general)
    return general


def _fallback(simulation: Simulation) -> Kernel:
    """The kernel of all operators that are not torch's own, also of those to come.

    Libraries bring kernels for the CPU and for CUDA; that for the CPU computes here.
    """
    kernels: dict[str, Kernel] = {}

    def kernel(operator: Any, *args: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        name = operator.name()
        if name not in kernels:
            kernels[name] = study(simulation, name)
        return kernels[name](*args, **options)

    return kernel


def _quick(  # noqa: C901, PLR0915 -- said below
    simulation: Simulation, operation: Operation, general: General
) -> Kernel:
    """What `General` does, three times as fast, for the calls that are nearly all.

    Those are: simulated tensors and plain values in, tensors out. It is the one
    path that each operation takes, so it is not cut into calls. What is named is told
    as `General` tells it.
    """
    tensor, call = torch.Tensor, operation.call
    values = frozenset((int, float, bool, str, type(None)))
    in_place, launch = operation.in_place, simulation.launch
    view_of_twin = simulation.tensors.view_of_twin
    is_product, several = operation.is_product, operation.several
    few = _FEW_PAIRS // (operation.makes or 1)
    shaped, counted = operation.by_shape, bool(operation.work)
    works = counted or bool(operation.blocks)
    recording = torch.is_grad_enabled

    def run(*args: Any, **options: Any) -> Any:  # noqa: C901, PLR0912, PLR0915
        __tracebackhide__ = True
        gpu, nbytes, dense, needs_grad = None, 0, True, False
        elements = 1
        reads: list[Operand] = []
        inner = []
        for each in args:
            kind = type(each)
            if kind is tensor or (kind not in values and isinstance(each, tensor)):
                try:
                    memory = each.untyped_storage()._gpumagic
                except AttributeError:
                    memory = None
                # A CPU tensor is told out here, so that no error is chained.
                if not memory:
                    return general(*args, **options)
                if memory.gpu is not gpu:
                    if gpu:  # a mixture of devices
                        return general(*args, **options)
                    gpu = memory.gpu
                if memory.plain:
                    operand, twin = memory.whole, memory.twin
                    if not (reads and reads[-1] is operand):  # as in x + x
                        nbytes += operand[2]
                else:
                    operand, extent = operand_of(each, memory)
                    dense = dense and not operand[3]
                    twin = view_of_twin(each, memory.twin)
                    nbytes += extent
                reads.append(operand)
                inner.append(twin)
                elements *= twin.numel()
                needs_grad = needs_grad or each.requires_grad
            elif kind is list and not (each and isinstance(each[0], int)):
                return general(*args, **options)
            else:
                if kind is list:  # sizes, by which an output may grow
                    elements *= abs(math.prod(each))
                inner.append(each)
        if not gpu or (
            options and (counted or not values.issuperset(map(type, options.values())))
        ):
            return general(*args, **options)
        if is_product:  # the two matrices; what is added to them makes it no larger
            elements = inner[-2].numel() * inner[-1].numel()
        if elements > few:
            foresee(simulation, gpu, operation, inner, options)
        try:
            result = call(*inner, **options) if options else call(*inner)
        except NotImplementedError:
            result = operation.widened(inner, options)
            if result is NotImplemented:
                raise
        if options:
            dtype = next(each.dtype for each in inner if isinstance(each, tensor))
        else:
            dtype = getattr(inner[0] if several else result, "dtype", None)
        work: Amount = 0.0
        rule = None
        if is_product:  # as the formula has it, at a tenth of its cost
            work = (*result.shape, inner[-1].size(-2))
        elif works:
            work = work_of(operation, inner, {}, result)
        if shaped or not dense:
            rule = operation.rule_by_shape(inner, dense=dense)
        recorded = needs_grad and not options and recording()
        fresh: Sequence[Any] = (result,)
        if several:
            fresh = [each for each in result if each is not None]
        writes: list[Operand] = []
        written_bytes = 0
        if in_place:
            changed = reads.pop(0)
            fresh, writes, written_bytes = (), [changed], changed[2] - changed[1]
        outputs, _ = launch(
            gpu,
            operation,
            fresh,
            reads,
            writes,
            nbytes,
            written_bytes,
            work,
            dtype,
            rule,
            recorded,
        )
        if several:
            made = iter(outputs)
            return tuple(None if each is None else next(made) for each in result)
        return args[0] if in_place else outputs[0]

    return run
