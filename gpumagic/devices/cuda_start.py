"""Tells whether CUDA has started in this process: cheap enough for every cell.

The library is neither loaded nor started by asking. Asked for one that is not there,
the loader searches the disk for some twenty microseconds. But it also counts what it
has ever loaded: while that number has not grown since the last vain look, nothing can
have come.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
SUCCESS = 0
STUB_LIBRARY = 34  # the toolkit's, which is made for linking and knows no GPU


class _LoadedLibrary:
    """A library by the name under which it is loaded, once somebody has loaded it.

    Asking never loads it. It remains right in a forked child.
    """

    __slots__ = (
        "_count_loads",
        "_handle",
        "_has_looked",
        "_loads_at_last_look",
        "_name",
    )

    def __init__(self, name: str) -> None:
        self._name = name
        self._handle: ctypes.CDLL | None = None
        self._has_looked = False
        self._count_loads: Callable[[], int | None] | None = None
        self._loads_at_last_look: int | None = None

    def handle(self) -> ctypes.CDLL | None:
        """The library if it is loaded; a handle once found is kept."""
        if self._handle is None:
            self._look()
        return self._handle

    def _look(self) -> None:
        # Counted before the look: what is loaded meanwhile shows at the next.
        loads = self._loads() if self._has_looked else None
        if loads is None or loads != self._loads_at_last_look:
            self._handle = _opened_if_loaded(self._name)
            self._loads_at_last_look = loads
        self._has_looked = True

    def _loads(self) -> int | None:
        if self._count_loads is None:  # making it takes longer than one look
            self._count_loads = load_counter()
        return self._count_loads()


def load_counter() -> Callable[[], int | None]:
    """A function that tells how many libraries this process has ever loaded.

    It answers None where the loader does not count (macOS, Windows).
    """
    try:
        # Keeps Python's lock. Without it, a thread that holds that lock and waits
        # for the loader's (any import of an extension does) would never go on.
        program = ctypes.PyDLL(None)
        walk, copy = program.dl_iterate_phdr, program.memmove
    except (AttributeError, OSError, TypeError):
        return lambda: None
    entry = _LoaderEntry()
    copy.restype = ctypes.c_void_p
    copy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    # A visitor without a line of Python, which could give the lock away. What it
    # returns, the copy's address, ends the walk at the first entry.
    visitor = _Visitor(functools.partial(copy, ctypes.addressof(entry)))
    walk.argtypes = (_Visitor, ctypes.c_void_p)

    def count() -> int | None:
        walk(visitor, None)
        return entry.loads or None  # 0: the loader's entries end before this field

    return count


class _LoaderEntry(ctypes.Structure):
    """How the loader describes one library; the count is the same in each."""

    _fields_: ClassVar = [
        ("address", ctypes.c_void_p),
        ("name", ctypes.c_void_p),
        ("headers", ctypes.c_void_p),
        ("header_count", ctypes.c_uint16),
        ("loads", ctypes.c_ulonglong),
        ("what_later_loaders_add", ctypes.c_char * 4096),
    ]


_Visitor = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)


def _opened_if_loaded(name: str) -> ctypes.CDLL | None:
    only_if_loaded = getattr(os, "RTLD_NOLOAD", None)
    if only_if_loaded is None:
        raise NotImplementedError
    try:
        return ctypes.CDLL(name, mode=only_if_loaded)
    except OSError:
        return None


class StartProbe:
    """Asks the driver library for its devices, which needs no start to be answered.

    What is kept between two questions only makes the second cheap, and is right in
    a forked child too.
    """

    __slots__ = ("_library",)

    def __init__(self) -> None:
        self._library = _LoadedLibrary(LIBRARY)

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
        """The code and the count of cuDeviceGetCount; None if no library is loaded."""
        library = self._library.handle()
        if library is None:
            return None
        count = ctypes.c_int(0)
        return library.cuDeviceGetCount(ctypes.byref(count)), count.value
