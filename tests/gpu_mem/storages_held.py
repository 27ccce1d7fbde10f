"""Which pieces of memory one value keeps alive."""

from __future__ import annotations

from gpumagic.devices.torch_private import loaded_torch
from gpumagic.gpu_mem.walk import Budget, Walk

PATIENT = Budget(objects=10_000_000, seconds=60)


def reachable_storages(value, *, kind=None, budget=PATIENT):
    """The bytes that can be reached from a value, by storage; graphs count."""
    walk = Walk(loaded_torch(), budget)
    walk.enter(value)
    walk.run()
    return {k: n for k, n in walk.stored.values() if kind in (None, k.kind)}
