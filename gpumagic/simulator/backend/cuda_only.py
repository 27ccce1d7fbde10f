"""Operators that torch has for CUDA alone, out of those that a CPU has.

Products that add up in another type than they are given, dropout in one kernel, and
the fused cells of LSTM and GRU. Tensors here are on the CPU. What the backward pass of
a cell needs is in one workspace, in the order in which torch hands it back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.simulator.backend import attention

if TYPE_CHECKING:
    from collections.abc import Callable

DRAWING = ("native_dropout", attention.FUSED)  # which are given a generator


def made_of_others(torch: Any, name: str) -> Callable[..., Any] | None:
    """What computes an operator of this name, if a CPU has no kernel for it."""
    make = _MADE.get(name.removeprefix("aten::"))
    return make(torch) if make is not None else None


def _product(name: str) -> Callable[[Any], Callable[..., Any]]:
    def make(torch: Any) -> Callable[..., Any]:
        multiply = getattr(torch, name)

        def run(*tensors_and_type: Any, **factors: Any) -> Any:
            *tensors, out_dtype = tensors_and_type
            return multiply(*(each.to(out_dtype) for each in tensors), **factors)

        return run

    return make


def _dropout(torch: Any) -> Callable[..., Any]:
    def run(given: Any, probability: float, train: Any, generator: Any = None) -> Any:
        if train is False:
            return given.clone(), torch.ones_like(given, dtype=torch.bool)
        kept = 1 - probability
        mask = torch.empty_like(given).bernoulli_(kept, generator=generator)
        return given * mask * (1 / kept if kept else 0.0), mask.bool()

    return run


def _lstm(torch: Any) -> Callable[..., Any]:
    def run(
        from_input: Any, from_hidden: Any, cell: Any, bias: Any = None,
        other_bias: Any = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        gates = from_input + from_hidden
        if bias is not None:
            gates = gates + bias + other_bias
        enter, forget, new, leave = gates.chunk(4, 1)
        enter, forget, leave = enter.sigmoid(), forget.sigmoid(), leave.sigmoid()
        new = new.tanh()
        next_cell = forget * cell + enter * new
        workspace = torch.cat([enter, forget, new, leave], 1)
        return leave * next_cell.tanh(), next_cell, workspace

    return run


def _lstm_backward(torch: Any) -> Callable[..., Any]:
    def run(
        grad_hidden: Any, grad_cell: Any, cell: Any, next_cell: Any, workspace: Any,
        has_bias: bool,
    ) -> tuple[Any, ...]:  # fmt: skip
        enter, forget, new, leave = workspace.chunk(4, 1)
        squashed = next_cell.tanh()
        if grad_hidden is None:
            grad_hidden = torch.zeros_like(squashed)
        through_cell = grad_hidden * leave * (1 - squashed * squashed)
        if grad_cell is not None:
            through_cell = through_cell + grad_cell
        parts = (
            through_cell * new * enter * (1 - enter),
            through_cell * cell * forget * (1 - forget),
            through_cell * enter * (1 - new * new),
            grad_hidden * squashed * leave * (1 - leave),
        )
        gates = torch.cat(parts, 1)
        return gates, through_cell * forget, gates.sum(0) if has_bias else None

    return run


def _gru(torch: Any) -> Callable[..., Any]:
    def run(
        from_input: Any, from_hidden: Any, hidden: Any, bias: Any = None,
        other_bias: Any = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        if bias is not None:
            from_input, from_hidden = from_input + bias, from_hidden + other_bias
        input_reset, input_update, input_new = from_input.chunk(3, 1)
        hidden_reset, hidden_update, hidden_new = from_hidden.chunk(3, 1)
        reset = (input_reset + hidden_reset).sigmoid()
        update = (input_update + hidden_update).sigmoid()
        new = (input_new + reset * hidden_new).tanh()
        workspace = torch.cat([reset, update, new, hidden, hidden_new], 1)
        return new + update * (hidden - new), workspace

    return run


def _gru_backward(torch: Any) -> Callable[..., Any]:
    def run(grad: Any, workspace: Any, has_bias: bool) -> tuple[Any, ...]:
        reset, update, new, hidden, hidden_new = workspace.chunk(5, 1)
        grad_update = grad * (hidden - new) * update * (1 - update)
        grad_new = grad * (1 - update) * (1 - new * new)
        grad_reset = grad_new * hidden_new * reset * (1 - reset)
        by_input = torch.cat([grad_reset, grad_update, grad_new], 1)
        by_hidden = torch.cat([grad_reset, grad_update, grad_new * reset], 1)
        biases = (by_input.sum(0), by_hidden.sum(0)) if has_bias else (None, None)
        return by_input, by_hidden, grad * update, *biases

    return run


_MADE: dict[str, Callable[[Any], Callable[..., Any]]] = {
    **{
        f"{name}.{overload}": _product(name)
        for name in ("mm", "bmm", "addmm", "baddbmm")
        for overload in ("dtype", "dtype_out")
    },
    attention.FUSED: attention.forward,
    f"{attention.FUSED}_backward": attention.backward,
    "native_dropout": _dropout,
    "_thnn_fused_lstm_cell": _lstm,
    "_thnn_fused_lstm_cell_backward_impl": _lstm_backward,
    "_thnn_fused_gru_cell": _gru,
    "_thnn_fused_gru_cell_backward": _gru_backward,
}
