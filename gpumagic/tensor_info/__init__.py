"""How a tensor lies in memory: `%tensor_info`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpumagic.tensor_info.api import compare, describe, explain_view
    from gpumagic.tensor_info.names import aliases

__all__ = ["aliases", "compare", "describe", "explain_view"]

_PLACES = {
    "aliases": "gpumagic.tensor_info.names",
    "compare": "gpumagic.tensor_info.api",
    "describe": "gpumagic.tensor_info.api",
    "explain_view": "gpumagic.tensor_info.api",
}


def __getattr__(name: str) -> Any:
    """What works is imported when it is asked for: loading the magic stays cheap."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)
