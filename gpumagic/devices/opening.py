"""Opens the runtime that was asked for, or the best that is there."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from gpumagic.devices import torch_private
from gpumagic.devices.accelerator import (
    AcceleratorRuntime,
    CudaRuntime,
    SimulatedRuntime,
    is_available,
)
from gpumagic.devices.cpu import CpuRuntime
from gpumagic.devices.nvidia import why_no_cuda
from gpumagic.devices.simulated import SIMULATED, SWITCH_ON, simulated_box, word_of
from gpumagic.devices.torch_private import loaded_torch
from gpumagic.errors import DeviceError, MissingPackage, did_you_mean

if TYPE_CHECKING:
    from gpumagic.devices.protocols import Runtime


def open_runtime(kind: str | None = None, *, torch: Any = None) -> Runtime:
    """The runtime for a kind of device; it is not started by this."""
    if kind == "cpu":
        return CpuRuntime()
    torch = torch or import_torch()
    if not kind:
        return _best(torch)
    wanted = SIMULATED if kind == word_of(SIMULATED) else kind
    reasons = {each: _why_not(torch, each) for each in _kinds(torch)}
    if wanted in reasons and not reasons[wanted]:
        return _opened(torch, wanted)
    found = "; ".join(f"{word}: {why or 'there'}" for word, why in reasons.items())
    usable = ", ".join(word for word, why in reasons.items() if not why)
    hint = "" if wanted in reasons else did_you_mean(wanted, reasons)
    raise DeviceError(
        f"no device {kind!r} to use here ({found})",
        hint or f"to use what is there, say {usable}",
    )


def runtime_now() -> Runtime:
    """The best there is without importing anything: the CPU until torch is there."""
    torch = loaded_torch()
    return CpuRuntime() if torch is None else _best(torch)


def best_device(torch: Any = None) -> Any:
    """The best device that there is, as a `torch.device`.

    A simulated GPU that stands in for CUDA is called "cuda".
    """
    torch = torch or import_torch()
    return torch.device(word_of(_best(torch).kind))


def _kinds(torch: Any) -> list[str]:
    """Every kind of device that this torch knows of, best first."""
    further = torch_private.registered_backend(torch)
    kinds = [
        "cuda",  # NVIDIA's, and AMD's under ROCm: what nearly everyone has
        *("xpu", "mps"),  # they never share a machine, so their order is free
        SIMULATED,  # only where somebody has asked for it
        # Whatever an extension has registered: after torch's own, as it may be there
        # only to try something out.
        further or SIMULATED,
        "cpu",  # always there, so it ends the search
    ]
    return list(dict.fromkeys(kinds))


def _why_not(torch: Any, kind: str) -> str | None:
    """Why devices of a kind cannot be used; None if they can."""
    if kind == "cuda":
        return why_no_cuda(torch)
    if kind == "cpu" or (kind == SIMULATED and simulated_box()):
        return None
    if kind == SIMULATED:
        return f"not switched on: {SWITCH_ON}"
    # Without a way to wait for it no figure of ours would be true.
    if not hasattr(getattr(torch, kind, None), "synchronize"):
        return f"this torch has no torch.{kind}.synchronize"
    return None if is_available(torch, kind) else "torch finds no such device"


def _opened(torch: Any, kind: str) -> Runtime:
    match kind:
        case "cpu":
            return CpuRuntime()
        case "cuda":
            return CudaRuntime(torch)
        case "sim":
            return SimulatedRuntime(torch)
    return AcceleratorRuntime(torch, kind)


def _best(torch: Any) -> Runtime:
    if simulated_box():
        return SimulatedRuntime(torch)  # nobody has it on without wanting it
    kinds = (each for each in _kinds(torch) if not _why_not(torch, each))
    usable = [_opened(torch, each) for each in kinds]
    # The CPU counts as started whatever is there: it is only the last resort.
    return next((each for each in usable[:-1] if each.started()), usable[0])


def import_torch() -> Any:
    """torch, imported if it is not there yet."""
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise  # torch is there but broken: its own words say more
        raise MissingPackage(
            "torch is not installed for this Python",
            f"{sys.executable} -m pip install torch",
        ) from error
