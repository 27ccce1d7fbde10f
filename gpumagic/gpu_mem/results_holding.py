"""Which of some values hold memory: the others need not be let go of."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

from gpumagic.devices.torch_private import loaded_torch
from gpumagic.gpu_mem.blocks_held import Places
from gpumagic.gpu_mem.reaching import reached_memory
from gpumagic.gpu_mem.walk import Budget, Walk

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_BUDGET = Budget(
    objects=1_000_000, seconds=1.0
)  # it was asked for: it may take a while


def holding(
    values: Sequence[Any],
    kind: str,
    left_out: Collection[int],
    budget: Budget = _BUDGET,
) -> set[int]:
    """The ids of those that hold memory, or may: where the search was ended.

    Args:
        values: Any objects.

        kind: The kind of device whose memory it is.

        left_out: The ids of what holds everything, such as the user's namespace.

        budget: How far to search.
    """
    walk = Walk(loaded_torch(), budget, left_out)
    numbers = [walk.enter(v) if gc.is_tracked(v) else None for v in values]
    walk.run()
    starts = [() if number is None else (number,) for number in numbers]
    bits = 0
    for _, reached in reached_memory(walk, starts, Places(kind).place).values():
        bits |= reached.every
    return {
        id(value)
        for position, (value, number) in enumerate(zip(values, numbers, strict=True))
        if bits >> position & 1 or (walk.partial and number is not None)
    }
