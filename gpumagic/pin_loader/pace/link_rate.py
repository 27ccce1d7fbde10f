"""How fast one large pinned buffer comes to the device: the ceiling of the link."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.in_use import link_in_use
from gpumagic.errors import DeviceError
from gpumagic.pin_loader.pace.link import described, link_of, own_nodes
from gpumagic.report import robust

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.devices.protocols import Driver, Runtime
    from gpumagic.pin_loader.records.rates import Link

_LARGEST_BYTES, _SMALLEST_BYTES = 256 << 20, 4 << 20
_SIMULATED_BYTES = 16 << 20  # the model is linear, and the bytes are really moved
_SHARE_OF_ROOM = 8
_WARM_UPS, _COPIES = 3, 12
_WATCHED_S = 0.1  # the link is read while copies run for so long


class Buffers(NamedTuple):
    """Pinned memory of the host and as much of the device."""

    host: Any
    device: Any


def measure(
    runtime: Runtime,
    device: int,
    driver: Driver | None,
    *,
    room_bytes: int | None = None,
) -> Link:
    """Copy one large pinned buffer again and again, and read the link meanwhile.

    Args:
        runtime: The device's kind, started, for which memory can be pinned.

        device: Its number.

        driver: Tells of the link; None knows nothing.

        room_bytes: How much memory of the host is to spare; an eighth is used at most.
    """
    buffers = _buffers(runtime, device, room_bytes)
    if buffers is None:
        told = None if driver is None else link_in_use(driver, runtime, device)
        return described(told)
    rate = _rate(buffers, runtime, device)

    def during() -> None:
        for _ in range(1 if runtime.simulated else _so_many(buffers, rate)):
            buffers.device.copy_(buffers.host, non_blocking=True)

    told = None if driver is None else link_of(driver, runtime, device, during)
    return described(told, rate, own_nodes=own_nodes())


def _so_many(buffers: Buffers, rate: float | None) -> int:
    """Copies that take long enough for somebody to look at the link meanwhile."""
    return max(round(_WATCHED_S * rate / buffers.host.nbytes), 1) if rate else 1


def _buffers(runtime: Runtime, device: int, room_bytes: int | None) -> Buffers | None:
    """As large as there is room for; None if not even a small one can be had."""
    import torch

    place = torch.device(runtime.kind, device)
    for nbytes in _sizes(runtime, device, room_bytes):
        with contextlib.suppress(DeviceError, RuntimeError, MemoryError):
            host = runtime.pin(torch.empty(nbytes, dtype=torch.uint8))
            return Buffers(host, torch.empty(nbytes, dtype=torch.uint8, device=place))
    return None


def _sizes(runtime: Runtime, device: int, room_bytes: int | None) -> Iterator[int]:
    nbytes = _SIMULATED_BYTES if runtime.simulated else _LARGEST_BYTES
    free = runtime.memory_bytes(device)
    rooms = [room_bytes, None if free is None else free[0]]
    most = min(
        (room // _SHARE_OF_ROOM for room in rooms if room is not None), default=0
    )
    while nbytes >= _SMALLEST_BYTES:
        if not most or nbytes <= most:
            yield nbytes
        nbytes //= 2


def _rate(buffers: Buffers, runtime: Runtime, device: int) -> float | None:
    """Bytes in a second, by the device's own clock."""
    stream = runtime.current_stream(device)
    seconds = []
    for turn in range(_WARM_UPS + _COPIES):
        start = runtime.record(stream)
        buffers.device.copy_(buffers.host, non_blocking=True)
        took_s = runtime.elapsed_s(start, runtime.record(stream))
        if turn >= _WARM_UPS and took_s:
            seconds.append(took_s)
    return buffers.host.nbytes / robust.median(seconds) if seconds else None
