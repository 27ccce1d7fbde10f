"""Which simulated GPUs this process sees: open until the first use, then fixed."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from gpumagic.devices.protocols import Initialisation
from gpumagic.devices.visibility import visible
from gpumagic.errors import DeviceError, GpuMagicError
from gpumagic.report.units import count_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpumagic.devices.visibility import Device, Visible

_VARIABLE = "CUDA_VISIBLE_DEVICES"
# What hides every real GPU, the last as written by Slurm for a job without GPUs.
_HIDES_REAL_GPUS = ("", "-1", "NoDevFiles")


class Latch:
    """Which GPUs this process sees: open until the first use, then fixed.

    Before the first use every question reads the variable anew, as the driver reads
    it when it is started. A value that hides every GPU and was there before the
    simulation is overlooked until it is seen changed: hiding the real GPUs is a way
    to come to the simulated ones. Any other value counts.

    Args:
        devices: The machine's GPUs in the order of their numbers.

        environment: Where the variable is looked up.

    Raises:
        GpuMagicError: The value that is there names no simulated GPU.
    """

    __slots__ = (
        "_devices",
        "_environment",
        "_failed",
        "_fixed",
        "_fixed_in_pid",
        "_lock",
        "_overlooked",
    )

    def __init__(
        self, devices: Sequence[Device], environment: Mapping[str, str] = os.environ
    ) -> None:
        self._devices = tuple(devices)
        self._environment = environment
        self._failed = False
        self._fixed: tuple[int, ...] | None = None
        self._fixed_in_pid: int | None = None
        self._lock = threading.Lock()
        inherited = environment.get(_VARIABLE)
        hiding = inherited is not None and inherited.strip() in _HIDES_REAL_GPUS
        self._overlooked = inherited if hiding else None
        self._refuse_to_start_without_gpus(inherited)

    def visible(self) -> tuple[int, ...]:
        """The numbers of the GPUs seen, cuda:0 first; asking fixes nothing."""
        return self._seen_now().physical if self._fixed is None else self._fixed

    def initialise(self) -> tuple[int, ...]:
        """Fix what is visible, as the first use of a GPU does.

        Returns:
            The numbers of the GPUs seen, cuda:0 first. If there are none the use
            has failed, and the choice stays open.

        Raises:
            DeviceError: This process was forked from one that had fixed them.
        """
        if self._fixed is None:
            return self._fix()
        if self._fixed_in_pid != os.getpid():
            raise _lost_by_fork()
        return self._fixed

    def overlooks(self, mask: str | None) -> bool:
        """Whether a value of the variable shows every GPU."""
        return mask is None or mask == self._overlooked

    def pid(self) -> int | None:
        """The process in which the choice was fixed; None while it is open."""
        return self._fixed_in_pid

    def state(self) -> Initialisation:
        """How far the simulated CUDA has come in this process."""
        if self._fixed is None:
            return Initialisation.FAILED if self._failed else Initialisation.UNTOUCHED
        if self._fixed_in_pid != os.getpid():
            return Initialisation.FORKED_CHILD
        return Initialisation.INITIALISED

    def _fix(self) -> tuple[int, ...]:
        with self._lock:  # two threads may come to their first use together
            if self._fixed is None:
                seen = self._seen_now().physical
                if not seen:
                    self._failed = True
                    return ()
                self._fixed_in_pid = os.getpid()
                self._fixed = seen
            return self._fixed

    def _seen_now(self) -> Visible:
        mask = self._environment.get(_VARIABLE)
        if self.overlooks(mask):
            mask = None
        else:
            self._overlooked = None
        # Numbers follow PCI addresses here, so CUDA_DEVICE_ORDER changes nothing.
        return visible(mask, self._devices)

    def _refuse_to_start_without_gpus(self, inherited: str | None) -> None:
        seen = self._seen_now()
        if seen.physical or not self._devices:
            return
        there = count_text(len(self._devices), "GPU")
        raise GpuMagicError(
            f"{_VARIABLE}={inherited} hides the whole simulated machine, "
            f"which has {there}: {'; '.join(seen.reasons)}",
            f'del os.environ["{_VARIABLE}"], then switch the simulation on again',
        )


def _lost_by_fork() -> DeviceError:
    return DeviceError(
        "this process was forked from one that had started the simulated GPUs",
        'start it by multiprocessing.get_context("spawn")',
    )
