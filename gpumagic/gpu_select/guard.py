"""Keeps a stray `torch.cuda.is_available()` from starting CUDA.

With this variable set torch asks NVML instead, where it can; it reads the variable
at every call.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpumagic.devices.protocols import Inventory
    from gpumagic.gpu_select import report
    from gpumagic.notebook.session import Session

VARIABLE = "PYTORCH_NVML_BASED_CUDA_CHECK"
_ON = "1"


class Guard:
    """Turns the guard on and off; the session undoes it on unload.

    Args:
        session: What keeps the variable as it was.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._users_own = os.environ.get(VARIABLE)

    def install(self) -> None:
        """Turn it on, unless the user has set the variable himself."""
        if self._users_own is None:
            self.turn(on=True)

    def turn(self, *, on: bool) -> None:
        """Turn it on or off, whatever the variable was before."""
        off = None if self._users_own == _ON else self._users_own
        self._session.set_variable(VARIABLE, _ON if on else off)


def state(inventory: Inventory, mask: str | None) -> report.Guard:
    """Whether the guard is on, and why it does not help here, if it does not.

    Args:
        inventory: What the driver says of the machine.

        mask: The value of CUDA_VISIBLE_DEVICES.
    """
    from gpumagic.gpu_select import report

    value = os.environ.get(VARIABLE)
    if value != _ON:
        own = f"{VARIABLE} is set to {value!r}" if value is not None else None
        return report.Guard(on=False, defeated_by=own)
    return report.Guard(on=True, defeated_by=_defeat(inventory, mask))


def _defeat(inventory: Inventory, mask: str | None) -> str | None:
    if (mask or "").startswith("MIG-"):
        return "CUDA_VISIBLE_DEVICES names a MIG slice, which torch asks CUDA about"
    if inventory.problem is not None:
        return f"NVML does not answer: {inventory.problem}"
    torch = sys.modules.get("torch")
    core, cuda = getattr(torch, "_C", None), getattr(torch, "cuda", None)
    if core is None or cuda is None:
        return None  # not imported yet, so nothing is known of it
    if not hasattr(core, "_cuda_getDeviceCount"):
        return "this torch is built without CUDA"
    if not hasattr(cuda, "_nvml_based_avail"):
        return "this torch is too old to ask NVML"
    return None
