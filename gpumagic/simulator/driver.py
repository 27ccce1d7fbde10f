"""The driver of a simulated machine, and which of its GPUs this process sees.

It answers what NVML and libcuda answer of a real machine. Every GPU's name begins
with "simulated", so that no figure is taken for that of hardware.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import uuid
from typing import TYPE_CHECKING

from gpumagic.devices.protocols import (
    CudaState,
    Gpu,
    GpuLoad,
    GpuProcess,
    Initialisation,
    Inventory,
    VisibleDevice,
)
from gpumagic.devices.visibility import visible as seen_through
from gpumagic.errors import DeviceError, GpuMagicError
from gpumagic.report.units import count_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpumagic.devices.visibility import Visible
    from gpumagic.simulator.machine import SimulatedGpu
    from gpumagic.simulator.models import GpuModel

_VARIABLE = "CUDA_VISIBLE_DEVICES"
# What hides every real GPU, the last as written by Slurm for a job without GPUs.
_HIDES_REAL_GPUS = ("", "-1", "NoDevFiles")
_SUCCESS, _NOT_INITIALIZED = 0, 3


class SimulatedDriver:
    """A `Driver` for a machine of simulated GPUs.

    Which of them this process sees is open until the first use, then fixed. Before
    that every question reads the variable anew, as the driver reads it when it is
    started. A value that hides every GPU and was there before the simulation is
    overlooked until it is seen changed: hiding the real GPUs is a way to come to the
    simulated ones. Any other value counts.
    """

    simulated = True

    def __init__(
        self,
        gpus: Sequence[SimulatedGpu],
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._gpus = tuple(gpus)
        self._identities = tuple(
            identity(gpu.model, index) for index, gpu in enumerate(self._gpus)
        )
        self._environment = environment
        self._unfixed = Initialisation.UNTOUCHED  # as long as nothing is fixed
        self._fixed: tuple[int, ...] = ()
        self._fixed_in_pid = 0
        self._lock = threading.Lock()
        inherited = environment.get(_VARIABLE)
        self._overlooked: str | None = None
        if environment.get(_VARIABLE, "0").strip() in _HIDES_REAL_GPUS:
            self._overlooked = inherited
        seen = self._seen_now()
        if self._gpus and not seen.physical:
            raise GpuMagicError(
                f"{_VARIABLE}={inherited} hides the whole simulated machine, which has "
                f"{count_text(len(self._gpus), 'GPU')}: {'; '.join(seen.reasons)}",
                f'del os.environ["{_VARIABLE}"], then switch the simulation on again',
            )

    def inventory(self) -> Inventory:
        """The machine's GPUs now, visible or not; what is not modelled is unknown."""
        return Inventory(
            driver_version="simulated",
            gpus=tuple(self._gpu(index) for index in range(len(self._gpus))),
        )

    def cuda_state(self) -> CudaState:
        """How far the simulated CUDA has come in this process."""
        state = self.state()
        if not self.cuda_started():
            return CudaState(state, code=_NOT_INITIALIZED, library="simulated")
        count = len(self.visible())
        return CudaState(state, code=_SUCCESS, device_count=count, library="simulated")

    def cuda_started(self) -> bool:
        """Whether the simulated CUDA has been initialised in this process."""
        return self.state() is Initialisation.INITIALISED

    def visible_devices(self) -> tuple[VisibleDevice, ...]:
        """The GPUs that were fixed, cuda:0 first; empty before the first use."""
        if not self.cuda_started():
            return ()
        seen = [self._identities[index] for index in self.visible()]
        return tuple(
            VisibleDevice(
                gpu.name, (gpu.uuid or "").removeprefix("GPU-"), gpu.pci_address
            )
            for gpu in seen
        )

    def loads(self) -> tuple[GpuLoad, ...]:
        """How the GPUs that were fixed do; empty before the first use.

        The model has no clocks that change, so nothing ever holds one down.
        """
        if not self.cuda_started():
            return ()
        return tuple(
            GpuLoad(
                index,
                uuid=self._identities[index].uuid,
                limiters=(),
                other_processes=0,
                pci_address=self._identities[index].pci_address,
            )
            for index in self.visible()
        )

    def visible(self) -> tuple[int, ...]:
        """The numbers of the GPUs seen, cuda:0 first; asking fixes nothing."""
        return self._fixed or self._seen_now().physical

    def initialise(self) -> tuple[int, ...]:
        """Fix what is visible, as the first use of a GPU does."""
        with self._lock:  # two threads may come to their first use together
            if not self._fixed:
                seen = self._seen_now().physical
                if not seen:
                    self._unfixed = Initialisation.FAILED
                    return ()
                self._fixed, self._fixed_in_pid = seen, os.getpid()
        if self._fixed_in_pid != os.getpid():
            raise DeviceError(
                "this process was forked from one that had started the simulated GPUs",
                'start it by multiprocessing.get_context("spawn")',
            )
        return self._fixed

    def overlooks(self, mask: str | None) -> bool:
        """Whether a value of the variable shows every GPU."""
        return mask in {None, self._overlooked}

    def state(self) -> Initialisation:
        """How far the simulated CUDA has come in this process."""
        if not self._fixed:
            return self._unfixed
        if self._fixed_in_pid != os.getpid():
            return Initialisation.FORKED_CHILD
        return Initialisation.INITIALISED

    def _seen_now(self) -> Visible:
        mask = self._environment.get(_VARIABLE)
        if self.overlooks(mask):
            mask = None
        else:
            self._overlooked = None
        # Numbers follow PCI addresses here, so CUDA_DEVICE_ORDER changes nothing.
        return seen_through(mask, self._identities)

    def _gpu(self, index: int) -> Gpu:
        model, own_bytes = self._gpus[index].model, self._gpus[index].used_bytes()
        # In a forked child the memory is still its parent's.
        process = GpuProcess(self._fixed_in_pid or os.getpid(), own_bytes, "compute")
        return dataclasses.replace(
            self._identities[index],
            memory_total_bytes=model.memory_bytes,
            memory_free_bytes=max(0, model.memory_bytes - own_bytes),
            memory_used_bytes=own_bytes,
            memory_reserved_bytes=0,
            processes=(process,) if own_bytes else (),
        )


def identity(model: GpuModel, index: int) -> Gpu:
    """What does not change of a GPU, the same in every run and every process."""
    seed = f"gpumagic {model.label} {index}"
    return Gpu(
        index=index,
        name=model.label,
        uuid=f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, seed)}",
        pci_address=f"{index // 16:04x}:{8 + 8 * (index % 16):02x}:00.0",
        compute_capability=model.compute_capability,
        compute_mode="default",
        mig_enabled=False,
    )
