"""The NVIDIA machine: its GPUs by NVML, this process's CUDA by the driver library.

The driver reads `CUDA_VISIBLE_DEVICES` once, inside a successful `cuInit`, and no
flag of any library tells reliably whether that has happened. The driver itself does:
`cuDeviceGetCount` needs no initialisation to answer, and changes nothing.

The library is neither loaded nor started by asking. Asked for one that is not there,
the loader searches the disk for some twenty microseconds. That question is all that
loading the extension needs: ctypes, NVML and the records are imported with theirs.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumagic.devices import torch_private
from gpumagic.devices.simulated import simulated_box

if TYPE_CHECKING:
    import ctypes

    from gpumagic.devices.nvml import LoadReader
    from gpumagic.devices.protocols import (
        CudaState,
        Driver,
        GpuLoad,
        Initialisation,
        Inventory,
        VisibleDevice,
    )


LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
SUCCESS, NOT_INITIALIZED = 0, 3
NOT_LOADED = -1  # no code of CUDA's: there is no library to ask
STUB_LIBRARY = 34  # the toolkit's, which is made for linking and knows no GPU
_MAPS = Path("/proc/self/maps")
_ROCM_DRIVER = Path("/dev/kfd")
_TEXT_BYTES = 256
_UUID_BYTES = 16


class NvidiaDriver:
    """A `Driver` that asks the real one, or finds out that there is none.

    It remembers in which process it saw CUDA initialised, so that a child forked
    after that is recognised. It has to be asked once before such a fork.
    """

    simulated = False

    def __init__(self) -> None:
        self._start = StartProbe()
        self._initialised_in_pid: int | None = None
        self._library: str | None = None
        self._loads: LoadReader | None = None

    def inventory(self) -> Inventory:
        """The machine's GPUs now; a failure is a `problem`, never an exception."""
        from gpumagic.devices import nvml

        return nvml.read_inventory()

    def cuda_state(self, *, failed_attempt: bool = False) -> CudaState:
        """How far CUDA has come in this process; whether something failed to start it.

        torch is asked where it has been imported, and is not imported for it.
        """
        from gpumagic.devices.protocols import CudaState, Initialisation

        # Once is enough: a mapped driver stays, and looking takes long.
        if not self._library and self._start.library():
            self._library = mapped_library()
        try:
            code, count = self._start.device_count()
        except (AttributeError, NotImplementedError):
            return CudaState(Initialisation.UNKNOWN, library=self._library)
        if code == NOT_LOADED:
            return CudaState(Initialisation.NOT_LOADED)
        if code == SUCCESS:
            self._initialised_in_pid = os.getpid()
            state = Initialisation.INITIALISED
            return CudaState(state, code, count, self._library)
        if code == STUB_LIBRARY:
            state = Initialisation.UNKNOWN
        elif code == NOT_INITIALIZED:
            state = self._meaning_of_not_initialised(failed_attempt=failed_attempt)
        else:
            state = Initialisation.FAILED
        return CudaState(state, code, library=self._library)

    def _meaning_of_not_initialised(self, *, failed_attempt: bool) -> Initialisation:
        from gpumagic.devices.protocols import Initialisation

        in_bad_fork = getattr(sys.modules.get("torch.cuda"), "_is_in_bad_fork", bool)
        seen_in = self._initialised_in_pid
        if in_bad_fork() or seen_in not in (None, os.getpid()):
            return Initialisation.FORKED_CHILD
        # CUDA does not become uninitialised again: seen here, it has broken since.
        if failed_attempt or seen_in:
            return Initialisation.FAILED
        return Initialisation.UNTOUCHED

    def cuda_started(self) -> bool | None:
        """Whether CUDA runs in this process; None if that cannot be told.

        It is cheap enough to be asked after every cell and import.
        """
        started = self._start.started()
        if started:
            self._initialised_in_pid = os.getpid()
        return started

    def visible_devices(self) -> tuple[VisibleDevice, ...]:
        """What CUDA shows this process, cuda:0 first; empty before it has started."""
        from gpumagic.devices.protocols import VisibleDevice

        library = self._start.library()
        if not library or not self.cuda_started():
            return ()
        return tuple(VisibleDevice(**each) for each in identities(library))

    def loads(self) -> tuple[GpuLoad, ...]:
        """How the GPUs that CUDA shows do now; empty before it has started.

        One that cannot be asked is left out, and one that this process does not see is
        not touched: it is cheap enough to be asked before and after a cell.
        """
        from gpumagic.devices import nvml

        shown = self.visible_devices()
        if not shown:
            return ()
        self._loads = self._loads or nvml.LoadReader()
        return self._loads.read(shown)

    def overlooks(self, mask: str | None) -> bool:
        """Whether a value of CUDA_VISIBLE_DEVICES is as good as none: only no value."""
        return mask is None


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
            code, _ = self.device_count()
        except (AttributeError, NotImplementedError):
            return None
        return None if code == STUB_LIBRARY else code == SUCCESS

    def library(self) -> ctypes.CDLL | None:
        """The driver library, if it is loaded and this system can tell."""
        with contextlib.suppress(NotImplementedError):
            return self._loaded()
        return None

    def device_count(self) -> tuple[int, int]:
        """The code and the count of cuDeviceGetCount, or NOT_LOADED."""
        library = self._loaded()
        if not library:
            return NOT_LOADED, 0
        import ctypes

        count = ctypes.c_int(0)
        return library.cuDeviceGetCount(ctypes.byref(count)), count.value

    def _loaded(self) -> ctypes.CDLL | None:
        if not self._handle:
            only_if_loaded = getattr(os, "RTLD_NOLOAD", 0)
            if not only_if_loaded:
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
    files = (
        line[line.index("/") :]
        for line in lines
        if line.rpartition("/")[2].startswith("libcuda.so")
    )
    return next(files, None)


