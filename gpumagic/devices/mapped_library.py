"""Which driver library is mapped into this process, read without asking it.

`%load_ext` needs it, so it stands apart from what asks the library by ctypes.
"""

from __future__ import annotations

from pathlib import Path

_MAPS = Path("/proc/self/maps")


def mapped_library() -> str | None:
    """The file of the driver library in this process, where that can be told."""
    try:
        lines = _MAPS.read_text(errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.rpartition("/")[2].startswith("libcuda.so"):
            return line[line.index("/") :]
    return None
