"""The NVIDIA machine: its GPUs by NVML, this process's CUDA by libcuda.

Asking whether CUDA has started is all that loading the extension needs, so the rest
is imported with its question.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gpumagic.devices.cuda_start import StartProbe

if TYPE_CHECKING:
    from gpumagic.devices.nvml_utilisation import LoadReader
    from gpumagic.devices.protocols import CudaState, GpuLoad, Inventory, VisibleDevice


class NvidiaDriver:
    """A `Driver` that asks the real one, or finds out that there is none.

    It remembers in which process it saw CUDA initialised, so that a child forked
    after that is recognised. It has to be asked once before such a fork.
    """

    def __init__(self) -> None:
        self._start = StartProbe()
        self._initialised_in_pid: int | None = None
        self._library: str | None = None
        self._loads: LoadReader | None = None

    @property
    def simulated(self) -> bool:
        """Never."""
        return False

    def inventory(self) -> Inventory:
        """The machine's GPUs now; a failure is a `problem`, never an exception."""
        from gpumagic.devices import nvml

        return nvml.read_inventory()

    def cuda_state(self, *, failed_attempt: bool = False) -> CudaState:
        """Whether CUDA has been initialised in this process."""
        from gpumagic.devices import libcuda
        from gpumagic.devices.protocols import Initialisation

        evidence = libcuda.gather_evidence(
            self._initialised_in_pid, failed_attempt=failed_attempt
        )
        found = libcuda.state_of(self._start, evidence, library=self._mapped_library())
        if found.state is Initialisation.INITIALISED:
            self._initialised_in_pid = os.getpid()
        return found

    def cuda_started(self) -> bool | None:
        """Whether CUDA runs in this process; None if that cannot be told.

        Unlike `cuda_state` it tells nothing else, in a microsecond.
        """
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

        visible_devices = self.visible_devices() or ()
        if visible_devices and self._loads is None:
            self._loads = nvml_utilisation.LoadReader()
        return (
            self._loads.read(visible_devices) if visible_devices and self._loads else ()
        )

    def overlooks(self, mask: str | None) -> bool:
        """Only no value is as good as none."""
        return mask is None

    def _mapped_library(self) -> str | None:
        from gpumagic.devices.mapped_library import mapped_library

        # Once is enough: a mapped driver stays, and looking takes long.
        if self._library is None and self._start.library() is not None:
            self._library = mapped_library()
        return self._library
