"""The NVIDIA machine: its GPUs by NVML, this process's CUDA by the driver library.

Asking whether CUDA has started is all that loading the extension needs, so the rest
is imported with its question.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from gpumagic.devices.cuda_start import (
    NOT_INITIALIZED,
    STUB_LIBRARY,
    SUCCESS,
    StartProbe,
    mapped_library,
)

if TYPE_CHECKING:
    from gpumagic.devices.nvml_utilisation import LoadReader
    from gpumagic.devices.protocols import (
        CudaState,
        GpuLoad,
        Initialisation,
        Inventory,
        VisibleDevice,
    )


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
        if self._library is None and self._start.library() is not None:
            self._library = mapped_library()
        try:
            answer = self._start.device_count()
        except (AttributeError, NotImplementedError):
            return CudaState(Initialisation.UNKNOWN, library=self._library)
        if answer is None:
            return CudaState(Initialisation.NOT_LOADED)
        code, count = answer
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
        if failed_attempt or seen_in is not None:
            return Initialisation.FAILED
        return Initialisation.UNTOUCHED

    def cuda_started(self) -> bool | None:
        """Whether CUDA runs in this process; None if that cannot be told."""
        started = self._start.started()
        if started:
            self._initialised_in_pid = os.getpid()
        return started

    def visible_devices(self) -> tuple[VisibleDevice, ...] | None:
        """What CUDA shows this process, cuda:0 first; None before it has started."""
        from gpumagic.devices import visible_devices
        from gpumagic.devices.protocols import VisibleDevice

        library = self._start.library()
        if library is None or not self.cuda_started():
            return None
        return tuple(
            VisibleDevice(**each) for each in visible_devices.identities(library)
        )

    def loads(self) -> tuple[GpuLoad, ...]:
        """How the GPUs that CUDA shows do now; empty before it has started."""
        from gpumagic.devices import nvml_utilisation

        shown = self.visible_devices() or ()
        if not shown:
            return ()
        self._loads = self._loads or nvml_utilisation.LoadReader()
        return self._loads.read(shown)

    def overlooks(self, mask: str | None) -> bool:
        """Only no value is as good as none."""
        return mask is None
