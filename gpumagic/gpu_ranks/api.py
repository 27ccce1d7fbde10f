"""The plain functions of this room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.gpu_ranks.analysis import analyse

if TYPE_CHECKING:
    from gpumagic.gpu_ranks.watch import watch

__all__ = ["analyse", "watch"]


def __getattr__(name: str) -> object:
    """What watches needs torch: it is imported when it is asked for."""
    if name == "watch":
        from gpumagic.gpu_ranks.watch import watch

        return watch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
