"""Types that a CPU computes slowly or not at all: computed in wider ones, rounded once.

Processors without arithmetic in half precision take minutes for a product that takes
a second in single precision. CUDA adds up in single precision and rounds the sum, so
that is what is done here, too, on every machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_HALVES = (torch.float16, torch.bfloat16)


def in_single(
    call: Callable[..., Any], written: tuple[int | str, ...] = ()
) -> Callable[..., Any]:
    """An operator that computes halves in single precision."""

    def run(*args: Any, **named: Any) -> Any:
        if getattr(args[0], "dtype", None) not in _HALVES:
            return call(*args, **named)
        result = widened(call, written, args, named)
        # torch says what is wrong with a mixture
        return call(*args, **named) if result is NotImplemented else result

    return run


def widened(  # noqa: C901 -- with what it does to one value
    call: Callable[..., Any],
    written: tuple[int | str, ...],
    args: Sequence[Any],
    named: Mapping[str, Any],
) -> Any:
    """Run it in a wider type; `NotImplemented` where there is none."""
    types = {*_number_types((*args, *named.values()))}
    if len(types) != 1 or not types <= {*_HALVES}:
        return NotImplemented
    (narrow,) = types
    originals: dict[int, tuple[Any, Any]] = {}

    def widen(where: int | str, value: Any) -> Any:
        if isinstance(value, list):
            return [widen(where, each) for each in value]
        if getattr(value, "dtype", None) is not narrow:
            return value
        wide = value.float()
        if where in written:
            originals[id(wide)] = value, wide
        return wide

    def round_(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(map(round_, value))
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in originals:
            return originals[id(value)][0]
        return value.to(narrow) if value.dtype is torch.float32 else value

    result = call(
        *(widen(where, each) for where, each in enumerate(args)),
        **{key: widen(key, each) for key, each in named.items()},
    )
    for original, wide in originals.values():  # an output may be of any size
        original.resize_(wide.shape).copy_(wide)
    return round_(result)


def _number_types(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, list):
            yield from _number_types(value)
        elif isinstance(value, torch.Tensor) and (
            value.is_floating_point() or value.is_complex()
        ):
            yield value.dtype
