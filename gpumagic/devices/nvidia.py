"""The NVIDIA machine: its GPUs by NVML, this process's CUDA by libcuda."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

from gpumagic.devices import libcuda, nvml
from gpumagic.devices.protocols import CudaState, Initialisation

if TYPE_CHECKING:
    from gpumagic.devices.protocols import Inventory


class NvidiaDriver:
    """A `Driver` that asks the real one, or finds out that there is none.

    It remembers in which process it saw CUDA initialised, so that a child forked
    after that is recognised. It has to be asked once before such a fork.
    """

    def __init__(self) -> None:
        self._initialised_in_pid: int | None = None
        self._library: str | None = None

    @property
    def simulated(self) -> bool:
        """Never."""
        return False

    def inventory(self) -> Inventory:
        """The machine's GPUs now; a failure is a `problem`, never an exception."""
        return nvml.read_inventory()

    def cuda_state(self, *, failed_attempt: bool = False) -> CudaState:
        """Whether CUDA has been initialised in this process.

        Args:
            failed_attempt: Whether the caller knows that something called `cuInit`
                here in vain, which the driver itself does not tell.
        """
        evidence = libcuda.gather_evidence(
            self._initialised_in_pid, failed_attempt=failed_attempt
        )
        found = libcuda.probe(evidence)
        if found.state is Initialisation.INITIALISED:
            self._initialised_in_pid = os.getpid()
        return dataclasses.replace(found, library=self._library_of(found))

    def _library_of(self, found: CudaState) -> str | None:
        if found.state is Initialisation.NOT_LOADED:
            return None
        # Once is enough: a mapped driver stays, and looking takes long.
        if self._library is None:
            self._library = libcuda.mapped_library()
        return self._library
