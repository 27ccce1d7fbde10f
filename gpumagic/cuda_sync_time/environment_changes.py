"""What changed round a measurement: devices, threads, allocator, clocks.

Noting starts nothing and resets nothing, and is done outside of what is timed.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from gpumagic.cuda_sync_time.records import Flag, FlagKind
from gpumagic.devices import torch_private
from gpumagic.devices.around_cell import Observer
from gpumagic.devices.now import loads
from gpumagic.devices.simulated import libraries_started
from gpumagic.devices.torch_private import loaded_torch
from gpumagic.devices.waiting import is_in_use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gpumagic.devices.protocols import Driver, GpuLoad, Runtime

_OURS = "gpumagic-"  # threads that look, wait or interrupt for us
# Each makes the driver, or the runtime, wait for every launch.
_BLOCKING = ("CUDA_LAUNCH_BLOCKING", "HIP_LAUNCH_BLOCKING", "AMD_SERIALIZE_KERNEL")
_CLOCK_MOVED = 0.05


@dataclass(frozen=True)
class Environment:
    """What was so at one moment; what is asked by device has those in use."""

    threads: frozenset[threading.Thread] = frozenset()  # those that run, without ours
    # the caching allocator's counters
    counters: Mapping[int, Mapping[str, Any] | None] = field(default_factory=dict)
    compilations: int | None = 0  # how much torch.compile had taken; None is unknown
    # the libraries of kernels in use, where that is known
    libraries: Mapping[int, frozenset[str]] = field(default_factory=dict)
    loads: Mapping[int, GpuLoad] = field(default_factory=dict)  # what the driver says

    @classmethod
    def now(cls, runtime: Runtime, driver: Driver | None = None) -> Self:
        """That of this moment; a driver is asked only where a GPU is in use."""
        torch = loaded_torch()
        devices = runtime.devices_in_use() if is_in_use(runtime) else ()
        running = threading.enumerate()
        simulated = devices if runtime.simulated else ()
        return cls(
            threads=frozenset(it for it in running if not it.name.startswith(_OURS)),
            counters={each: runtime.memory_stats(each) for each in devices},
            compilations=0 if torch is None else torch_private.compilations(torch),
            libraries={each: libraries_started(each) for each in simulated},
            loads={} if driver is None else loads(driver, runtime),
        )


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

    def close(self) -> None:
        """Let go of the threads that were noted."""
        self._before = Environment()


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
        calls, retries = (
            sum((counters or {}).get(key, 0) - earlier.get(key, 0) for key in keys)
            for keys in (
                ("num_device_alloc", "num_device_free"),
                ("num_alloc_retries",),
            )
        )
        if calls > 0:
            yield Flag(FlagKind.DRIVER_CALLS, amount=calls, device=device)
        if retries > 0:
            yield Flag(FlagKind.RETRIES, amount=retries, device=device)
    if running := sorted(
        each.name for each in after.threads - before.threads if each.is_alive()
    ):
        yield Flag(FlagKind.THREADS, amount=len(running), names=tuple(running))
    if before.compilations is not None and after.compilations is not None:
        # Fewer than before: the user has cleared the counters, and then compiled.
        cleared = after.compilations < before.compilations
        compiled = after.compilations - (0 if cleared else before.compilations)
        if compiled > 0:
            yield Flag(FlagKind.COMPILED, amount=compiled)
    yield from load_flags(before.loads, after.loads)


def load_flags(
    before: Mapping[int, GpuLoad], after: Mapping[int, GpuLoad]
) -> Iterator[Flag]:
    """What a reader has to know of how the GPUs did, before and after."""
    for device, now in after.items():
        then = before.get(device, now)
        if then.sm_clock_mhz and now.sm_clock_mhz:
            change = now.sm_clock_mhz / then.sm_clock_mhz - 1
            if abs(change) > _CLOCK_MOVED:
                yield Flag(FlagKind.CLOCK, amount=change, device=device)
        limiters = (name for each in (then, now) for name in each.limiters or ())
        if names := tuple(dict.fromkeys(limiters)):
            yield Flag(FlagKind.LIMITED, names=names, device=device)
        if others := max(each.other_processes or 0 for each in (then, now)):
            yield Flag(FlagKind.SHARED, amount=others, device=device)


def _blocking(runtime: Runtime) -> Iterator[Flag]:
    its = [name for name in _BLOCKING if os.environ.get(name, "") not in ("", "0")]
    if its and runtime.kind == "cuda":
        yield Flag(FlagKind.LAUNCH_BLOCKING, names=(its[0],))
