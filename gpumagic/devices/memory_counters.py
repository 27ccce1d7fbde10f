"""The caching allocator's counters, read in tens of microseconds.

torch's flat form of them is made anew each time, of 122 keys in sorted order, which
takes longer than all else around a cell. The nested form is what it is made of.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from gpumagic.devices.imported import loaded_torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpumagic.devices.protocols import Runtime

# torch accepts either name, whatever it is built for, and any value.
_WITHOUT_CACHE = ("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING")
_CUDA = "cuda"


def allocator_figures(runtime: Runtime, device: int) -> Mapping[str, Any] | None:
    """All that the allocator of a device in use counts, nested or under flat keys.

    Returns:
        None where there is no such allocator, or one that does not tell; see
        `figure` for how to look into it.
    """
    module = getattr(loaded_torch(), runtime.kind, None)
    nested = getattr(module, "memory_stats_as_nested_dict", None)
    try:
        # Empty before the start, and where a stand-in has the place of the device.
        figures = nested(device) if nested is not None else None
        return figures or runtime.memory_stats(device)
    except RuntimeError:  # an allocator that was plugged in need not count
        return None


def figure(figures: Mapping[str, Any], key: str) -> int | None:
    """One of these figures by torch's flat key; None if it is not counted."""
    found: Any = figures.get(key)
    if found is None and "." in key:
        found = figures
        for part in key.split("."):
            found = found.get(part) if hasattr(found, "get") else None
    return found if isinstance(found, int) else None


def allocator_backend(kind: str) -> str | None:
    """Which allocator torch uses; None where there is no choice, or no torch."""
    module = getattr(loaded_torch(), kind, None)
    ask = getattr(module, "get_allocator_backend", None)
    try:
        return None if ask is None else str(ask())
    except AttributeError:  # this torch is built without such devices
        return None


def caching_is_off(kind: str) -> bool:
    """Whether memory is taken from the driver directly, so that nothing is counted.

    The variable counts as it was when torch first looked at it, which nobody can
    tell afterwards; so it is only believed where no counter has ever moved.
    """
    if kind != _CUDA:
        return False
    if any(name in os.environ for name in _WITHOUT_CACHE):
        return True
    core = getattr(loaded_torch(), "_C", None)
    ask = getattr(core, "_cuda_cudaCachingAllocator_is_enabled", None)
    return ask is not None and not ask()
