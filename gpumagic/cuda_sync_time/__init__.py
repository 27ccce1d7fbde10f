"""The time that code really took on the GPU: `%%cuda_sync_time`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpumagic.cuda_sync_time.api import compare, find_races, measure, repeat, watch

__all__ = ["compare", "find_races", "measure", "repeat", "watch"]


def __getattr__(name: str) -> Any:
    """What works is imported when it is asked for: loading the magic stays cheap."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("gpumagic.cuda_sync_time.api"), name)


def __dir__() -> list[str]:
    """What people call; no imports of this file."""
    return __all__
