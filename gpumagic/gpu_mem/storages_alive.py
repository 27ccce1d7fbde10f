"""What lives and what only waits: all tensors there are, and Python's collector."""

from __future__ import annotations

import gc
from collections import Counter

from gpumagic.devices.torch_private import loaded_torch
from gpumagic.gpu_mem.walk import Budget, Walk

_MORE_PASSES = 3  # a finaliser may let go of another cycle, and that of one more
_EVERYTHING = Budget(objects=20_000_000, seconds=20.0)


def alive_bytes(kind: str) -> dict[int, int]:
    """By device, what the tensors that Python knows keep, with their graphs.

    It goes through all objects there are, which takes a tenth of a second and more.

    Args:
        kind: The word in front of the colon of their torch device.
    """
    torch = loaded_torch()
    if torch is None:
        return {}
    walk = Walk(torch, _EVERYTHING)
    for each in gc.get_objects():
        if issubclass(type(each), torch.Tensor):
            walk.enter(each)
    walk.run()
    sums: Counter[int] = Counter()
    for key, nbytes in dict(walk.stored.values()).items():
        if key.kind == kind:
            sums[key.device] += nbytes
    return dict(sums)


def collect_cycles() -> int:
    """Collect until nothing more comes; return how many objects were found."""
    found = gc.collect()
    for _ in range(_MORE_PASSES):
        more = gc.collect()
        found += more
        if not more:
            break
    return found
