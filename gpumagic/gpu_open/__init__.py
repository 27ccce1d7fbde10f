"""Recordings that came home as files, of one process or of many: `%gpu_open`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpumagic.gpu_open.api import compare, read

__all__ = ["compare", "read"]


def __getattr__(name: str) -> Any:
    """Reading is imported when it is asked for: loading the magic stays cheap."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gpumagic.gpu_open import api

    return getattr(api, name)


def __dir__() -> list[str]:
    """What people call; no imports of this file."""
    return __all__
