"""Reads what the allocator and the driver count, and judges what matters at once.

Nothing is started: devices that are not in use are not asked.
"""

from __future__ import annotations

import contextlib
import math
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpumagic.devices.memory_counters import (
    allocator_backend,
    allocator_figures,
    caching_is_off,
    figure,
)
from gpumagic.devices.now import KINDS_OF_THE_DRIVER
from gpumagic.devices.nvml import in_container, same_uuid
from gpumagic.devices.simulated import simulated_box, word_of
from gpumagic.devices.torch_private import loaded_torch
from gpumagic.devices.waiting import is_in_use
from gpumagic.gpu_mem.records import (
    BadgeKind,
    CellBadge,
    Counters,
    DeviceMemory,
    Setting,
)
from gpumagic.report.units import known_sum

if TYPE_CHECKING:
    from collections.abc import Collection

    from gpumagic.devices import protocols
    from gpumagic.devices.protocols import Driver, Gpu, MigSlice, Runtime

NATIVE = "native"
_NO_LIMIT_BYTES = 1 << 62  # torch's own word for none is larger still, or negative
# What CUDA's own pools tell; torch reports zero for all else of them.
_COUNTED = {"cudaMallocAsync": ("allocated_bytes", "reserved_bytes", "peak_bytes")}

# torch's documents call the family of numbers `allocated`; it is `allocation`.
_KEYS = {
    "allocated_bytes": ("allocated_bytes.all.current",),
    "reserved_bytes": ("reserved_bytes.all.current",),
    "active_bytes": ("active_bytes.all.current",),
    "peak_bytes": ("allocated_bytes.all.peak",),
    "taken_bytes": ("allocated_bytes.all.allocated",),
    "given_back_bytes": ("allocated_bytes.all.freed",),
    "taken": ("allocation.all.allocated",),
    "retries": ("num_alloc_retries",),
    "ooms": ("num_ooms",),
    "driver_calls": ("num_device_alloc", "num_device_free"),
}
_GROWING = {
    BadgeKind.RETRY: "retries",
    BadgeKind.OOM_CAUGHT: "ooms",
    BadgeKind.DRIVER_CALLS: "driver_calls",
}


def read(runtime: Runtime, device: int) -> Counters:
    """The counters of one device in use; None is one that its allocator lacks."""
    figures = allocator_figures(runtime, device) or {}
    counted = {}
    for name, keys in _KEYS.items():
        counted[name] = known_sum([figure(figures, key) for key in keys])
    if not any(counted.values()) and caching_is_off(runtime.kind):
        return Counters(device)
    backend = allocator_backend(runtime.kind) or NATIVE
    if backend != NATIVE:
        its = _COUNTED.get(backend, ())
        counted = {name: n for name, n in counted.items() if n or name in its}
    return Counters(device, **counted)


def read_all(runtime: Runtime) -> dict[int, Counters]:
    """The counters of every device in use, by its number; none before the start."""
    if not is_in_use(runtime):
        return {}
    return {device: read(runtime, device) for device in runtime.devices_in_use()}


def from_zero(counters: Counters) -> Counters:
    """What a device had counted before its first use, where it counts at all."""
    known = {name: 0 for name in _KEYS if getattr(counters, name) is not None}
    return Counters(counters.device, **known)


def max_split_bytes(runtime: Runtime, device: int) -> float:
    """From which size on blocks are not split; infinite where all of them may be."""
    found = figure(allocator_figures(runtime, device) or {}, "max_split_size") or 0
    return found if 0 < found < _NO_LIMIT_BYTES else math.inf


def setting_of(runtime: Runtime) -> Setting:
    """Where it was looked; starts nothing."""
    box = simulated_box() if runtime.simulated else None
    return Setting(word_of(runtime.kind), str(getattr(box, "label", "")))


# ---------------------------------------------------------- what should be seen at once


def badges_now(kind: str, devices: Collection[DeviceMemory]) -> tuple[CellBadge, ...]:
    """The badges of how things stand."""
    badges = list(badges_of_allocator(kind, [each.counters for each in devices]))
    for each in devices:
        number = each.counters.device
        if each.is_silent:
            badges.append(CellBadge(BadgeKind.SILENT, number))
        if each.other_processes:
            badges.append(CellBadge(BadgeKind.SHARED, number, each.other_processes))
    return tuple(badges)


def badges_of_allocator(
    kind: str, devices: Collection[Counters]
) -> tuple[CellBadge, ...]:
    """Whether the allocator of these devices does not count all of it."""
    return tuple(
        CellBadge(BadgeKind.UNCOUNTED, each.device)
        for each in devices
        if (allocator_backend(kind) or NATIVE) != NATIVE
        or (each.allocated_bytes is None and caching_is_off(kind))
    )


