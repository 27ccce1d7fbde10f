"""What of the memory should be seen at once, of a cell or of this moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.devices.memory_counters import allocator_backend, caching_is_off
from gpumagic.gpu_mem.counters import NATIVE
from gpumagic.gpu_mem.records.counters import BadgeKind, CellBadge, Counters
from gpumagic.gpu_mem.resets import peaks_were_reset, sums_were_reset

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from gpumagic.gpu_mem.records.devices import DeviceMemory

_GROWING = {
    BadgeKind.RETRY: "retries",
    BadgeKind.OOM_CAUGHT: "ooms",
    BadgeKind.DRIVER_CALLS: "driver_calls",
    BadgeKind.STREAM_WAITS: "stream_waits",
    BadgeKind.FLUSHED: "flushed_bytes",
}


def badges_now(kind: str, devices: Collection[DeviceMemory]) -> tuple[CellBadge, ...]:
    """The badges of how things stand.

    Args:
        kind: Of the devices, as torch calls it.

        devices: Those in use.
    """
    badges = list(badges_of_allocator(kind, [each.counters for each in devices]))
    for each in devices:
        number = each.counters.device
        if each.counters.pending_bytes:
            pending = each.counters.pending_bytes
            badges.append(CellBadge(BadgeKind.PENDING, number, pending))
        if each.other_processes:
            badges.append(CellBadge(BadgeKind.SHARED, number, each.other_processes))
    return tuple(badges)


def badges_of_allocator(
    kind: str, devices: Collection[Counters]
) -> tuple[CellBadge, ...]:
    """What the allocator of these devices does not count, and why.

    Args:
        kind: Of the devices, as torch calls it.

        devices: The latest look at each that is in use.
    """
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
    """The badges of one device, in the order of their kinds.

    Args:
        before: The earlier look; None if the device was not in use yet.

        after: The later one.

        ended_by_oom: Whether the code itself has raised that this device has no
            memory left: then that one was not caught inside.
    """
    earlier = Counters(after.device) if before is None else before
    badges = [*_grown(earlier, after, int(ended_by_oom)), *_states(earlier, after)]
    if before is None:
        badges.append(CellBadge(BadgeKind.STARTED, after.device))
    return tuple(sorted(badges, key=_place))


def _grown(before: Counters, after: Counters, own_ooms: int) -> Iterator[CellBadge]:
    for kind, name in _GROWING.items():
        now, then = getattr(after, name) or 0, getattr(before, name) or 0
        # Less than before: reset in between, and counted anew since.
        amount = now if now < then else now - then
        if kind is BadgeKind.OOM_CAUGHT:
            amount -= own_ooms
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
