"""Waits until devices are idle, so that Ctrl-C comes through."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpumagic.devices import torch_private
from gpumagic.devices.simulated import simulated_box
from gpumagic.devices.torch_private import loaded_torch

if TYPE_CHECKING:
    from gpumagic.devices.protocols import Runtime

_PAUSE_S = 1e-3


def wait_until_idle(runtime: Runtime) -> None:
    """Wait until every device in use is idle; it starts none.

    A wait in the driver is deaf to Ctrl-C. So the streams that work goes to now are
    asked first, again and again; what runs on others is left to the driver.

    Raises:
        RuntimeError: A device is broken.
    """
    if runtime.kind == "cpu" or not runtime.started() or _is_capturing(runtime):
        return
    if not runtime.simulated:  # there a wait only moves a clock
        marks = [
            runtime.record(runtime.current_stream(device))
            for device in runtime.devices_in_use()
        ]
        for mark in marks:
            while not runtime.reached(mark):
                time.sleep(_PAUSE_S)
    runtime.synchronize()


def first_line(error: BaseException) -> str:
    """What an error says first, or its name if it says nothing."""
    lines = (line for line in str(error).splitlines() if line.strip())
    return next(lines, type(error).__name__)


def _is_capturing(runtime: Runtime) -> bool:
    """Whether a graph is being captured, so that nothing may be waited for."""
    torch = loaded_torch()
    if torch is None:
        return False
    # Graphs of the simulated GPU are there for code that says "cuda".
    box = simulated_box() if runtime.simulated else None
    kind = "cuda" if box is not None and box.as_cuda else runtime.kind
    return torch_private.is_capturing(torch, kind)
