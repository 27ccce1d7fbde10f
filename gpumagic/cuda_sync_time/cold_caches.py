"""What is done before each sample: the user's part, and flushing the caches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.devices.simulated import word_of
from gpumagic.devices.torch_private import loaded_torch
from gpumagic.errors import DeviceError
from gpumagic.report.units import bytes_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.cuda_sync_time.plan import Plan
    from gpumagic.devices.protocols import Runtime

_UNKNOWN_L2_BYTES = 128 << 20
_FLUSHES = 2  # a buffer of so many times the cache leaves nothing else in it


def cold_flush(runtime: Runtime, torch: Any) -> Callable[[], None]:
    """What overwrites the caches of the devices in use; its buffers go with it."""
    buffers: dict[int, Any] = {}

    def flush() -> None:
        for device in runtime.devices_in_use():
            if device not in buffers:
                buffers[device] = _buffer(torch, word_of(runtime.kind), device)
            buffers[device].zero_()

    return flush


def preparation(plan: Plan, runtime: Runtime) -> Callable[[], object] | None:
    """What is done before each sample: the user's part, then the caches."""
    if not plan.cold:
        return plan.before
    if runtime.kind == "cpu":
        raise nothing_to_flush("this code runs on the CPU")
    flush, before = cold_flush(runtime, loaded_torch()), plan.before
    if before is None:
        return flush

    def prepare() -> None:
        before()
        flush()

    return prepare


def _buffer(torch: Any, kind: str, device: int) -> Any:
    ask = getattr(getattr(torch, kind), "get_device_properties", None)  # not in MPS
    properties = None if ask is None else ask(device)
    cache_bytes = getattr(properties, "L2_cache_size", None) or _UNKNOWN_L2_BYTES
    nbytes = _FLUSHES * cache_bytes
    try:
        return torch.empty(nbytes, dtype=torch.uint8, device=f"{kind}:{device}")
    except RuntimeError as error:  # out of memory is one
        raise DeviceError(
            f"there is no room on {kind}:{device} for the {bytes_text(nbytes)} that "
            "overwrite its cache",
            "free memory there, or leave --cold away",
        ) from error


def nothing_to_flush(why: str) -> DeviceError:
    """The error of those who want caches flushed where there are none."""
    return DeviceError(
        f"--cold flushes the caches of devices, and {why}",
        "leave --cold away",
    )
