"""The same questions over many ranks and machines: `%gpu_ranks`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpumagic.gpu_ranks.watching import watch

__all__ = ["watch"]


def __getattr__(name: str) -> Any:
    """Measuring is imported when it is asked for: loading the magic stays cheap."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gpumagic.gpu_ranks import watching

    return getattr(watching, name)


def __dir__() -> list[str]:
    """What people call; no imports of this file."""
    return __all__
