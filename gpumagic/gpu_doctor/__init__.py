"""What is there, whether it fits together, what words mean: `%gpu_doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpumagic.gpu_doctor.api import examine, watch, words

__all__ = ["examine", "watch", "words"]


def __getattr__(name: str) -> Any:
    """Measuring is imported when it is asked for: loading the magic stays cheap."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gpumagic.gpu_doctor import api

    return getattr(api, name)


def __dir__() -> list[str]:
    """What people call; no imports of this file."""
    return __all__
