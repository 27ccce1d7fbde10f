"""Which device batches go to, found out without starting it."""

from __future__ import annotations

import contextlib
from typing import Any

from gpumagic.devices.opening import best_device, import_torch, open_runtime
from gpumagic.errors import DeviceError, GpuMagicError


def known_device(asked: Any) -> Any:
    """What the user calls a device, as a `torch.device` that can be used here.

    Args:
        asked: A name, a `torch.device`, or the number of one of the best kind.

    Raises:
        DeviceError: There is no such device.
    """
    torch = import_torch()
    if isinstance(asked, int):
        return torch.device(best_device().type, asked)
    try:
        device = torch.device(asked)
    except (RuntimeError, TypeError) as error:
        raise DeviceError(
            f"{asked!r} is no device", 'say "cuda", "cuda:1" or the like'
        ) from error
    open_runtime(device.type)  # says why it cannot be used, if so
    return device


def current(device: Any, *, start: bool = False) -> Any:
    """The device with its number: where work of its kind goes by default.

    Args:
        device: A `torch.device`, with its number or without.

        start: Whether the device may be started for it. Without, one that has not
            been started has no number yet.
    """
    torch = import_torch()
    if device.index is not None or device.type == "cpu":
        return device
    if start:
        return torch.device(device.type, getattr(torch, device.type).current_device())
    index = None
    with contextlib.suppress(GpuMagicError):  # a simulated one was switched off
        index = open_runtime(device.type).current_device()
    return device if index is None else torch.device(device.type, index)
