"""The floor: what an empty cell is measured as, which is told and never subtracted."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time.last_wait import last_wait
from gpumagic.cuda_sync_time.window import Window
from gpumagic.devices.simulated import simulated_box
from gpumagic.report import robust

if TYPE_CHECKING:
    from gpumagic.devices.protocols import Runtime

_WINDOWS = 30
_LONGEST_S = 3e-3  # then the first few have to do
_FEWEST = 5

_Key = tuple[str, str, tuple[int, ...]]


class Floors:
    """The floors measured so far: one for each set of devices in use."""

    def __init__(self) -> None:
        self._floors_s: dict[_Key, float] = {}

    def known(self, runtime: Runtime) -> float | None:
        """The floor as measured before; None if it was not. Waits for nothing."""
        return self._floors_s.get(_key(runtime))

    def floor_s(self, runtime: Runtime) -> float:
        """The floor now; measured once, when the devices in use are idle.

        No device is started: one that is not in use is not waited for either.
        """
        key = _key(runtime)
        if key not in self._floors_s:
            self._floors_s[key] = _measure(runtime)
        return self._floors_s[key]


def _key(runtime: Runtime) -> _Key:
    box = simulated_box() if runtime.simulated else None
    return runtime.kind, getattr(box, "label", ""), runtime.devices_in_use()


def _measure(runtime: Runtime) -> float:
    """The median of windows with nothing in them."""
    # The first makes what the others find, and waits for what others have left.
    _empty_s(runtime)
    if runtime.simulated:  # its clock has no noise, and is moved by each
        return _empty_s(runtime)
    until = time.perf_counter() + _LONGEST_S
    taken: list[float] = []
    while len(taken) < _FEWEST or (
        len(taken) < _WINDOWS and time.perf_counter() < until
    ):
        taken.append(_empty_s(runtime))
    return robust.median(taken)


def _empty_s(runtime: Runtime) -> float:
    window = Window(runtime)
    window.prepare()
    window.open()
    returned_ns = runtime.now_ns()
    if not window.uses_device:
        return (returned_ns - window.started_ns) / 1e9
    ending = last_wait(window, None, _look_at_nothing)
    if ending.late_error is not None:
        raise ending.late_error
    ended_ns = ending.waited.all_ns if ending.waited else runtime.now_ns()
    return (ended_ns - window.started_ns) / 1e9


def _look_at_nothing() -> None:
    """In the place of the observers."""