def badges_between(
    before: Counters, after: Counters, *, ended_by_oom: bool = False
) -> tuple[CellBadge, ...]:
    """The badges of one device, in the order of their kinds.

    What comes of another is left out: a retry gives the cache back.
    """
    grown = {}
    for kind, name in _GROWING.items():
        now, then = getattr(after, name) or 0, getattr(before, name) or 0
        # Less than before: reset in between, and counted anew since.
        grown[kind] = now if now < then else now - then
    grown[BadgeKind.OOM_CAUGHT] -= int(ended_by_oom)
    if grown[BadgeKind.RETRY] > 0:
        grown[BadgeKind.DRIVER_CALLS] = 0
    return tuple(CellBadge(k, after.device, n) for k, n in grown.items() if n > 0)


# ---------------------------------------------------------- the memory of whole devices


def device_memories(runtime: Runtime, driver: Driver) -> tuple[DeviceMemory, ...]:
    """The memory of each device in use.

    Free and total are what CUDA says, which of a slice is the slice's, and in their
    place what the driver library says. Of a slice the other processes are unknown:
    the driver lists those of the whole GPU. So they are in a container with other
    processes beside it, where this one cannot be told from them.
    """
    if not is_in_use(runtime):
        return ()
    places = _places(driver) if runtime.kind in KINDS_OF_THE_DRIVER else []
    foreign_numbers = not driver.simulated and in_container()
    found = []
    for device in runtime.devices_in_use():
        place, told = dict(enumerate(places)).get(device), None
        with contextlib.suppress(RuntimeError):  # a device in error answers nothing
            told = runtime.memory_bytes(device)
        free, total = told or (
            getattr(place, "memory_free_bytes", None),
            getattr(place, "memory_total_bytes", None),
        )
        listed = list(getattr(place, "processes", None) or ())
        memory = DeviceMemory(
            counters=read(runtime, device),
            name=runtime.device_name(device),
            total_bytes=total,
            free_bytes=free,
            cap_bytes=_cap_bytes(runtime, device, total),
            is_silent=told is None and runtime.kind == "cuda",
        )
        found.append(_with_processes(memory, listed, foreign_numbers=foreign_numbers))
    return tuple(found)


# ------------------------------------------------------- what the driver says of it


def _places(driver: Driver) -> list[Gpu | MigSlice | None]:
    """What the driver library knows of the devices that CUDA shows, in their order."""
    shown = driver.visible_devices()
    if not shown:
        return []
    inventory = driver.inventory()
    return [_place(each, inventory) for each in shown]


def _place(
    device: protocols.VisibleDevice, inventory: protocols.Inventory
) -> Gpu | MigSlice | None:
    """The GPU or slice that CUDA shows, by identity: the numbers may differ."""
    places: list[Gpu | MigSlice] = [*inventory.gpus]
    places += [part for gpu in inventory.gpus for part in gpu.mig]
    for place in places:
        if same_uuid(place.uuid, device.uuid):
            return place
    address = device.pci_address
    whole = (gpu for gpu in inventory.gpus if address and not gpu.mig_enabled)
    return next((gpu for gpu in whole if gpu.pci_address == address), None)


def _with_processes(
    memory: DeviceMemory, listed: list[protocols.GpuProcess], *, foreign_numbers: bool
) -> DeviceMemory:
    """How many other processes there are, and who holds what."""
    if not listed:  # this one should be among them, so the list is not whole
        return memory
    if foreign_numbers:  # this one is among them, and any of them may be it
        memory = replace(memory, other_processes=len(listed) - 1)
        if len(listed) > 1:
            return memory
        return replace(memory, others_bytes=0, process_bytes=listed[0].used_bytes)
    others = [each.used_bytes for each in listed if each.pid != os.getpid()]
    own = [each.used_bytes for each in listed if each.pid == os.getpid()]
    memory = replace(memory, other_processes=len(others))
    if not own:
        return memory
    return replace(memory, others_bytes=known_sum(others), process_bytes=own[0])


# ------------------------------------------------------------ what torch says of it


def _cap_bytes(runtime: Runtime, device: int, total: int | None) -> int | None:
    """The limit that this process has set itself, where torch tells it."""
    module: Any = getattr(loaded_torch(), runtime.kind, None)
    ask = getattr(module, "get_per_process_memory_fraction", lambda _: 1.0)
    with contextlib.suppress(RuntimeError):
        share = float(ask(device))
        if share < 1 and total is not None:
            return int(share * total)
    return None
