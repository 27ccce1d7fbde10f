"""Whether CUDA has started in this process, cheap to ask and cheap to import.

The library is neither loaded nor started by asking.
"""

from __future__ import annotations

import ctypes
import sys

from gpumagic.devices.loaded import LoadedLibrary

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
SUCCESS = 0
STUB_LIBRARY = 34  # the toolkit's, which is made for linking and knows no GPU


class StartProbe:
    """Asks the driver library for its devices, which needs no start to be answered.

    What is kept between two questions only makes the second cheap, and is right in
    a forked child too.
    """

    __slots__ = ("_library",)

    def __init__(self) -> None:
        self._library = LoadedLibrary(LIBRARY)

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
            return self._library.handle()
        except NotImplementedError:
            return None

    def device_count(self) -> tuple[int, int] | None:
        """The code and the count of cuDeviceGetCount; None if no library is loaded.

        Raises:
            NotImplementedError: This system cannot tell what is loaded (Windows).

            AttributeError: What is loaded under the driver's name is not the driver.
        """
        library = self._library.handle()
        if library is None:
            return None
        count = ctypes.c_int(0)
        return library.cuDeviceGetCount(ctypes.byref(count)), count.value
