"""Opens the runtime that was asked for, or the best that is there."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

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
    from collections.abc import Callable

    from gpumagic.devices.protocols import Runtime


class Candidate(NamedTuple):
    """One kind of device that could be used."""

    kind: str  # the word in front of the colon of a torch device
    why_not: Callable[[Any], str | None]  # None if it can be used
    open: Callable[[Any], Runtime]


def open_runtime(kind: str | None = None, *, torch: Any = None) -> Runtime:
    """The runtime for a kind of device; it is not started by this."""
    if kind == "cpu":
        return CpuRuntime()
    torch = torch or import_torch()
    if not kind:
        return _best(torch)
    wanted = SIMULATED if kind == word_of(SIMULATED) else kind
    there = candidates(torch)
    reasons = {each.kind: each.why_not(torch) for each in there}
    for each in there:
        if each.kind == wanted and not reasons[wanted]:
            return each.open(torch)
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


def candidates(torch: Any) -> tuple[Candidate, ...]:
    """Every kind of device that this torch knows of, best first."""
    further = {torch_private.registered_backend(torch)} - {None, SIMULATED}
    not_on = None if simulated_box() else f"not switched on: {SWITCH_ON}"
    return (
        # NVIDIA's, and AMD's under ROCm: what nearly everyone has.
        Candidate("cuda", why_no_cuda, CudaRuntime),
        # Intel's and Apple's never share a machine, so their order is free.
        _accelerator("xpu"),
        _accelerator("mps"),
        # Only where somebody has asked for it.
        Candidate(SIMULATED, lambda _: not_on, SimulatedRuntime),
        # Whatever an extension has registered: after torch's own, as it may be
        # there only to try something out.
        *(_accelerator(str(kind)) for kind in further),
        # Always there, so it ends the search.
        Candidate("cpu", lambda _: None, lambda _: CpuRuntime()),
    )


def _accelerator(kind: str) -> Candidate:
    def why_not(torch: Any) -> str | None:
        # Without a way to wait for it no figure of ours would be true.
        if not hasattr(getattr(torch, kind, None), "synchronize"):
            return f"this torch has no torch.{kind}.synchronize"
        return None if is_available(torch, kind) else "torch finds no such device"

    return Candidate(kind, why_not, lambda torch: AcceleratorRuntime(torch, kind))


def _best(torch: Any) -> Runtime:
    if simulated_box():
        return SimulatedRuntime(torch)  # nobody has it on without wanting it
    usable = [x.open(torch) for x in candidates(torch) if not x.why_not(torch)]
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
