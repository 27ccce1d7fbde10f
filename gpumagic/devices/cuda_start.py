"""Tells whether CUDA has started in this process: cheap enough for every cell.

The library is neither loaded nor started by asking. Asked for one that is not there,
the loader searches the disk for some twenty microseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
SUCCESS = 0
STUB_LIBRARY = 34  # the toolkit's, which is made for linking and knows no GPU


class StartProbe:
    """Asks the driver library for its devices, which needs no start to be answered.

    A handle once found is kept, and is right in a forked child too.
    """

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
        try:
            return self._loaded()
        except NotImplementedError:
            return None

    def device_count(self) -> tuple[int, int] | None:
        """The code and the count of cuDeviceGetCount; None if no library is loaded."""
        library = self._loaded()
        if library is None:
            return None
        count = ctypes.c_int(0)
        return library.cuDeviceGetCount(ctypes.byref(count)), count.value

    def _loaded(self) -> ctypes.CDLL | None:
        if self._handle is None:
            only_if_loaded = getattr(os, "RTLD_NOLOAD", None)
            if only_if_loaded is None:
                raise NotImplementedError
            with contextlib.suppress(OSError):
                self._handle = ctypes.CDLL(LIBRARY, mode=only_if_loaded)
        return self._handle
