"""Finds the simulated GPU that is switched on, and what its devices are called."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from gpumagic.errors import DeviceError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gpumagic.devices.tracing import Tracing

SIMULATED = "sim"  # the kind of its devices
_LIBRARIES = {"cublas": "cuBLAS", "cudnn": "cuDNN"}
SWITCH_ON = 'gpumagic.simulate("h100") does that'


def simulated_box() -> Any | None:
    """The simulated machine that is switched on; torch is not imported to find out."""
    return getattr(sys.modules.get(f"torch.{SIMULATED}"), "simulated_box", None)


def required_box() -> Any:
    """The simulated machine; DeviceError once it is switched off."""
    box = simulated_box()
    if box is None:
        raise DeviceError("the simulated GPU was switched off", SWITCH_ON)
    return box


def word_of(kind: str) -> str:
    """What stands in front of the colon where the user's code names such a device.

    A simulated GPU that stands in for CUDA is called "cuda".
    """
    stands_in = kind == SIMULATED and getattr(simulated_box(), "as_cuda", False)
    return "cuda" if stands_in else kind


def libraries_started(device: int) -> frozenset[str]:
    """The libraries of kernels that a simulated GPU has opened, by their own names."""
    return frozenset(
        _LIBRARIES.get(name, name)
        for gpu in required_box().machine.gpus
        if gpu.index == device
        for name in gpu.libraries
    )


def watch_work() -> AbstractContextManager[Tracing]:
    """Note what the simulated machine does when; unlike a trace it stays small."""
    most = 1000  # about a megabyte; a picture is a few hundred pixels wide
    watching: AbstractContextManager[Tracing] = required_box().trace(most=most)
    return watching
