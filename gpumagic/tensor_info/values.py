"""Reads the values themselves: the one look that runs operations, and only if asked."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gpumagic.errors import first_line
from gpumagic.report.introspection import is_truly
from gpumagic.tensor_info import torch_private
from gpumagic.tensor_info.arrays import is_array
from gpumagic.tensor_info.report import ValueSummary

if TYPE_CHECKING:
    from collections.abc import Sequence

_READ_AT_MOST = 1_000_000
_SHOWN_AT_MOST = 6
_COPIED = (
    "reading the values has run operations on the device, waited for it and copied "
    "what they came to"
)


def summarise(
    x: Any, *, on_accelerator: bool
) -> tuple[ValueSummary | None, tuple[str, ...]]:
    """What the elements of a tensor are, and what is to be said of the reading.

    Beyond a million elements every so-many-th is read, along the longest dims.
    """
    try:
        summary = _of_array(x) if is_array(x) else _of_tensor(x)
    except Exception as error:  # noqa: BLE001 - whatever a dtype or a backend raises
        return None, (f"the values cannot be read: {first_line(error)}",)
    return summary, (_COPIED,) if on_accelerator else ()


def sampling_steps(
    size: Sequence[int], at_most: int = _READ_AT_MOST
) -> tuple[int, ...]:
    """The step to take along each dim so that no more than so many elements are left.

    >>> sampling_steps((3000, 1000)), sampling_steps((4, 6))
    ((3, 1), (1, 1))
    """
    steps = [1] * len(size)
    for dim in sorted(range(len(size)), key=lambda dim: -size[dim]):
        left = math.prod(-(-n // step) for n, step in zip(size, steps, strict=True))
        if left <= at_most:
            break
        steps[dim] = min(size[dim], -(-left // at_most))
    return tuple(steps)


def _of_tensor(x: Any) -> ValueSummary:
    torch = torch_private.torch_if_imported()
    if not is_truly(x, torch.Tensor):
        x = torch.from_dlpack(x)
    with torch.no_grad():
        sample = x.detach()[_slices(x.shape)]
        if sample.dtype.is_floating_point and sample.element_size() < 4:
            sample = sample.to(torch.float32)
        first = x.detach()[_first_slices(x.shape)].reshape(-1).tolist()
        return _summary(torch, sample, x.shape, first)


def _of_array(x: Any) -> ValueSummary:
    import numpy as np

    array = np.asarray(x)
    first = array[_first_slices(array.shape)].reshape(-1).tolist()
    return _summary(np, array[_slices(array.shape)], array.shape, first)


def _slices(size: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(None, None, step) for step in sampling_steps(size))


def _first_slices(size: Sequence[int]) -> tuple[slice, ...]:
    """The beginning of the first row."""
    if not size:
        return ()
    return (*(slice(1) for _ in size[:-1]), slice(_SHOWN_AT_MOST))


def _summary(
    library: Any, sample: Any, size: Sequence[int], first: list[Any]
) -> ValueSummary:
    """The figures; torch and numpy have the same names for all it takes."""
    count, whole = math.prod(sample.shape), math.prod(size)
    sampled = count if count < whole else None
    shown = tuple(_text(value) for value in first)
    nan_count = int(library.isnan(sample).sum().item())
    zero_count = int((sample == 0).sum().item())
    inf_count = int(library.isinf(sample).sum().item())
    numbers = sample[~library.isnan(sample)] if nan_count else sample
    has_order = bool(count - nan_count) and not _is_complex(sample)
    return ValueSummary(
        minimum=float(numbers.min().item()) if has_order else None,
        maximum=float(numbers.max().item()) if has_order else None,
        mean=_mean(library, numbers) if has_order else None,
        nan_count=nan_count,
        inf_count=inf_count,
        zero_count=zero_count,
        sampled=sampled,
        first=shown,
    )


def _mean(library: Any, numbers: Any) -> float:
    """The mean, summed in double precision where the device has it."""
    return float(numbers.mean(dtype=library.float64).item())


def _is_complex(sample: Any) -> bool:
    return "complex" in str(sample.dtype)


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
