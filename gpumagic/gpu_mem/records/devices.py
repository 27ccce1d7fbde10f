"""What devices and the host have, and what is free there."""

from __future__ import annotations

from dataclasses import dataclass

from gpumagic.gpu_mem.records.counters import Counters, difference
from gpumagic.report.record import Record


@dataclass(frozen=True)
class DeviceMemory(Record):
    """One device now, by the allocator and by the driver.

    Attributes:
        total_bytes: Of the device; of a slice, of that.

        free_bytes: As the driver tells; of the host, the RAM that can still be used.

        others_bytes: What other processes hold, where that can be told.

        other_processes: How many there are.

        cap_bytes: What this process may take at most, if it has set a limit.
    """

    counters: Counters
    name: str | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    others_bytes: int | None = None
    other_processes: int | None = None
    cap_bytes: int | None = None

    @property
    def cached_bytes(self) -> int | None:
        """Taken from the driver and not in use."""
        return difference(self.counters.reserved_bytes, self.counters.allocated_bytes)

    @property
    def outside_bytes(self) -> int | None:
        """Used on the device, and neither the allocator's nor another process's.

        The context, loaded kernels, communication buffers: in no counter of torch.
        """
        known = (self.total_bytes, self.free_bytes, self.counters.reserved_bytes)
        if None in known or (self.other_processes != 0 and self.others_bytes is None):
            return None  # what is not ours may be anybody's
        total, free, reserved = known
        used = (total or 0) - (free or 0)
        return max(used - (reserved or 0) - (self.others_bytes or 0), 0)


@dataclass(frozen=True)
class HostMemory(Record):
    """Page-locked memory of the host, as torch caches it."""

    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
