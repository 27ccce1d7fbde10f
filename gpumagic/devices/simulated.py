"""What this process can do on the simulated GPU, and how to find whether there is one.

The simulated device offers torch's own words, so its runtime is that of any other
accelerator. What differs is that its times and bytes come from a model.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from gpumagic.devices.accelerator import AcceleratorRuntime
from gpumagic.errors import DeviceError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gpumagic.devices.tracing import Tracing
    from gpumagic.report.events import SeenRace, SyncCall

_KIND = "sim"
_LIBRARIES = {"cublas": "cuBLAS", "cudnn": "cuDNN"}
_SWITCH_ON = 'gpumagic.simulate("h100") does that'


def simulated_box() -> Any | None:
    """The simulated machine that is switched on; torch is not imported to find out."""
    return getattr(sys.modules.get(f"torch.{_KIND}"), "simulated_box", None)


def word_of(kind: str) -> str:
    """What stands in front of the colon where the user's code names such a device.

    A simulated GPU that stands in for CUDA is called "cuda".

    Args:
        kind: What the runtime calls them.
    """
    box = simulated_box() if kind == _KIND else None
    return "cuda" if getattr(box, "as_cuda", False) else kind


def libraries_started(device: int) -> frozenset[str]:
    """The libraries of kernels that a simulated GPU has opened, by their own names.

    torch has no word for it on CUDA, so there none are known.
    """
    box = simulated_box()
    opened = (
        gpu.libraries
        for gpu in (() if box is None else box.machine.gpus)
        if gpu.index == device
    )
    return frozenset(
        _LIBRARIES.get(name, name) for name in next(opened, frozenset[str]())
    )


def why_not_simulated(_: Any) -> str | None:
    """Why the simulated GPU cannot be used; None if it can."""
    if simulated_box() is None:
        return f"not switched on: {_SWITCH_ON}"
    return None


class SimulatedRuntime(AcceleratorRuntime):
    """A `Runtime` on the machine that is switched on.

    Args:
        torch: The torch module itself.
    """

    kind = _KIND
    simulated = True

    def __init__(self, torch: Any) -> None:
        super().__init__(torch, _KIND)

    def now_ns(self) -> int:
        """The clock of the simulated host."""
        box = simulated_box()
        return int(box.machine.scheduler.now_ns) if box is not None else 0

    def watch_syncs(self) -> AbstractContextManager[list[SyncCall]]:
        """Note what makes the host wait during a block, with its exact cost."""
        syncs: AbstractContextManager[list[SyncCall]] = _box().watch_syncs()
        return syncs

    def watch_races(self) -> AbstractContextManager[list[SeenRace]]:
        """Collect the races that the machine finds during a block."""
        races: AbstractContextManager[list[SeenRace]] = _box().watch_races()
        return races

    def trace(self) -> AbstractContextManager[Tracing]:
        """Trace what the machine does during a block, exactly."""
        tracing: AbstractContextManager[Tracing] = _box().trace()
        return tracing


def _box() -> Any:
    """The simulated machine; DeviceError once it is switched off."""
    box = simulated_box()
    if box is None:
        raise DeviceError("the simulated GPU was switched off", _SWITCH_ON)
    return box
