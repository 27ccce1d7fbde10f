"""Operators that torch has for CUDA alone, out of those that a CPU has.

Products that add up in another type than they are given, dropout in one kernel, and
the fused cells of LSTM and GRU. Tensors here are on the CPU. What the backward pass of
a cell needs is in one workspace, in the order in which torch hands it back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

DROPOUT = "native_dropout"  # which is given a generator


def _product(name: str) -> Callable[..., Any]:
    multiply = getattr(torch, name)

    def run(*tensors_and_type: Any, **factors: Any) -> Any:
        *tensors, out_dtype = tensors_and_type
        return multiply(*(each.to(out_dtype) for each in tensors), **factors)

    return run


def _dropout(given: Any, probability: float, train: Any, generator: Any = None) -> Any:
    if train is False:
        return given.clone(), torch.ones_like(given, dtype=torch.bool)
    kept = 1 - probability
    mask = torch.empty_like(given).bernoulli_(kept, generator=generator)
    return given * mask * (1 / kept if kept else 0.0), mask.bool()


def _lstm(
    from_input: Any, from_hidden: Any, cell: Any, bias: Any = None, other: Any = None
) -> tuple[Any, ...]:
    gates = from_input + from_hidden
    if bias is not None:
        gates = gates + bias + other
    enter, forget, new, leave = gates.chunk(4, 1)
    next_cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * next_cell.tanh(), next_cell, gates


def _lstm_backward(
    grad_hidden: Any, grad_cell: Any, cell: Any, next_cell: Any, gates: Any,
    has_bias: bool,
) -> tuple[Any, ...]:  # fmt: skip
    formula = torch.ops.aten._thnn_differentiable_lstm_cell_backward.default
    none = torch.zeros_like(gates)
    found = formula(grad_hidden, grad_cell, gates, none, None, None, cell, next_cell)
    return found[0], found[2], found[0].sum(0) if has_bias else None


def _gru(
    from_input: Any, from_hidden: Any, hidden: Any, bias: Any = None, other: Any = None
) -> tuple[Any, ...]:
    if bias is not None:
        from_input, from_hidden = from_input + bias, from_hidden + other
    input_reset, input_update, input_new = from_input.chunk(3, 1)
    hidden_reset, hidden_update, hidden_new = from_hidden.chunk(3, 1)
    reset = (input_reset + hidden_reset).sigmoid()
    update = (input_update + hidden_update).sigmoid()
    new = (input_new + reset * hidden_new).tanh()
    workspace = torch.cat([reset, update, new, hidden, hidden_new], 1)
    return new + update * (hidden - new), workspace


def _gru_backward(grad: Any, workspace: Any, has_bias: bool) -> tuple[Any, ...]:
    reset, update, new, hidden, hidden_new = workspace.chunk(5, 1)
    grad_update = grad * (hidden - new) * update * (1 - update)
    grad_new = grad * (1 - update) * (1 - new * new)
    grad_reset = grad_new * hidden_new * reset * (1 - reset)
    by_input = torch.cat([grad_reset, grad_update, grad_new], 1)
    by_hidden = torch.cat([grad_reset, grad_update, grad_new * reset], 1)
    biases = (by_input.sum(0), by_hidden.sum(0)) if has_bias else (None, None)
    return by_input, by_hidden, grad * update, *biases


# What computes an operator that a CPU has no kernel for, by its name.
MADE: dict[str, Callable[..., Any]] = {
    **{
        f"{name}.{overload}": _product(name)
        for name in ("mm", "bmm", "addmm", "baddbmm")
        for overload in ("dtype", "dtype_out")
    },
    DROPOUT: _dropout,
    "_thnn_fused_lstm_cell": _lstm,
    "_thnn_fused_lstm_cell_backward_impl": _lstm_backward,
    "_thnn_fused_gru_cell": _gru,
    "_thnn_fused_gru_cell_backward": _gru_backward,
}
