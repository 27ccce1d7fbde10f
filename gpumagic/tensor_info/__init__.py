"""How a tensor lies in memory: `%tensor_info`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpumagic.tensor_info.api import (
        aliases,
        compare,
        describe,
        explain_view,
        overview,
    )

__all__ = ["aliases", "compare", "describe", "explain_view", "overview"]


def __getattr__(name: str) -> Any:
    """What works is imported when it is asked for: loading the magic stays cheap."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("gpumagic.tensor_info.api"), name)


def __dir__() -> list[str]:
    """What people call; no imports of this file."""
    return __all__