def identities(library: ctypes.CDLL) -> list[dict[str, str | None]]:
    """Name, UUID and PCI address of each GPU that is shown, cuda:0 first."""
    import ctypes

    count = ctypes.c_int(0)
    library.cuDeviceGetCount(ctypes.byref(count))  # where it fails, there are none
    return [_identity(library, k) for k in range(count.value)]


def _identity(library: ctypes.CDLL, ordinal: int) -> dict[str, str | None]:
    import ctypes
    import uuid

    device = ctypes.c_int(0)
    if library.cuDeviceGet(ctypes.byref(device), ordinal):
        return {"name": None, "uuid": None, "pci_address": None}

    def asked(question: str, *size: int) -> Any:
        answer = ctypes.create_string_buffer(_TEXT_BYTES)
        ask = getattr(library, question, None)
        return None if ask is None or ask(answer, *size, device) else answer

    def text(question: str) -> str | None:
        answer = asked(question, _TEXT_BYTES)
        return (answer and answer.value.decode(errors="replace")) or None

    # The first version would give a slice its GPU's UUID. Any of the bytes may be zero.
    found = asked("cuDeviceGetUuid_v2") or asked("cuDeviceGetUuid")
    return {
        "name": text("cuDeviceGetName"),
        "uuid": found and str(uuid.UUID(bytes=found.raw[:_UUID_BYTES])),
        "pci_address": _pci_address(text("cuDeviceGetPCIBusId")),
    }


def _pci_address(text: str | None) -> str | None:
    """As lspci writes it: the driver may use capitals, or a longer domain."""
    domain, _, rest = (text or "").partition(":")
    bus, _, place = rest.partition(":")
    try:
        return f"{int(domain, 16):04x}:{int(bus, 16):02x}:{place.lower()}"
    except ValueError:
        return None


def why_no_cuda(torch: Any) -> str | None:
    """Why CUDA cannot be used; None if it can, as far as that can be told.

    Starting it would freeze which GPUs are visible. So who has started it counts
    exactly, else torch counts by NVML (on ROCm: AMD SMI). Where that cannot tell (a MIG
    device, Jetson), an installed driver is trusted: torch says at the first use what
    is wrong.
    """
    if simulated_box():
        return "a simulated GPU is switched on, which is done only without a real one"
    if not torch.backends.cuda.is_built():
        return "this torch is built without CUDA"
    if torch_private.lost_by_fork(torch):
        return "this process was forked from one that had started CUDA"
    if torch.cuda.is_initialized():
        return None
    if driver_initialised():
        count: int | None = torch_private.cuda_count_latched(torch)
    else:
        count = torch_private.cuda_count_unstarted(torch)
    if count is None:
        return None if _driver_installed(torch) else "no GPU driver is installed"
    return None if count else "torch sees no GPU (hidden by CUDA_VISIBLE_DEVICES?)"


def _driver_installed(torch: Any) -> bool:
    if torch.version.hip:
        return _ROCM_DRIVER.exists()
    import ctypes

    try:
        # Loads the library, as torch itself does on import; cuInit is not called.
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


def open_driver() -> Driver:
    """The driver to ask now; opening it asks nothing and starts nothing."""
    return simulated_driver() or NvidiaDriver()


def simulated_driver() -> Driver | None:
    """The driver of the simulated machine that is switched on; None without one."""
    driver: Driver | None = getattr(simulated_box(), "driver", None)
    return driver
