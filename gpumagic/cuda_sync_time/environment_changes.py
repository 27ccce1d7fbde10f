"""What changed round a measurement: devices, streams, threads, allocator, clocks.

Noting starts nothing and resets nothing, and is done outside of what is timed.
"""

from __future__ import annotations

import gc
import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from gpumagic.cuda_sync_time.report import Flag, FlagKind
from gpumagic.devices import torch_private
from gpumagic.devices.around_cell import Observer
from gpumagic.devices.in_use import loads
from gpumagic.devices.torch_private import loaded_torch
from gpumagic.devices.waiting import is_in_use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from gpumagic.devices.protocols import Driver, GpuLoad, Runtime

# Both wait for the device, and are what the caching allocator is there to avoid.
_OURS = "gpumagic-"  # threads that look, wait or interrupt for us
_TAKEN = ("num_device_alloc",)
_GIVEN_BACK = ("num_device_free",)
_RETRIES = ("num_alloc_retries",)
# Each makes the driver, or the runtime, wait for every launch.
_BLOCKING = ("CUDA_LAUNCH_BLOCKING", "HIP_LAUNCH_BLOCKING", "AMD_SERIALIZE_KERNEL")
_OFF = ("", "0")
_CLOCK_MOVED = 0.05


@dataclass(frozen=True)
class Environment:
    """What was so at one moment."""

    started: bool = False  # whether a device was in use that can be waited for
    devices: tuple[int, ...] = ()  # those in use
    current_device: int | None = None
    # the id of the current stream by device, where it has one
    streams: Mapping[int, int | None] = field(default_factory=dict)
    threads: frozenset[threading.Thread] = frozenset()  # those that run, without ours
    # the caching allocator's counters by device
    counters: Mapping[int, Mapping[str, Any] | None] = field(default_factory=dict)
    compilations: int | None = 0  # how much torch.compile had taken; None is unknown
    # the libraries of kernels in use by device, where that is known
    libraries: Mapping[int, frozenset[str]] = field(default_factory=dict)
    collections: int = 0  # how often the garbage collector had gone through everything
    blocking: str | None = None  # the variable that makes each launch wait, if one does
    # what the driver says of the GPUs in use, by device
    loads: Mapping[int, GpuLoad] = field(default_factory=dict)

    @classmethod
    def now(cls, runtime: Runtime, driver: Driver) -> Self:
        """That of this moment; the driver is asked only where a GPU is in use."""
        torch = loaded_torch()
        started = is_in_use(runtime)
        devices = runtime.devices_in_use() if started else ()
        return cls(
            started=started,
            devices=devices,
            current_device=runtime.current_device() if started else None,
            streams={each: _stream_id(runtime, each) for each in devices},
            threads=frozenset(_users_threads()),
            counters={each: runtime.memory_stats(each) for each in devices},
            compilations=0 if torch is None else torch_private.compilations(torch),
            libraries=_libraries(runtime, devices),
            collections=gc.get_stats()[-1]["collections"],
            blocking=_blocking() if runtime.kind == "cuda" else None,
            loads=loads(driver, runtime),
        )


class EnvironmentWatch(Observer):
    """Notes the environment before a cell and after it.

    Attributes:
        flags: What has changed; nothing is known of it where the device is broken.
    """

    def __init__(self, find_driver: Callable[[], Driver]) -> None:
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
            self.flags = flags_between(self._before, after)

    def close(self) -> None:
        """Let go of the threads that were noted."""
        self._before = Environment()


def flags_between(before: Environment, after: Environment) -> tuple[Flag, ...]:
    """What a reader has to know of what changed, or was so all the time."""
    found: list[Flag | None] = [
        *_first_uses(before, after),
        *_libraries_started(before, after),
        _device_left(before, after),
        *_streams_left(before, after),
        _threads_left(before, after),
        _count(FlagKind.COLLECTED, after.collections - before.collections),
        *_allocator_flags(before, after),
        _compiled(before, after),
        *load_flags(before.loads, after.loads),
    ]
    if after.blocking is not None:
        found.append(Flag(FlagKind.LAUNCH_BLOCKING, names=(after.blocking,)))
    return tuple(flag for flag in found if flag is not None)


