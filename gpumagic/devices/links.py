"""How the GPUs in use are joined to the host, by the numbers of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.devices.load import KINDS_OF_THE_DRIVER, told_of

if TYPE_CHECKING:
    from gpumagic.devices.protocols import Driver, GpuLink, Runtime


def link_in_use(driver: Driver, runtime: Runtime, device: int) -> GpuLink | None:
    """The way between one device and the host now, as the driver tells it.

    Args:
        driver: Is asked about GPUs; the numbers are those of CUDA.

        runtime: Says which kind of device it is, and whether it was started.

        device: Its number in this process.

    Returns:
        None where that cannot be told. A slice of a GPU shares the way of its GPU.
    """
    if runtime.kind not in KINDS_OF_THE_DRIVER or not runtime.started():
        return None
    shown = driver.visible_devices() or ()
    if not 0 <= device < len(shown):
        return None
    return told_of(shown[device], driver.links())
