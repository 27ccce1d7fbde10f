"""Whose process it is that the driver lists."""

from __future__ import annotations

import os
from pathlib import Path

_PROCESSES = Path("/proc")
_FIRST_NAMESPACE = "pid:[4026531836]"  # the machine's own; the number never changes


def is_mine(pid: int) -> bool | None:
    """Whether a process belongs to this user; None where that cannot be told.

    The driver gives the numbers of the machine. In a container the same number is
    another process, so there nothing is said of it.
    """
    try:
        if str((_PROCESSES / "self/ns/pid").readlink()) != _FIRST_NAMESPACE:
            return None
        return (_PROCESSES / str(pid)).stat().st_uid == os.getuid()
    except (OSError, AttributeError):
        return None
