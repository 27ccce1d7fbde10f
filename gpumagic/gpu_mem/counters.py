"""Reads what the caching allocator counts, and judges what should be seen at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.devices.memory_counters import (
    allocator_backend,
    allocator_figures,
    caching_is_off,
    figure,
)
from gpumagic.devices.simulated import simulated_box, word_of
from gpumagic.gpu_mem.records import BadgeKind, CellBadge, Counters, Setting

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gpumagic.devices.protocols import Runtime
    from gpumagic.gpu_mem.records import DeviceMemory

NATIVE = "native"
_ASYNC = "cudaMallocAsync"
_NO_LIMIT_BYTES = 1 << 62  # torch's own word for none is larger still, or negative

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
    "flushed_bytes": ("reserved_bytes.all.freed",),
}
# What CUDA's own pools tell; torch reports zero for all else of them.
_OF_POOLS = ("allocated_bytes", "reserved_bytes", "peak_bytes")
_GROWING = {
    BadgeKind.RETRY: "retries",
    BadgeKind.OOM_CAUGHT: "ooms",
    BadgeKind.DRIVER_CALLS: "driver_calls",
    BadgeKind.FLUSHED: "flushed_bytes",
}


def read(runtime: Runtime, device: int) -> Counters:
    """The counters of one device in use; None is one that its allocator lacks."""
    figures = allocator_figures(runtime, device)
    if figures is None:
        return Counters(device)
    counted = {name: _sum(figures, keys) for name, keys in _KEYS.items()}
    if not any(counted.values()) and caching_is_off(runtime.kind):
        return Counters(device)
    backend = allocator_backend(runtime.kind)
    if backend not in (None, NATIVE):
        kept = _OF_POOLS if backend == _ASYNC else ()
        counted = {
            name: value if value or name in kept else None
            for name, value in counted.items()
        }
    return Counters(device, **counted)


def read_all(runtime: Runtime) -> tuple[Counters, ...]:
    """The counters of every device in use; none before the start."""
    if not runtime.started():
        return ()
    return tuple(read(runtime, device) for device in runtime.devices_in_use())


def from_zero(counters: Counters) -> Counters:
    """What a device had counted before its first use, where it counts at all."""
    known = (name for name in _KEYS if getattr(counters, name) is not None)
    return Counters(counters.device, **dict.fromkeys(known, 0))


def max_split_bytes(runtime: Runtime, device: int) -> int | None:
    """From which size on blocks are not split; None where all of them may be."""
    found = figure(allocator_figures(runtime, device) or {}, "max_split_size")
    return found if found is not None and 0 < found < _NO_LIMIT_BYTES else None


def setting_of(runtime: Runtime) -> Setting:
    """Where it was looked; starts nothing."""
    box = simulated_box() if runtime.simulated else None
    return Setting(word_of(runtime.kind), str(getattr(box, "label", "")))


def _sum(figures: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    known = [each for key in keys if (each := figure(figures, key)) is not None]
    return sum(known) if len(known) == len(keys) else None


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
    if not devices:
        return ()
    unknown = any(each.allocated_bytes is None for each in devices)
    is_off = unknown and caching_is_off(kind)
    if is_off or allocator_backend(kind) not in (None, NATIVE):
        return (CellBadge(BadgeKind.UNCOUNTED),)
    return ()


def badges_between(
    before: Counters | None, after: Counters, *, ended_by_oom: bool = False
) -> tuple[CellBadge, ...]:
    """The badges of one device, in the order of their kinds.

    What comes of another is left out: a retry gives the cache back, and a cache that
    went back is taken from the driver again.
    """
    earlier = before or Counters(after.device)
    grown = {}
    for kind, name in _GROWING.items():
        now, then = getattr(after, name) or 0, getattr(earlier, name) or 0
        # Less than before: reset in between, and counted anew since.
        grown[kind] = now if now < then else now - then
    grown[BadgeKind.OOM_CAUGHT] -= int(ended_by_oom)
    if grown[BadgeKind.RETRY] > 0:
        grown[BadgeKind.FLUSHED] = grown[BadgeKind.DRIVER_CALLS] = 0
    elif grown[BadgeKind.FLUSHED] > 0:
        grown[BadgeKind.DRIVER_CALLS] = 0
    return tuple(CellBadge(k, after.device, n) for k, n in grown.items() if n > 0)
