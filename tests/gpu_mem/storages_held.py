"""Which pieces of memory one value keeps alive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.storages import StorageKey
from gpumagic.devices.torch_private import loaded_torch
from gpumagic.gpu_mem.walk import Budget, Walk

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["HeldStorage", "StorageKey", "reachable_storages"]


class HeldStorage(NamedTuple):
    """One piece of memory.

    Attributes:
        nbytes: As the allocator rounds.
    """

    device: int
    nbytes: int


def reachable_storages(
    value: Any,
    *,
    kind: str | None = None,
    budget: Budget | None = None,
    leave_out: Collection[int] = (),
) -> dict[StorageKey, HeldStorage]:
    """The memory that can be reached from a value, each piece once; graphs count.

    Nothing of the value is kept alive. What lies beyond the budget is missing.

    Args:
        value: Any object: a tensor, a list, a model, an exception.

        kind: Only memory of this kind of device, such as "cuda"; None is any.

        budget: How far to search.

        leave_out: The ids of objects that are not to be entered, such as that of the
            user's namespace.
    """
    walk = Walk(loaded_torch(), budget or Budget(), leave_out)
    walk.enter(value)
    walk.run()
    return {
        key: HeldStorage(key.device, nbytes)
        for key, nbytes in walk.stored.values()
        if kind in (None, key.kind)
    }
