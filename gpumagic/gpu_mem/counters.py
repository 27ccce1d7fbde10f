"""What the caching allocator counts, as a record; reading changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.devices.memory_counters import (
    allocator_backend,
    allocator_figures,
    caching_is_off,
    figure,
)
from gpumagic.devices.simulated import simulated_box, word_of
from gpumagic.gpu_mem.records.counters import Counters
from gpumagic.gpu_mem.records.setting import Setting

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from gpumagic.devices.protocols import Runtime

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


def read(runtime: Runtime, device: int) -> Counters:
    """The counters of one device in use; None is one that its allocator lacks.

    Args:
        runtime: Whose device it is; it is not started by this.

        device: Its number.
    """
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
    """From which size on blocks are not split; None where all of them may be.

    Args:
        runtime: Whose device it is; it is not started by this.

        device: Its number.
    """
    found = figure(allocator_figures(runtime, device) or {}, "max_split_size")
    return found if found is not None and 0 < found < _NO_LIMIT_BYTES else None


def setting_of(runtime: Runtime) -> Setting:
    """Where it was looked; starts nothing.

    Args:
        runtime: What was looked with.
    """
    box = simulated_box() if runtime.simulated else None
    backend = allocator_backend(runtime.kind) if runtime.started() else None
    return Setting(word_of(runtime.kind), str(getattr(box, "label", "")), backend)


def _sum(figures: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    found = [figure(figures, key) for key in keys]
    known = [each for each in found if each is not None]
    return sum(known) if len(known) == len(keys) else None
