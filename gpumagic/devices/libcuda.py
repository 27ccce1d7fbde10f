"""Whether `cuInit` has run in this process, found out without running it.

The driver reads `CUDA_VISIBLE_DEVICES` once, inside a successful `cuInit`, and no
flag of any library tells reliably whether that has happened. The driver itself
does: `cuDeviceGetCount` needs no initialisation to answer, and changes nothing.
"""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from gpumagic.devices.loaded import LoadedLibrary
from gpumagic.devices.protocols import CudaState, Initialisation

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_MAPS = Path("/proc/self/maps")

_SUCCESS = 0
_NOT_INITIALIZED = 3
_STUB_LIBRARY = 34  # the toolkit's, which is made for linking and knows no GPU


@dataclass(frozen=True)
class Evidence:
    """What tells the three meanings of "not initialised" apart.

    Attributes:
        initialised_in_pid: The process in which CUDA was seen initialised.

        in_bad_fork: Whether torch knows this process as the forked child of one
            that had initialised CUDA.

        failed_attempt: Whether something called `cuInit` here in vain.
    """

    initialised_in_pid: int | None = None
    in_bad_fork: bool = False
    failed_attempt: bool = False


NO_EVIDENCE = Evidence()


class Probe:
    """Asks the driver library how far CUDA has come; keep one to ask often.

    The library is neither loaded nor started by asking. What is kept between two
    questions only makes the second cheap, and is right in a forked child too.
    """

    __slots__ = ("_library",)

    def __init__(self) -> None:
        self._library = LoadedLibrary(LIBRARY)

    def state(
        self, evidence: Evidence = NO_EVIDENCE, *, library: str | None = None
    ) -> CudaState:
        """How far CUDA has come in this process.

        Any answer but success and "not initialised" counts as a failed attempt, for
        only `cuInit` brings the driver to give it.

        Args:
            evidence: What the caller knows; without any, "not initialised" is taken
                to mean that nobody has tried.

            library: The file that is mapped, if the caller knows it: it is put into
                the answer.
        """
        try:
            answer = self._device_count()
        except (AttributeError, NotImplementedError):
            return CudaState(Initialisation.UNKNOWN, library=library)
        if answer is None:
            return CudaState(Initialisation.NOT_LOADED)
        code, count = answer
        return CudaState(
            _state(code, evidence),
            code=code,
            device_count=count if code == _SUCCESS else None,
            library=library,
        )

    def started(self) -> bool | None:
        """Whether `cuInit` has succeeded in this process; None if it cannot be told.

        In the forked child of a process that has started CUDA it has not.
        """
        try:
            answer = self._device_count()
        except (AttributeError, NotImplementedError):
            return None
        if answer is None:
            return False
        return None if answer[0] == _STUB_LIBRARY else answer[0] == _SUCCESS

    def library(self) -> ctypes.CDLL | None:
        """The driver library, if it is loaded and this system can tell."""
        try:
            return self._library.handle()
        except NotImplementedError:
            return None

    def _device_count(self) -> tuple[int, int] | None:
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


def probe(evidence: Evidence = NO_EVIDENCE) -> CudaState:
    """How far CUDA has come in this process, for those who ask once.

    Args:
        evidence: As for `Probe.state`.
    """
    return Probe().state(evidence)


def gather_evidence(
    initialised_in_pid: int | None = None, *, failed_attempt: bool = False
) -> Evidence:
    """The caller's evidence and torch's, if torch is imported; imports nothing."""
    torch_cuda = sys.modules.get("torch.cuda")
    in_bad_fork = getattr(torch_cuda, "_is_in_bad_fork", None)
    return Evidence(
        initialised_in_pid=initialised_in_pid,
        in_bad_fork=bool(in_bad_fork()) if callable(in_bad_fork) else False,
        failed_attempt=failed_attempt,
    )


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


def _state(code: int, evidence: Evidence) -> Initialisation:
    if code == _SUCCESS:
        return Initialisation.INITIALISED
    if code == _STUB_LIBRARY:
        return Initialisation.UNKNOWN
    if code != _NOT_INITIALIZED:
        return Initialisation.FAILED
    return _meaning_of_not_initialised(evidence)


def _meaning_of_not_initialised(evidence: Evidence) -> Initialisation:
    seen_in = evidence.initialised_in_pid
    if evidence.in_bad_fork or seen_in not in (None, os.getpid()):
        return Initialisation.FORKED_CHILD
    # CUDA does not become uninitialised again: seen here, it has broken since.
    if evidence.failed_attempt or seen_in is not None:
        return Initialisation.FAILED
    return Initialisation.UNTOUCHED
