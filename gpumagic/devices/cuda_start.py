"""Tells whether CUDA has started in this process: cheap enough for every cell.

The driver reads `CUDA_VISIBLE_DEVICES` once, inside a successful `cuInit`, and no
flag of any library tells reliably whether that has happened. The driver itself does:
`cuDeviceGetCount` needs no initialisation to answer, and changes nothing.

The library is neither loaded nor started by asking. Asked for one that is not there,
the loader searches the disk for some twenty microseconds. ctypes, which takes two
milliseconds, is imported once somebody asks.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ctypes

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
SUCCESS, NOT_INITIALIZED = 0, 3
STUB_LIBRARY = 34  # the toolkit's, which is made for linking and knows no GPU
_MAPS = Path("/proc/self/maps")


class StartProbe:
    """Asks the driver library for its devices, which needs no start to be answered."""

    __slots__ = ("_handle",)

    def __init__(self) -> None:
        self._handle: ctypes.CDLL | None = None

    def started(self) -> bool | None:
        """Whether `cuInit` has succeeded in this process; None if it cannot be told.

        In the forked child of a process that has started CUDA it has not.
        """
        try:
            answer = self.device_count()
        except (AttributeError, NotImplementedError):
            return None
        if answer is None:
            return False
        return None if answer[0] == STUB_LIBRARY else answer[0] == SUCCESS

    def library(self) -> ctypes.CDLL | None:
        """The driver library, if it is loaded and this system can tell."""
        with contextlib.suppress(NotImplementedError):
            return self._loaded()
        return None

    def device_count(self) -> tuple[int, int] | None:
        """The code and the count of cuDeviceGetCount; None if no library is loaded."""
        library = self._loaded()
        if library is None:
            return None
        import ctypes

        count = ctypes.c_int(0)
        return library.cuDeviceGetCount(ctypes.byref(count)), count.value

    def _loaded(self) -> ctypes.CDLL | None:
        if self._handle is None:
            only_if_loaded = getattr(os, "RTLD_NOLOAD", None)
            if only_if_loaded is None:
                raise NotImplementedError
            import ctypes

            with contextlib.suppress(OSError):
                self._handle = ctypes.CDLL(LIBRARY, mode=only_if_loaded)
        return self._handle


def driver_initialised() -> bool:
    """Whether somebody in this process has already called cuInit."""
    return StartProbe().started() is True


def mapped_library() -> str | None:
    """The file of the driver library in this process, read without asking it."""
    try:
        lines = _MAPS.read_text(errors="replace").splitlines()
    except OSError:
        return None
    files = (line for line in lines if line.rpartition("/")[2].startswith("libcuda.so"))
    line = next(files, None)
    return None if line is None else line[line.index("/") :]
