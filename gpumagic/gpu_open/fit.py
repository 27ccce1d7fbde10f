"""Says whether one more allocation would have fitted at the end of a snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_mem.would_fit import answer_for
from gpumagic.gpu_open.memory_records import WouldFit
from gpumagic.simulator.allocator_settings import AllocatorSettings

if TYPE_CHECKING:
    from gpumagic.gpu_open.memory_records import SnapshotOfDevice


def would_fit(
    device: SnapshotOfDevice,
    nbytes: int,
    total_bytes: int | None = None,
    settings: str | None = None,
) -> WouldFit:
    """Whether so much would have fitted, and where from."""
    total = device.total_bytes if total_bytes is None else total_bytes
    free = None if total is None else max(total - device.reserved_bytes, 0)
    try:
        known = AllocatorSettings.parse(settings or "")
    except GpuMagicError:  # of a torch that has other words
        known = AllocatorSettings()
    answer = answer_for(
        known.rounded_bytes(nbytes) if nbytes > 0 else 0,
        device.segments,
        device=device.device,
        device_free_bytes=free,
        cap_left_bytes=None,
        max_split_bytes=known.max_split_size_bytes,
        expandable=True if known.expandable_segments else None,
    )
    is_served = answer.place == "hole"
    return WouldFit(
        device=device.device,
        nbytes=nbytes,
        fits=None if answer.place is None else answer.place != "nowhere",
        into_cache=is_served,
        from_driver_bytes=0 if is_served else answer.segment_bytes or 0,
        free_bytes=free,
    )
