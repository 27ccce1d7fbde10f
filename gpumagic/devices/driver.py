"""Opens the driver of the machine: the real one, or that of a simulated machine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpumagic.devices.protocols import Driver


def open_driver() -> Driver:
    """The driver to ask now; opening it asks nothing and starts nothing."""
    return simulated_driver() or driver_of_this_machine()


def simulated_driver() -> Driver | None:
    """The driver of the simulated machine that is switched on; None without one."""
    box = getattr(sys.modules.get("torch.sim"), "simulated_box", None)
    driver: Driver | None = None if box is None else box.driver
    return driver


def driver_of_this_machine() -> Driver:
    """The real driver, which may be absent."""
    from gpumagic.devices.nvidia import NvidiaDriver

    return NvidiaDriver()
