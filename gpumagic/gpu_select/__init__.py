"""Which GPUs this process uses, chosen before CUDA starts: `%gpu_select`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpumagic.devices.visibility import visible
    from gpumagic.gpu_select.api import select, status

__all__ = ["select", "status", "visible"]

_PLACES = {
    "select": "gpumagic.gpu_select.api",
    "status": "gpumagic.gpu_select.api",
    "visible": "gpumagic.devices.visibility",
}


def __getattr__(name: str) -> Any:
    """What works is imported when it is asked for: loading the magic stays cheap."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    """What people call; no imports of this file."""
    return __all__
