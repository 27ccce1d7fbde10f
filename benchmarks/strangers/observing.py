"""What a program computed: its losses, and what its names hold at the end."""

from __future__ import annotations

import contextlib
import itertools
import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Numbers = dict[str, list[float]]
_AT_MOST = 400  # losses that are kept
_NOT_KEPT = {"start", "end", "elapsed", "tic", "toc", "t0", "t1", "dt", "In", "Out"}


@contextlib.contextmanager
def losses() -> Iterator[list[Any]]:
    """Collect what `backward()` is called on; read by nobody until the end."""
    seen: list[Any] = []
    plain = torch.Tensor.backward
    inside: list[Any] = []  # a default device makes torch call it through itself

    def backward(self: Any, *arguments: Any, **named: Any) -> Any:
        if len(seen) < _AT_MOST and not inside:
            seen.append(self.detach().sum())
        inside.append(self)
        try:
            return plain(self, *arguments, **named)
        finally:
            inside.pop()

    torch.Tensor.backward = backward
    try:
        yield seen
    finally:
        torch.Tensor.backward = plain


def numbers_of(names: Mapping[str, Any], seen: list[Any]) -> Numbers:
    """The losses, and a few sums of each tensor, module and number among the names."""
    found: Numbers = {"losses": [float(each.cpu()) for each in seen]}
    for name, value in names.items():
        if name.startswith("_") or name in _NOT_KEPT:
            continue
        if (numbers := _sums(value)) is not None:
            found[name] = numbers
    return found


def _sums(value: Any) -> list[float] | None:
    if isinstance(value, bool | str):
        return None
    if isinstance(value, torch.Tensor):
        return _of_tensor(value)
    if isinstance(value, torch.nn.Module):
        tensors = itertools.chain(value.parameters(), value.buffers())
        return [number for each in tensors for number in _of_tensor(each) or ()]
    if isinstance(value, float) and math.isfinite(value):
        return [value]
    if isinstance(value, list | tuple) and value and len(value) <= _AT_MOST:
        each = [_sums(one) for one in value]
        if all(one is not None for one in each):
            return [number for one in each for number in one]
    return None


def _of_tensor(tensor: torch.Tensor) -> list[float] | None:
    """How many, how large, and where: sums that notice a change of order as well."""
    if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
        return None
    if tensor.is_quantized or tensor.layout is not torch.strided or tensor.is_meta:
        return None
    plain = tensor.detach().cpu()
    if plain.is_complex():
        plain = torch.view_as_real(plain.resolve_conj())
    plain = plain.double().flatten()
    if not plain.numel():
        return [0.0]
    places = torch.linspace(1, 2, plain.numel(), dtype=torch.float64, device="cpu")
    return [
        float(plain.numel()),
        float(plain.abs().mean()),
        float((plain * places).mean()),
    ]
