"""The order of dims in which an element-wise operator walks several tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.tensor_info import layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumagic.tensor_info.geometry import Geometry


def common_order(tensors: Sequence[Geometry]) -> tuple[int, ...]:
    """The dims from the slowest to the fastest, as torch orders them.

    Where the tensors disagree the first has its way. Dims that a tensor repeats,
    with stride 0, leave the word to the others.

    Args:
        tensors: At least one; all of the same size.
    """
    ndim = tensors[0].ndim
    if all(map(layout.is_contiguous, tensors)):
        return tuple(range(ndim))
    if ndim == 4 and all(map(layout.is_channels_last, tensors)):
        return (0, 2, 3, 1)
    order = list(reversed(range(ndim)))  # the fastest first
    for start in range(1, ndim):
        moving = start
        for other in reversed(range(start)):
            verdict = _compared(tensors, order[other], order[moving])
            if verdict < 0:
                break
            if verdict > 0:
                order[other], order[moving] = order[moving], order[other]
                moving = other
    return tuple(reversed(order))


def _compared(tensors: Sequence[Geometry], faster: int, slower: int) -> int:
    """Below 0 if the two dims are in order, above 0 if not, 0 if nobody decides."""
    for g in tensors:
        steps = g.stride[faster], g.stride[slower]
        if 0 in steps:
            continue
        if steps[0] != steps[1]:
            return -1 if steps[0] < steps[1] else 1
        if g.size[faster] > g.size[slower]:
            return 1
    return 0