def load_flags(
    before: Mapping[int, GpuLoad], after: Mapping[int, GpuLoad]
) -> Iterator[Flag]:
    """What a reader has to know of how the GPUs did, before and after."""
    for device, now in after.items():
        then = before.get(device)
        change = None if then is None else _change(then.sm_clock_mhz, now.sm_clock_mhz)
        if change is not None and abs(change) > _CLOCK_MOVED:
            yield Flag(FlagKind.CLOCK, amount=change, device=device)
        both = [now] if then is None else [then, now]
        limiters = _in_order(name for each in both for name in each.limiters or ())
        if limiters:
            yield Flag(FlagKind.LIMITED, names=limiters, device=device)
        others = max(each.other_processes or 0 for each in both)
        if others:
            yield Flag(FlagKind.SHARED, amount=others, device=device)


# ------------------------------------------------------------- what is noted


def _stream_id(runtime: Runtime, device: int) -> int | None:
    number: int | None = getattr(runtime.current_stream(device), "stream_id", None)
    return number


def _libraries(
    runtime: Runtime, devices: Iterable[int]
) -> Mapping[int, frozenset[str]]:
    if not runtime.simulated:
        return {}
    from gpumagic.devices.simulated import libraries_started

    return {each: libraries_started(each) for each in devices}


def _users_threads() -> Iterator[threading.Thread]:
    return (each for each in threading.enumerate() if not each.name.startswith(_OURS))


def _blocking() -> str | None:
    set_ones = (name for name in _BLOCKING if os.environ.get(name, "") not in _OFF)
    return next(set_ones, None)


# -------------------------------------------------------- what is made of it


def _first_uses(before: Environment, after: Environment) -> Iterator[Flag]:
    for device in after.devices:
        if device not in before.devices:
            yield Flag(FlagKind.FIRST_USE, device=device)


def _libraries_started(before: Environment, after: Environment) -> Iterator[Flag]:
    for device, names in after.libraries.items():
        started = names - before.libraries.get(device, frozenset())
        if started:
            names_told = tuple(sorted(started))
            yield Flag(FlagKind.LIBRARY_STARTED, names=names_told, device=device)


def _device_left(before: Environment, after: Environment) -> Flag | None:
    now = after.current_device
    # Before a first use none was current: what is so by itself was not left so.
    expected = before.current_device if before.started else 0
    if now is None or now == expected:
        return None
    return Flag(FlagKind.DEVICE_LEFT, amount=now, device=now)


def _streams_left(before: Environment, after: Environment) -> Iterator[Flag]:
    for device, stream in after.streams.items():
        then = before.streams.get(device)
        if None not in (then, stream) and then != stream:
            yield Flag(FlagKind.STREAM_LEFT, amount=device, device=device)


def _threads_left(before: Environment, after: Environment) -> Flag | None:
    running = [each for each in after.threads - before.threads if each.is_alive()]
    names = tuple(sorted(each.name for each in running))
    return Flag(FlagKind.THREADS, amount=len(names), names=names) if names else None


def _allocator_flags(before: Environment, after: Environment) -> Iterator[Flag]:
    for device, counters in after.counters.items():
        if counters is None:
            continue
        earlier = before.counters.get(device) or {}
        taken, given_back, retries = (
            sum(counters.get(key, 0) - earlier.get(key, 0) for key in keys)
            for keys in (_TAKEN, _GIVEN_BACK, _RETRIES)
        )
        # With a retry the allocator had run out, and has given back what it could.
        emptied = given_back > 0 and retries <= 0
        kind = FlagKind.GIVEN_BACK if emptied else FlagKind.DRIVER_CALLS
        if taken + given_back > 0:
            yield Flag(kind, amount=taken + given_back, device=device)
        if retries > 0:
            yield Flag(FlagKind.RETRIES, amount=retries, device=device)


def _compiled(before: Environment, after: Environment) -> Flag | None:
    if before.compilations is None or after.compilations is None:
        return None
    # Fewer than before: the user has cleared the counters, and then compiled these.
    cleared = after.compilations < before.compilations
    then = 0 if cleared else before.compilations
    return _count(FlagKind.COMPILED, after.compilations - then)


def _change(then: int | None, now: int | None) -> float | None:
    return None if now is None or not then else now / then - 1


def _in_order(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _count(kind: FlagKind, times: int) -> Flag | None:
    return Flag(kind, amount=times) if times > 0 else None
