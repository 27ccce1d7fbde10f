"""Finds the runtime and the driver of this moment, and what an empty cell takes.

torch is not imported to find out: as long as the notebook has not done that, there is
no device to wait for, and the host's clock is right.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time.environment_changes import EnvironmentWatch
from gpumagic.cuda_sync_time.records import Flag, FlagKind, Setting
from gpumagic.devices.around_cell import AroundCell, last_wait
from gpumagic.devices.now import KINDS_OF_THE_DRIVER
from gpumagic.devices.nvidia import driver_initialised
from gpumagic.devices.opening import open_runtime, runtime_now
from gpumagic.devices.simulated import simulated_box, word_of
from gpumagic.devices.torch_private import loaded_torch
from gpumagic.devices.waiting import Window, is_in_use
from gpumagic.report import robust

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpumagic.devices.protocols import Driver, Runtime


class Instruments:
    """What all measurements of one notebook, or of one script, share."""

    def __init__(
        self, find_driver: Callable[[], Driver], runtime: Runtime | None = None
    ) -> None:
        self.floors = Floors(find_driver)
        self._find_driver = find_driver
        self._runtime = runtime
        # By the label of the machine: asking the driver and the CPU takes a while.
        self._driver_versions: dict[str, str | None] = {}
        self._cpu_name: tuple[str | None] | tuple[()] = ()

    @property
    def driver(self) -> Driver:
        """What the machine has."""
        return self._find_driver()

    def runtime(self) -> Runtime:
        """The best that there is now: the CPU until torch has been imported."""
        return runtime_now() if self._runtime is None else self._runtime

    def torch_runtime(self) -> Runtime:
        """The best that there is, once torch has been imported for it."""
        return open_runtime() if self._runtime is None else self._runtime

    def setting(self, runtime: Runtime, *, floor_s: float | None = None) -> Setting:
        """Where it was measured; starts nothing."""
        label, torch = _label(runtime), loaded_torch()
        return Setting(
            kind=word_of(runtime.kind),
            label=label,
            devices=self._devices(runtime),
            floor_s=floor_s,
            torch_version=None if torch is None else str(torch.__version__),
            driver_version=self._driver_version(runtime, label),
        )

    def _devices(self, runtime: Runtime) -> tuple[tuple[int, str | None], ...]:
        if runtime.kind == "cpu":
            self._cpu_name = self._cpu_name or (runtime.device_name(0),)
            return ((0, *self._cpu_name),)
        try:
            in_use = runtime.devices_in_use()
            return tuple((device, runtime.device_name(device)) for device in in_use)
        except RuntimeError:  # a device in error answers nothing any more
            return ()

    def _driver_version(self, runtime: Runtime, label: str) -> str | None:
        if runtime.kind not in KINDS_OF_THE_DRIVER:
            return None
        if label not in self._driver_versions:
            self._driver_versions[label] = self.driver.inventory().driver_version
        return self._driver_versions[label]


def unseen_flags(runtime: Runtime) -> tuple[Flag, ...]:
    """CUDA that something else has started, where there is nothing to wait with."""
    can_wait = runtime.kind != "cpu" or simulated_box() is not None
    return () if can_wait or not driver_initialised() else (Flag(FlagKind.UNSEEN),)


def _label(runtime: Runtime) -> str:
    box = simulated_box() if runtime.simulated else None
    return str(getattr(box, "label", ""))


_WINDOWS = 30
_LONGEST_S, _LONGEST_OF_CELLS_S = 3e-3, 40e-3  # then the first few have to do
_FEWEST = 5

_Key = tuple[str, str, tuple[int, ...], bool]


class Floors:
    """The floors measured so far: for each set of devices in use, in a row or alone.

    An idle GPU, and a driver that has been asked for its clocks, answer later: after
    a pause, as between cells, a wait for nothing takes several times as long.
    """

    def __init__(self, find_driver: Callable[[], Driver]) -> None:
        self._find_driver = find_driver
        self._floors_s: dict[_Key, float] = {}

    def known(self, runtime: Runtime) -> float | None:
        """That of a cell, as measured before; None if it was not. Waits for nothing."""
        return self._floors_s.get(_key(runtime, alone=True))

    def floor_s(self, runtime: Runtime, *, alone: bool = False) -> float:
        """The floor now; measured once, when the devices in use are idle."""
        key = _key(runtime, alone=alone)
        if key not in self._floors_s:
            self._floors_s[key] = self._measured(runtime, alone=alone)
        return self._floors_s[key]

    def _measured(self, runtime: Runtime, *, alone: bool) -> float:
        """The median of windows with nothing in them."""
        # The first makes what the others find, and waits for what others have left.
        _empty_s(runtime)
        if runtime.simulated:  # its clock has no noise, and is moved by each
            return _empty_s(runtime)
        cold = alone and is_in_use(runtime)
        longest_s = _LONGEST_OF_CELLS_S if cold else _LONGEST_S
        until = time.perf_counter() + longest_s
        taken: list[float] = []
        while len(taken) < _FEWEST or (
            len(taken) < _WINDOWS and time.perf_counter() < until
        ):
            taken.append(self._empty_cell_s(runtime) if cold else _empty_s(runtime))
        return robust.median(taken)

    def _empty_cell_s(self, runtime: Runtime) -> float:
        around = AroundCell(lambda: runtime, [EnvironmentWatch(self._find_driver)])
        around.begin()
        ended = around.end()
        if ended.late_error is not None:
            raise ended.late_error
        return ended.elapsed_s


def _key(runtime: Runtime, *, alone: bool) -> _Key:
    box = simulated_box() if runtime.simulated else None
    label = getattr(box, "label", "")
    return runtime.kind, label, runtime.devices_in_use(), alone


def _empty_s(runtime: Runtime) -> float:
    window = Window(runtime)
    window.prepare()
    window.open()
    returned_ns = runtime.now_ns()
    if not window.uses_device:
        return (returned_ns - window.started_ns) / 1e9
    ending = last_wait(window, None)
    if ending.late_error is not None:
        raise ending.late_error
    ended_ns = ending.waited.all_ns if ending.waited else runtime.now_ns()
    return (ended_ns - window.started_ns) / 1e9
