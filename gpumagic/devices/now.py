"""How devices and loops of a running cell do now, asked again and again from a thread.

Nothing here calls CUDA, as such a call would stand in line with those of the cell, and
may end a graph that it captures: figures are torch's own counters and the driver's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.memory_counters import allocator_figures, figure
from gpumagic.devices.nvml import LoadReader, same_uuid
from gpumagic.devices.opening import runtime_now
from gpumagic.devices.simulated import simulated_box, word_of
from gpumagic.devices.torch_private import replaced
from gpumagic.devices.waiting import is_capturing
from gpumagic.errors import first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpumagic.devices.protocols import Driver, GpuLoad, Runtime, VisibleDevice

KINDS_OF_THE_DRIVER = frozenset({"cuda", "sim"})
_ALLOCATED = "allocated_bytes.all.current"
_OWN_PAGES = Path("/proc/self/statm")


class DeviceNow(NamedTuple):
    """One device at one moment; None is what nobody tells."""

    where: str
    allocated_bytes: int | None = None
    used_bytes: int | None = None  # by whomever
    total_bytes: int | None = None
    busy_share: float | None = None


class LoopNow(NamedTuple):
    """How far one loop has come."""

    key: int  # the same from one moment to the next
    done: int
    total: int | None


class Looking:
    """Looks at what is in use, and starts nothing."""

    def __init__(self, driver: Callable[[], Driver]) -> None:
        self._driver = driver
        self._reader = LoadReader()
        self._loaders: weakref.WeakSet[Any] = weakref.WeakSet()

    def devices(self) -> tuple[DeviceNow, ...]:
        """The devices in use; of the CPU, this process."""
        runtime = runtime_now()
        if runtime.kind == "cpu":
            return (DeviceNow("this process", used_bytes=_resident_bytes()),)
        if not runtime.started():
            return ()
        told = self._told(runtime)
        return tuple(
            DeviceNow(
                f"{word_of(runtime.kind)}:{number}",
                figure(allocator_figures(runtime, number) or {}, _ALLOCATED),
                **told.get(number, {}),
            )
            for number in runtime.devices_in_use()
        )

    def _told(self, runtime: Runtime) -> dict[int, dict[str, Any]]:
        """What the driver tells, by the numbers of this process."""
        if runtime.simulated and (box := simulated_box()):
            # Whether it is busy is a question of its own clock, which nobody watches.
            return {
                gpu.index: {
                    "used_bytes": gpu.used_bytes(),
                    "total_bytes": gpu.model.memory_bytes,
                }
                for gpu in box.machine.gpus
            }
        if runtime.kind not in KINDS_OF_THE_DRIVER:
            return {}
        return self._reader.uses(self._driver().visible_devices())

    def loops(self) -> tuple[LoopNow, ...]:
        """Loops that count themselves: tqdm's bars, and watched DataLoaders."""
        with contextlib.suppress(RuntimeError):  # one begins or ends at this moment
            return (*_bars_of_tqdm(), *map(_loop_of, tuple(self._loaders)))
        return ()

    @contextlib.contextmanager
    def watching_loaders(self) -> Iterator[None]:
        """Know the iterators that DataLoaders make during a block; none is kept."""
        loader = getattr(sys.modules.get("torch.utils.data"), "DataLoader", None)

        def knowing(start: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(start)
            def known(its: Any) -> Any:
                iterator = start(its)
                with contextlib.suppress(TypeError):  # no weak references to it
                    self._loaders.add(iterator)
                return iterator

            return known

        with replaced(loader, "__iter__", knowing):
            yield


def _bars_of_tqdm() -> Iterator[LoopNow]:
    bars = getattr(getattr(sys.modules.get("tqdm.std"), "tqdm", None), "_instances", ())
    for bar in tuple(bars):
        done, total = getattr(bar, "n", None), getattr(bar, "total", None)
        if isinstance(done, int) and not getattr(bar, "disable", False):
            yield LoopNow(id(bar), done, int(total) if total else None)


def _loop_of(iterator: Any) -> LoopNow:
    total = None
    with contextlib.suppress(TypeError, AttributeError):  # a stream has no length
        total = len(iterator)
    done = getattr(iterator, "_num_yielded", 0)
    return LoopNow(id(iterator), done, total or None)


def _resident_bytes() -> int | None:
    """What this process has in memory; None where that is not to be read."""
    try:
        pages = int(_OWN_PAGES.read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def loads(driver: Driver, runtime: Runtime) -> dict[int, GpuLoad]:
    """The loads of the devices in use, by device number."""
    if runtime.kind not in KINDS_OF_THE_DRIVER or not runtime.started():
        return {}
    known = driver.loads()
    if not known:
        return {}
    shown = driver.visible_devices()
    return {
        device: load
        for device in runtime.devices_in_use()
        if device < len(shown) and (load := _load_of(shown[device], known))
    }


def failure(runtime: Runtime) -> str | None:
    """What a device in use has failed with, in its own words; None if none has."""
    try:
        if not is_capturing(runtime):
            _ask_streams(runtime)
    except RuntimeError as error:
        return first_line(error)
    return None


def _ask_streams(runtime: Runtime) -> None:
    streams = map(runtime.current_stream, runtime.devices_in_use())
    for stream in filter(None, streams):
        stream.query()


def _load_of(device: VisibleDevice, known: Iterable[GpuLoad]) -> GpuLoad | None:
    """What the driver tells of a device; of a slice what it tells of its GPU."""
    for load in known:
        if same_uuid(load.uuid, device.uuid):
            return load
        if load.pci_address and load.pci_address == device.pci_address:
            if not (load.uuid and device.uuid):
                return load
            # Same place, another identity: processes of all its slices are counted.
            return dataclasses.replace(load, other_processes=None)
    return None
