"""The fused cells of LSTM and GRU, which torch picks for a device like this one.

They exist for CUDA alone, so the CPU has no kernel to compute them on the twins. The
formulas are those of the cells' definition; what the backward pass needs is kept in
one workspace, in the order that torch's own backward formula hands it back.
"""

from __future__ import annotations

import functools
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gpumagic.simulator.backend.call import Call
from gpumagic.simulator.backend.operations import Operation
from gpumagic.simulator.backend.precision import Precision

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpumagic.simulator.backend.simulation import Simulation


def recurrent_cells(simulation: Simulation) -> dict[str, Callable[..., Any]]:
    """The kernels by the names of their operators."""
    torch = simulation.torch
    return {
        name: _kernel(simulation, name, cell, torch) for name, cell in CELLS.items()
    }


def _kernel(
    simulation: Simulation, name: str, cell: Callable[..., Any], torch: Any
) -> Callable[..., Any]:
    operation = Operation(torch, f"aten::{name}")
    compute = Precision(torch).in_single(functools.partial(cell, torch))

    def kernel(*args: Any, **options: Any) -> Any:
        call = Call(simulation)
        given = [
            call.twin(each, position) if isinstance(each, torch.Tensor) else each
            for position, each in enumerate(args)
        ]
        given += options.values()
        results = compute(*given)
        fresh = [each for each in results if each is not None]
        gpu = call.gpu or simulation.gpu()
        outputs = iter(
            simulation.launch(gpu, operation, fresh, call.reads, [], call.nbytes)[0]
        )
        return tuple(None if each is None else next(outputs) for each in results)

    return kernel


def _lstm(
    torch: Any,
    from_input: Any,
    from_hidden: Any,
    cell: Any,
    input_bias: Any = None,
    hidden_bias: Any = None,
) -> tuple[Any, ...]:
    gates = from_input + from_hidden
    if input_bias is not None:
        gates = gates + input_bias + hidden_bias
    enter, forget, new, leave = gates.chunk(4, 1)
    enter, forget, leave = enter.sigmoid(), forget.sigmoid(), leave.sigmoid()
    new = new.tanh()
    next_cell = forget * cell + enter * new
    workspace = torch.cat([enter, forget, new, leave], 1)
    return leave * next_cell.tanh(), next_cell, workspace


def _lstm_backward(
    torch: Any,
    grad_hidden: Any,
    grad_cell: Any,
    cell: Any,
    next_cell: Any,
    workspace: Any,
    has_bias: bool,
) -> tuple[Any, ...]:
    enter, forget, new, leave = workspace.chunk(4, 1)
    squashed = next_cell.tanh()
    if grad_hidden is None:
        grad_hidden = torch.zeros_like(squashed)
    through_cell = grad_hidden * leave * (1 - squashed * squashed)
    if grad_cell is not None:
        through_cell = through_cell + grad_cell
    gates = torch.cat(
        [
            through_cell * new * enter * (1 - enter),
            through_cell * cell * forget * (1 - forget),
            through_cell * enter * (1 - new * new),
            grad_hidden * squashed * leave * (1 - leave),
        ],
        1,
    )
    return gates, through_cell * forget, gates.sum(0) if has_bias else None


def _gru(
    torch: Any,
    from_input: Any,
    from_hidden: Any,
    hidden: Any,
    input_bias: Any = None,
    hidden_bias: Any = None,
) -> tuple[Any, ...]:
    if input_bias is not None:
        from_input, from_hidden = from_input + input_bias, from_hidden + hidden_bias
    input_reset, input_update, input_new = from_input.chunk(3, 1)
    hidden_reset, hidden_update, hidden_new = from_hidden.chunk(3, 1)
    reset = (input_reset + hidden_reset).sigmoid()
    update = (input_update + hidden_update).sigmoid()
    new = (input_new + reset * hidden_new).tanh()
    workspace = torch.cat([reset, update, new, hidden, hidden_new], 1)
    return new + update * (hidden - new), workspace


def _gru_backward(
    torch: Any,
    grad: Any,
    workspace: Any,
    has_bias: bool,
) -> tuple[Any, ...]:
    reset, update, new, hidden, hidden_new = workspace.chunk(5, 1)
    grad_update = grad * (hidden - new) * update * (1 - update)
    grad_new = grad * (1 - update) * (1 - new * new)
    grad_reset = grad_new * hidden_new * reset * (1 - reset)
    by_input = torch.cat([grad_reset, grad_update, grad_new], 1)
    by_hidden = torch.cat([grad_reset, grad_update, grad_new * reset], 1)
    biases = (by_input.sum(0), by_hidden.sum(0)) if has_bias else (None, None)
    return by_input, by_hidden, grad * update, *biases


# What computes each operator: torch first, then its arguments.
CELLS: Mapping[str, Callable[..., tuple[Any, ...]]] = MappingProxyType(
    {
        "_thnn_fused_lstm_cell": _lstm,
        "_thnn_fused_lstm_cell_backward_impl": _lstm_backward,
        "_thnn_fused_gru_cell": _gru,
        "_thnn_fused_gru_cell_backward": _gru_backward,
    }
)
