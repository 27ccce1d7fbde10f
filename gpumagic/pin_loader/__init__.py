"""Is this DataLoader feeding the GPU as fast as it can: `%pin_loader`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpumagic.pin_loader.api import diagnose, improve, pin, watch
    from gpumagic.pin_loader.prefetcher import DevicePrefetcher

__all__ = ["DevicePrefetcher", "diagnose", "improve", "pin", "watch"]


def __getattr__(name: str) -> Any:
    """What works is imported when it is asked for: loading the magic stays cheap."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "prefetcher" if name == "DevicePrefetcher" else "api"
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    """What people call; no imports of this file."""
    return __all__
