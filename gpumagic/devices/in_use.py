"""The GPUs in use: how they do, what has failed, by this process's own numbers."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Protocol, TypeVar

from gpumagic.devices.visible_devices import same_uuid
from gpumagic.devices.waiting import is_capturing
from gpumagic.errors import first_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpumagic.devices.protocols import (
        Driver,
        GpuLink,
        GpuLoad,
        Runtime,
        VisibleDevice,
    )

KINDS_OF_THE_DRIVER = frozenset({"cuda", "sim"})


class _Identified(Protocol):
    """What the driver tells of a GPU, with who it is."""

    @property
    def uuid(self) -> str | None:
        """NVML's, with its GPU- in front."""

    @property
    def pci_address(self) -> str | None:
        """Where it is plugged in."""


Told = TypeVar("Told", bound=_Identified)


def loads(driver: Driver, runtime: Runtime) -> dict[int, GpuLoad]:
    """The loads of the devices in use, by device number."""
    if runtime.kind not in KINDS_OF_THE_DRIVER or not runtime.started():
        return {}
    shown, known = driver.visible_devices() or (), driver.loads()
    in_use = (each for each in runtime.devices_in_use() if each < len(shown))
    found = ((device, _load_of(shown[device], known)) for device in in_use)
    return {device: load for device, load in found if load is not None}


def failure(runtime: Runtime) -> str | None:
    """What a device in use has failed with, in its own words; None if none has.

    Its current stream is asked once, which neither waits nor starts anything: after
    an error in a kernel each answer is that error, for as long as the process lives.
    What is being captured is left in peace, as a question would end it.
    """
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


def _told_of(device: VisibleDevice, known: Iterable[Told]) -> Told | None:
    """What the driver tells of a device; of a slice what it tells of its GPU."""
    for each in known:
        if same_uuid(each.uuid, device.uuid):
            return each
        if each.pci_address and each.pci_address == device.pci_address:
            return each
    return None


def _load_of(device: VisibleDevice, known: Iterable[GpuLoad]) -> GpuLoad | None:
    load = _told_of(device, known)
    if load is None or same_uuid(load.uuid, device.uuid):
        return load
    return _of_a_slice(load) if load.uuid and device.uuid else load


def _of_a_slice(load: GpuLoad) -> GpuLoad:
    # Same place, another identity. The driver counts processes of all its slices.
    return dataclasses.replace(load, other_processes=None)


def link_in_use(driver: Driver, runtime: Runtime, device: int) -> GpuLink | None:
    """The way between one device and the host now, as the driver tells it."""
    if runtime.kind not in KINDS_OF_THE_DRIVER or not runtime.started():
        return None
    shown = driver.visible_devices() or ()
    if not 0 <= device < len(shown):
        return None
    return _told_of(shown[device], driver.links())
