"""Gives back the page-locked memory that torch keeps for later, and nobody uses.

torch has a public word for it since 2.12 and private ones before. Memory in use is not
touched.
"""

from __future__ import annotations

import contextlib
from typing import Any

_PRIVATE = ("_accelerator_emptyHostCache", "_host_emptyCache")


def empty_host_cache(torch: Any) -> bool:
    """Give back what is unused; ask after the start.

    Args:
        torch: The torch module itself.

    Returns:
        Whether this torch can do that here.
    """
    accelerator = getattr(torch, "accelerator", None)
    words = [
        getattr(accelerator, "empty_host_cache", None),
        *(getattr(torch._C, name, None) for name in _PRIVATE),  # noqa: SLF001
    ]
    for empty in words:
        if empty is not None:
            with contextlib.suppress(RuntimeError):
                empty()
                return True
    return False
