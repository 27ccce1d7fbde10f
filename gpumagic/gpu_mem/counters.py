"""Reads what the caching allocator counts, and judges what should be seen at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.devices.memory_counters import (
    allocator_backend,
    allocator_figures,
    caching_is_off,
    figure,
)
from gpumagic.devices.simulated import simulated_box, word_of
from gpumagic.gpu_mem.records import (
    BadgeKind,
    CellBadge,
    Counters,
    Setting,
    peaks_were_reset,
    sums_were_reset,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from typing import Any

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
    "requested_bytes": ("requested_bytes.all.current",),
    "peak_bytes": ("allocated_bytes.all.peak",),
    "peak_reserved_bytes": ("reserved_bytes.all.peak",),
    "taken_bytes": ("allocated_bytes.all.allocated",),
    "given_back_bytes": ("allocated_bytes.all.freed",),
    "taken": ("allocation.all.allocated",),
    "retries": ("num_alloc_retries",),
    "ooms": ("num_ooms",),
    "stream_waits": ("num_sync_all_streams",),
    "driver_calls": ("num_device_alloc", "num_device_free"),
    "flushed_bytes": ("reserved_bytes.all.freed",),
    "stuck_bytes": ("inactive_split_bytes.all.current",),
}
# What CUDA's own pools tell; torch reports zero for all else of them.
_OF_POOLS = ("allocated_bytes", "reserved_bytes", "peak_bytes", "peak_reserved_bytes")
_GROWING = {
    BadgeKind.RETRY: "retries",
    BadgeKind.OOM_CAUGHT: "ooms",
    BadgeKind.DRIVER_CALLS: "driver_calls",
    BadgeKind.STREAM_WAITS: "stream_waits",
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
    backend = allocator_backend(runtime.kind) if runtime.started() else None
    return Setting(word_of(runtime.kind), str(getattr(box, "label", "")), backend)


def _sum(figures: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    found = [figure(figures, key) for key in keys]
    known = [each for each in found if each is not None]
    return sum(known) if len(known) == len(keys) else None


# ---------------------------------------------------------- what should be seen at once


def badges_now(kind: str, devices: Collection[DeviceMemory]) -> tuple[CellBadge, ...]:
    """The badges of how things stand."""
    badges = list(badges_of_allocator(kind, [each.counters for each in devices]))
    for each in devices:
        number = each.counters.device
        if each.counters.pending_bytes:
            pending = each.counters.pending_bytes
            badges.append(CellBadge(BadgeKind.PENDING, number, pending))
        if each.is_silent:
            badges.append(CellBadge(BadgeKind.SILENT, number))
        if each.other_processes:
            badges.append(CellBadge(BadgeKind.SHARED, number, each.other_processes))
    return tuple(badges)


def badges_of_allocator(
    kind: str, devices: Collection[Counters]
) -> tuple[CellBadge, ...]:
    """What the allocator of these devices does not count, and why."""
    backend = allocator_backend(kind) if devices else None
    if backend not in (None, NATIVE):
        return (CellBadge(BadgeKind.BACKEND, names=(str(backend),)),)
    if not caching_is_off(kind):
        return ()
    unknown = (each.device for each in devices if each.allocated_bytes is None)
    return tuple(CellBadge(BadgeKind.NOT_CACHED, device) for device in unknown)


def badges_between(
    before: Counters | None, after: Counters, *, ended_by_oom: bool = False
) -> tuple[CellBadge, ...]:
    """The badges of one device, in the order of their kinds."""
    earlier = Counters(after.device) if before is None else before
    badges = [*_grown(earlier, after, int(ended_by_oom)), *_states(earlier, after)]
    if before is None:
        badges.append(CellBadge(BadgeKind.STARTED, after.device))
    return tuple(sorted(badges, key=_place))


def _grown(before: Counters, after: Counters, own_ooms: int) -> Iterator[CellBadge]:
    grown = {}
    for kind, name in _GROWING.items():
        now, then = getattr(after, name) or 0, getattr(before, name) or 0
        # Less than before: reset in between, and counted anew since.
        grown[kind] = now if now < then else now - then
    grown[BadgeKind.OOM_CAUGHT] -= own_ooms
    # Each retry waits for them once: what is more was asked for by the code.
    grown[BadgeKind.STREAM_WAITS] -= grown[BadgeKind.RETRY]
    for kind, amount in grown.items():
        if amount > 0:
            yield CellBadge(kind, after.device, amount)


def _states(before: Counters, after: Counters) -> Iterator[CellBadge]:
    device = after.device
    if after.pending_bytes:
        yield CellBadge(BadgeKind.PENDING, device, after.pending_bytes)
    if peaks_were_reset(before, after):
        yield CellBadge(BadgeKind.PEAK_RESET, device)
    if sums_were_reset(before, after):
        yield CellBadge(BadgeKind.SUMS_RESET, device)


def _place(badge: CellBadge) -> int:
    return list(BadgeKind).index(badge.kind)
