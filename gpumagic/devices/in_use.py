"""The GPUs in use: how they do, what has failed, by this process's own numbers."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from gpumagic.devices.visible_devices import same_uuid
from gpumagic.devices.waiting import is_capturing
from gpumagic.errors import first_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpumagic.devices.protocols import Driver, GpuLoad, Runtime, VisibleDevice

KINDS_OF_THE_DRIVER = frozenset({"cuda", "sim"})


def loads(driver: Driver, runtime: Runtime) -> dict[int, GpuLoad]:
    """The loads of the devices in use, by device number."""
    if runtime.kind not in KINDS_OF_THE_DRIVER or not runtime.started():
        return {}
    shown, known = driver.visible_devices() or (), driver.loads()
    in_use = (each for each in runtime.devices_in_use() if each < len(shown))
    found = ((device, _load_of(shown[device], known)) for device in in_use)
    return {device: load for device, load in found if load is not None}


def failure(runtime: Runtime) -> str | None:
    """What a device in use has failed with, in its own words; None if none has."""
    try:
        if not is_capturing(runtime):
            _ask_streams(runtime)
    except RuntimeError as error:
        return first_line(error)
    return None


def _ask_streams(runtime: Runtime) -> None:
    for device in runtime.devices_in_use():
        stream = runtime.current_stream(device)
        if stream is not None:
            stream.query()


def _load_of(device: VisibleDevice, known: Iterable[GpuLoad]) -> GpuLoad | None:
    """What the driver tells of a device; of a slice what it tells of its GPU."""
    for load in known:
        if same_uuid(load.uuid, device.uuid):
            return load
        if load.pci_address and load.pci_address == device.pci_address:
            # Same place, another identity: processes of all its slices are counted.
            slice_of_it = load.uuid and device.uuid
            return (
                dataclasses.replace(load, other_processes=None) if slice_of_it else load
            )
    return None
