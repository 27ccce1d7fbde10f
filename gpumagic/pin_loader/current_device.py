"""Trials run under the device that batches go to, since pinning takes the current one.

Under another, pinning would start that one, and leave some hundred MB there for good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.errors import DeviceError

if TYPE_CHECKING:
    from gpumagic.pin_loader.case import Case


def make_current(case: Case) -> None:
    """Make the device current until the last stage has ended; this starts it.

    Raises:
        DeviceError: There is no such device, or it cannot be used.
    """
    number = case.device
    if not case.pins or number is None or case.runtime.current_device() == number:
        return
    import torch

    kind = case.runtime.kind
    try:
        case.undo.enter_context(getattr(torch, kind).device(number))
    except RuntimeError as error:
        raise unusable(torch.device(kind, number), error) from error


def unusable(place: object, error: RuntimeError) -> DeviceError:
    """What torch says of a device that it cannot start."""
    reason = " ".join(str(error).split())
    return DeviceError(
        f"{place} cannot be used: {reason}", "%gpu_select shows what is there"
    )
