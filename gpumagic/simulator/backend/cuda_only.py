"""Operators that torch has for CUDA alone, out of those that a CPU has.

Products that add up in another type than they are given, and the steps of batch norms
whose statistics several GPUs share. Tensors here are on the CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_CHANNELS = 1


def made_of_others(torch: Any, name: str) -> Callable[..., Any] | None:
    """What computes an operator of this name, if a CPU has no kernel for it."""
    make = _MADE.get(name.removeprefix("aten::"))
    return make(torch) if make is not None else None


# ------------------------------------------- products that give another type


def _product(name: str) -> Callable[[Any], Callable[..., Any]]:
    def make(torch: Any) -> Callable[..., Any]:
        multiply = getattr(torch, name)

        def run(*tensors_and_type: Any, **factors: Any) -> Any:
            *tensors, out_dtype = tensors_and_type
            return multiply(*(each.to(out_dtype) for each in tensors), **factors)

        return run

    return make


# ------------------------------------- batch norm, step by step over several GPUs


def _stats(torch: Any) -> Callable[..., Any]:
    def batch_norm_stats(given: Any, eps: float) -> tuple[Any, Any]:
        wide = _wide(given)
        axes = _all_but_channels(given)
        variance = wide.var(axes, unbiased=False)
        return wide.mean(axes), torch.rsqrt(variance + eps)

    return batch_norm_stats


def _elements(_: Any) -> Callable[..., Any]:
    def batch_norm_elemt(
        given: Any, weight: Any, bias: Any, mean: Any, invstd: Any, eps: float
    ) -> Any:
        del eps  # it is in `invstd`
        along = _along_channels(given)
        result = (_wide(given) - along(mean)) * along(invstd)
        if weight is not None:
            result = result * along(weight)
        if bias is not None:
            result = result + along(bias)
        return result.to(given.dtype)

    return batch_norm_elemt


def _gathered_stats(torch: Any) -> Callable[..., Any]:
    def batch_norm_gather_stats_with_counts(
        given: Any,
        mean: Any,
        invstd: Any,
        running_mean: Any,
        running_var: Any,
        momentum: float,
        eps: float,
        counts: Any,
    ) -> tuple[Any, Any]:
        del given
        counts = torch.as_tensor(counts, dtype=mean.dtype).expand(len(mean))[:, None]
        total = counts.sum()
        joint = (mean * counts).sum(0) / total
        variances = invstd.reciprocal().square() - eps
        squares = (variances + (mean - joint).square()) * counts
        variance = squares.sum(0) / total
        if running_mean is not None:
            running_mean.lerp_(joint.to(running_mean.dtype), momentum)
        if running_var is not None:
            unbiased = squares.sum(0) / (total - 1)
            running_var.lerp_(unbiased.to(running_var.dtype), momentum)
        return joint, torch.rsqrt(variance + eps)

    return batch_norm_gather_stats_with_counts


def _backward_sums(torch: Any) -> Callable[..., Any]:
    def batch_norm_backward_reduce(
        grad: Any,
        given: Any,
        mean: Any,
        invstd: Any,
        weight: Any,
        for_input: bool,
        for_weight: bool,
        for_bias: bool,
    ) -> tuple[Any, ...]:
        del for_weight, for_bias  # autograd takes what it needs
        axes, along = _all_but_channels(given), _along_channels(given)
        sums = _wide(grad).sum(axes)
        products = (_wide(grad) * (_wide(given) - along(mean))).sum(axes)
        kind = sums.dtype if weight is None else weight.dtype
        none = torch.empty(0)
        both = (sums, products) if for_input else (none, none)
        return *both, (products * invstd).to(kind), sums.to(kind)

    return batch_norm_backward_reduce


def _backward_elements(_: Any) -> Callable[..., Any]:
    def batch_norm_backward_elemt(
        grad: Any,
        given: Any,
        mean: Any,
        invstd: Any,
        weight: Any,
        sums: Any,
        products: Any,
        count: Any,
    ) -> Any:
        along, total = _along_channels(given), count.sum()
        centred = _wide(given) - along(mean)
        spread = along(invstd.square() * products / total)
        factor = invstd if weight is None else invstd * weight
        result = _wide(grad) - along(sums / total) - centred * spread
        return (result * along(factor)).to(grad.dtype)

    return batch_norm_backward_elemt


def _wide(tensor: Any) -> Any:
    """Statistics of halves are kept in single precision."""
    return tensor.float() if tensor.element_size() == 2 else tensor


def _all_but_channels(tensor: Any) -> list[int]:
    return [each for each in range(tensor.dim()) if each != _CHANNELS]


def _along_channels(tensor: Any) -> Callable[[Any], Any]:
    shape = [1, -1, *(1 for _ in tensor.shape[2:])]
    return lambda values: values.view(shape)


_MADE: dict[str, Callable[[Any], Callable[..., Any]]] = {
    **{
        f"{name}.{overload}": _product(name)
        for name in ("mm", "bmm", "addmm", "baddbmm")
        for overload in ("dtype", "dtype_out")
    },
    "batch_norm_stats": _stats,
    "batch_norm_elemt": _elements,
    "batch_norm_gather_stats": _gathered_stats,
    "batch_norm_gather_stats_with_counts": _gathered_stats,
    "batch_norm_backward_reduce": _backward_sums,
    "batch_norm_backward_elemt": _backward_elements,
}
