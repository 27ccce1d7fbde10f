"""Where a measurement finds its clocks: the runtime and the driver of this moment.

torch is not imported to find out: as long as the notebook has not done that, there is
no device to wait for, and the host's clock is right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.cuda_sync_time.floor import Floors
from gpumagic.cuda_sync_time.records.flags import Flag, FlagKind
from gpumagic.cuda_sync_time.records.setting import Setting
from gpumagic.devices.libcuda import driver_initialised
from gpumagic.devices.opening import open_runtime, runtime_now
from gpumagic.devices.simulated import simulated_box, word_of
from gpumagic.devices.torch_private import loaded_torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.devices.protocols import Driver, Runtime

__all__ = ["Instruments", "loaded_torch", "unseen_flags"]


class Instruments:
    """What all measurements of one notebook, or of one script, share.

    Attributes:
        floors: What an empty cell is measured as.

    Args:
        find_driver: The machine's driver, or the simulated one where that is on.

        runtime: The one to use, where it is not to be found.
    """

    def __init__(
        self, find_driver: Callable[[], Driver], runtime: Runtime | None = None
    ) -> None:
        self.floors = Floors()
        self._find_driver = find_driver
        self._runtime = runtime
        # By the label of the machine: asking the driver and the CPU takes a while.
        self._driver_versions: dict[str, str | None] = {}
        self._cpu_name: tuple[str | None] | tuple[()] = ()

    @property
    def driver(self) -> Driver:
        """What the machine has."""
        return self._find_driver()

    def runtime(self) -> Runtime:
        """The best that there is now: the CPU until torch has been imported."""
        return runtime_now() if self._runtime is None else self._runtime

    def torch_runtime(self) -> Runtime:
        """The best that there is, once torch has been imported for it.

        Raises:
            MissingPackage: torch is not installed.
        """
        return open_runtime() if self._runtime is None else self._runtime

    def setting(self, runtime: Runtime, *, floor_s: float | None = None) -> Setting:
        """Where it was measured; starts nothing.

        Args:
            runtime: What was measured with.

            floor_s: What an empty cell is measured as.
        """
        label = _label(runtime)
        return Setting(
            kind=word_of(runtime.kind),
            label=label,
            devices=self._devices(runtime),
            floor_s=floor_s,
            torch_version=_version(loaded_torch()),
            driver_version=self._driver_version(runtime, label),
        )

    def _devices(self, runtime: Runtime) -> tuple[tuple[int, str | None], ...]:
        if runtime.kind == "cpu":
            self._cpu_name = self._cpu_name or (runtime.device_name(0),)
            return ((0, *self._cpu_name),)
        try:
            in_use = runtime.devices_in_use()
            return tuple((device, runtime.device_name(device)) for device in in_use)
        except RuntimeError:  # a device in error answers nothing any more
            return ()

    def _driver_version(self, runtime: Runtime, label: str) -> str | None:
        if runtime.kind not in ("cuda", "sim"):
            return None
        if label not in self._driver_versions:
            self._driver_versions[label] = self.driver.inventory().driver_version
        return self._driver_versions[label]


def unseen_flags(runtime: Runtime) -> tuple[Flag, ...]:
    """CUDA that something else has started, where there is nothing to wait with."""
    can_wait = runtime.kind != "cpu" or simulated_box() is not None
    return () if can_wait or not driver_initialised() else (Flag(FlagKind.UNSEEN),)


def _label(runtime: Runtime) -> str:
    box = simulated_box() if runtime.simulated else None
    return str(getattr(box, "label", ""))


def _version(torch: Any) -> str | None:
    version = getattr(torch, "__version__", None)
    return None if version is None else str(version)
