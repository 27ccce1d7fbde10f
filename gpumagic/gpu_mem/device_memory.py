"""Reads the memory of devices in use: by torch, by the driver, by other processes.

Nothing is started: devices that are not in use are not asked.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.in_use import KINDS_OF_THE_DRIVER
from gpumagic.devices.nvml_utilisation import in_container
from gpumagic.devices.simulated import simulated_box
from gpumagic.devices.torch_private import loaded_torch
from gpumagic.devices.visible_devices import same_uuid
from gpumagic.devices.waiting import is_in_use
from gpumagic.gpu_mem.counters import read
from gpumagic.gpu_mem.records import DeviceMemory

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpumagic.devices.protocols import (
        Driver,
        Gpu,
        GpuProcess,
        Inventory,
        MigSlice,
        Runtime,
        VisibleDevice,
    )


def device_memories(runtime: Runtime, driver: Driver) -> tuple[DeviceMemory, ...]:
    """The memory of each device in use.

    Free and total are what CUDA says, which of a slice is the slice's, and in their
    place what the driver library says. Of a slice the other processes are unknown:
    the driver lists those of the whole GPU. So they are in a container with other
    processes beside it, where this one cannot be told from them.
    """
    if not is_in_use(runtime):
        return ()
    in_use = runtime.devices_in_use()
    places = _places(driver) if runtime.kind in KINDS_OF_THE_DRIVER else []
    foreign_numbers = not driver.simulated and in_container()
    return tuple(
        _memory_of(
            runtime, device, dict(enumerate(places)).get(device), foreign_numbers
        )
        for device in in_use
    )


def _memory_of(
    runtime: Runtime,
    device: int,
    place: Gpu | MigSlice | None,
    foreign_numbers: bool,  # noqa: FBT001 -- it is handed on
) -> DeviceMemory:
    told = None
    with contextlib.suppress(RuntimeError):  # a device in error answers nothing
        told = runtime.memory_bytes(device)
    free, total = told or (
        getattr(place, "memory_free_bytes", None),
        getattr(place, "memory_total_bytes", None),
    )
    listed = getattr(place, "processes", None)
    its = _processes(listed, foreign_numbers=foreign_numbers)
    return DeviceMemory(
        counters=read(runtime, device),
        name=runtime.device_name(device),
        total_bytes=total,
        free_bytes=free,
        others_bytes=its.others_bytes,
        other_processes=its.others,
        process_bytes=its.own_bytes,
        cap_bytes=_cap_bytes(runtime, device, total),
        is_silent=told is None and runtime.kind == "cuda",
    )


# ------------------------------------------------------- what the driver says of it


def _places(driver: Driver) -> list[Gpu | MigSlice | None]:
    """What the driver library knows of the devices that CUDA shows, in their order."""
    shown = driver.visible_devices()
    if not shown:
        return []
    inventory = driver.inventory()
    return [_place(each, inventory) for each in shown]


def _place(device: VisibleDevice, inventory: Inventory) -> Gpu | MigSlice | None:
    """The GPU or slice that CUDA shows, by identity: the numbers may differ."""
    for gpu in inventory.gpus:
        if same_uuid(gpu.uuid, device.uuid):
            return gpu
        for part in gpu.mig:
            if same_uuid(part.uuid, device.uuid):
                return part
    for gpu in inventory.gpus:
        is_there = gpu.pci_address is not None and gpu.pci_address == device.pci_address
        if is_there and not gpu.mig_enabled:
            return gpu
    return None


class _Processes(NamedTuple):
    """How many other processes there are, and who holds what; None is unknown."""

    others: int | None = None
    others_bytes: int | None = None
    own_bytes: int | None = None


def _processes(
    processes: Iterable[GpuProcess] | None, *, foreign_numbers: bool
) -> _Processes:
    listed = list(processes or ())
    if not listed:  # this one should be among them, so the list is not whole
        return _Processes()
    alone = len(listed) == 1
    if foreign_numbers:  # this one is among them, and any of them may be it
        own_bytes = listed[0].used_bytes if alone else None
        return _Processes(len(listed) - 1, 0 if alone else None, own_bytes)
    others = [each for each in listed if each.pid != os.getpid()]
    own = [each.used_bytes for each in listed if each.pid == os.getpid()]
    sizes = [each.used_bytes for each in others if each.used_bytes is not None]
    is_whole = bool(own) and len(sizes) == len(others)
    return _Processes(
        len(others), sum(sizes) if is_whole else None, own[0] if own else None
    )


# ------------------------------------------------------------ what torch says of it


def _cap_bytes(runtime: Runtime, device: int, total: int | None) -> int | None:
    """The limit that this process has set itself, where torch tells it."""
    box = simulated_box() if runtime.simulated else None
    if box is not None:
        allowed: int | None = box.machine.gpus[device].allocator.allowed_bytes
        return allowed
    module: Any = getattr(loaded_torch(), runtime.kind, None)
    ask = getattr(module, "get_per_process_memory_fraction", None)
    if ask is None or total is None:
        return None
    with contextlib.suppress(RuntimeError):
        share = float(ask(device))
        return int(share * total) if share < 1 else None
    return None
