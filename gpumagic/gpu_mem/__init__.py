"""Where the GPU memory went, cell by cell, by name: `%gpu_mem`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpumagic.gpu_mem.api import fit, holders, memory_map, snapshot, watch

__all__ = ["fit", "holders", "memory_map", "snapshot", "watch"]


def __getattr__(name: str) -> Any:
    """What works is imported when it is asked for: loading the magic stays cheap."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("gpumagic.gpu_mem.api"), name)


def __dir__() -> list[str]:
    """What people call; no imports of this file."""
    return __all__
