"""Finds runtime and driver, what an empty cell takes, and what changed meanwhile.

torch is not imported to find out: as long as the notebook has not done that, there is
no device to wait for, and the host's clock is right. Noting what changes starts nothing
and resets nothing, and is done outside of what is timed.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from gpumagic.cuda_sync_time.records import Flag, FlagKind, Setting
from gpumagic.devices import torch_private
from gpumagic.devices.around_cell import AroundCell, Observer, last_wait
from gpumagic.devices.now import loads
from gpumagic.devices.nvidia import driver_initialised
from gpumagic.devices.opening import open_runtime, runtime_now
from gpumagic.devices.simulated import libraries_started, simulated_box, word_of
from gpumagic.devices.torch_private import loaded_torch
from gpumagic.devices.waiting import Window, is_in_use
from gpumagic.report import robust

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gpumagic.devices.protocols import Driver, GpuLoad, Runtime


class Instruments:
    """What all measurements of one notebook, or of one script, share."""

    def __init__(
        self, find_driver: Callable[[], Driver], runtime: Runtime | None = None
    ) -> None:
        self.floors = Floors(find_driver)
        self.find_driver = find_driver
        # The best that there is now, the CPU until torch has been imported; and the
        # best, once torch has been imported for it.
        self.runtime: Callable[[], Runtime] = runtime_now
        self.torch_runtime: Callable[[], Runtime] = open_runtime
        if runtime:
            self.runtime = self.torch_runtime = lambda: runtime
        # Asking the CPU takes a while.
        self._cpu_name: tuple[str | None] | tuple[()] = ()

    def setting(self, runtime: Runtime, *, floor_s: float = 0.0) -> Setting:
        """Where it was measured; starts nothing."""
        return Setting(
            kind=word_of(runtime.kind),
            label=_label(runtime),
            devices=self._devices(runtime),
            floor_s=floor_s,
            torch_version=str(getattr(loaded_torch(), "__version__", "")),
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


def unseen_flags(runtime: Runtime) -> tuple[Flag, ...]:
    """CUDA that something else has started, where there is nothing to wait with."""
    if runtime.kind != "cpu" or simulated_box() or not driver_initialised():
        return ()
    return (Flag(FlagKind.UNSEEN),)


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

    def known(self, runtime: Runtime) -> float:
        """That of a cell, as measured before; 0 if it was not. Waits for nothing."""
        return self._floors_s.get(_key(runtime, alone=True), 0.0)

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
        take, longest_s = _empty_s, _LONGEST_S
        if alone and is_in_use(runtime):
            take, longest_s = self._empty_cell_s, _LONGEST_OF_CELLS_S
        until = time.perf_counter() + longest_s
        taken: list[float] = []
        while len(taken) < _FEWEST or (
            len(taken) < _WINDOWS and time.perf_counter() < until
        ):
            taken.append(take(runtime))
        return robust.median(taken)

    def _empty_cell_s(self, runtime: Runtime) -> float:
        around = AroundCell(lambda: runtime, [EnvironmentWatch(self._find_driver)])
        around.begin()
        ended = around.end()
        if ended.late_error:
            raise ended.late_error
        return ended.elapsed_s


def _key(runtime: Runtime, *, alone: bool) -> _Key:
    return runtime.kind, _label(runtime), runtime.devices_in_use(), alone


def _empty_s(runtime: Runtime) -> float:
    window = Window(runtime)
    window.prepare()
    window.open()
    returned_ns = runtime.now_ns()
    if not window.uses_device:
        return (returned_ns - window.started_ns) / 1e9
    ending = last_wait(window, None)
    if ending.late_error:
        raise ending.late_error
    ended_ns = ending.waited.all_ns if ending.waited else runtime.now_ns()
    return (ended_ns - window.started_ns) / 1e9


# ------------------------------------------------------ what changed meanwhile

# Each makes the driver, or the runtime, wait for every launch.
_BLOCKING = ("CUDA_LAUNCH_BLOCKING", "HIP_LAUNCH_BLOCKING", "AMD_SERIALIZE_KERNEL")
_DRIVER_CALLS = ("num_device_alloc", "num_device_free")


@dataclass(frozen=True)
class Environment:
    """What was so at one moment; what is asked by device has those in use."""

    # the caching allocator's counters
    counters: Mapping[int, Mapping[str, Any] | None] = field(default_factory=dict)
    compilations: int = 0  # how much torch.compile had taken
    # the libraries of kernels in use, where that is known
    libraries: Mapping[int, frozenset[str]] = field(default_factory=dict)
    loads: Mapping[int, GpuLoad] = field(default_factory=dict)  # what the driver says

    @classmethod
    def now(cls, runtime: Runtime, driver: Driver) -> Self:
        """That of this moment; a driver is asked only where a GPU is in use."""
        devices = runtime.devices_in_use() if is_in_use(runtime) else ()
        simulated = devices if runtime.simulated else ()
        return cls(
            counters={each: runtime.memory_stats(each) for each in devices},
            compilations=compilations(),
            libraries={each: libraries_started(each) for each in simulated},
            loads=loads(driver, runtime),
        )


def compilations() -> int:
    """How much torch.compile has taken so far; 0 as well where torch does not tell."""
    torch = loaded_torch()
    return (torch and torch_private.compilations(torch)) or 0


class EnvironmentWatch(Observer):
    """Notes the environment before a cell and after it."""

    def __init__(self, find_driver: Callable[[], Driver]) -> None:
        # What has changed; nothing is known of it where the device is broken.
        self.flags: tuple[Flag, ...] = ()
        self._find_driver = find_driver
        self._before = Environment()

    def look_before(self, runtime: Runtime) -> None:
        """Note how it is."""
        self._before = Environment.now(runtime, self._find_driver())

    def look_after(self, runtime: Runtime, *, idle: bool) -> None:
        """Note what has changed, unless the device is broken: then it says nothing."""
        try:
            after = Environment.now(runtime, self._find_driver())
        except RuntimeError:
            if idle:
                raise
        else:
            self.flags = (*flags_between(self._before, after), *_blocking(runtime))


def flags_between(before: Environment, after: Environment) -> tuple[Flag, ...]:
    """What a reader has to know of what changed, or was so all the time."""
    return tuple(_changes(before, after))


def _changes(before: Environment, after: Environment) -> Iterator[Flag]:
    for device, counters in after.counters.items():
        if device not in before.counters:
            yield Flag(FlagKind.FIRST_USE, device=device)
        names = after.libraries.get(device, frozenset())
        if started := sorted(names - before.libraries.get(device, frozenset())):
            yield Flag(FlagKind.FIRST_USE, names=tuple(started), device=device)
        earlier = before.counters.get(device) or {}
        calls = sum(
            (counters or {}).get(key, 0) - earlier.get(key, 0) for key in _DRIVER_CALLS
        )
        if calls > 0:
            yield Flag(FlagKind.DRIVER_CALLS, amount=calls, device=device)
    compiled = after.compilations - before.compilations
    if compiled < 0:  # the user has cleared the counters, and then compiled
        compiled = after.compilations
    if compiled > 0:
        yield Flag(FlagKind.COMPILED, amount=compiled)
    yield from load_flags(before.loads, after.loads)


def load_flags(
    before: Mapping[int, GpuLoad], after: Mapping[int, GpuLoad]
) -> Iterator[Flag]:
    """What a reader has to know of how the GPUs did, before and after."""
    for device, now in after.items():
        then = before.get(device, now)
        limiters = (name for each in (then, now) for name in each.limiters or ())
        if names := tuple(dict.fromkeys(limiters)):
            yield Flag(FlagKind.LIMITED, names=names, device=device)
        if others := max(each.other_processes or 0 for each in (then, now)):
            yield Flag(FlagKind.SHARED, amount=others, device=device)


def _blocking(runtime: Runtime) -> Iterator[Flag]:
    its = [name for name in _BLOCKING if os.environ.get(name, "") not in ("", "0")]
    if its and runtime.kind == "cuda":
        yield Flag(FlagKind.LAUNCH_BLOCKING, names=(its[0],))
