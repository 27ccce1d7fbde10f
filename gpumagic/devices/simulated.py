"""What this process can do on the simulated GPU, and how to find whether there is one.

The simulated device offers torch's own words, so its runtime is that of any other
accelerator. What differs is that its times and bytes come from a model.
"""

from __future__ import annotations

import sys
from typing import Any

from gpumagic.devices.accelerator import AcceleratorRuntime

_KIND = "sim"


def simulated_box() -> Any | None:
    """The simulated machine that is switched on; torch is not imported to find out."""
    return getattr(sys.modules.get(f"torch.{_KIND}"), "simulated_box", None)


def why_not_simulated(_: Any) -> str | None:
    """Why the simulated GPU cannot be used; None if it can."""
    if simulated_box() is None:
        return 'not switched on: gpumagic.simulate("h100") does that'
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
