"""How busy GPUs are and what holds them back, asked of NVML.

Loads are asked before and after a cell, so it has to be quick. Only GPUs that this
process uses are touched: another one may be asleep, and the driver would wake it,
which takes a second.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.nvml import (
    answers,
    first,
    load_pynvml,
    pci_address,
    running,
    utilisation_share,
    uuid,
)
from gpumagic.devices.protocols import GpuLoad
from gpumagic.devices.visible_devices import same_uuid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpumagic.devices.protocols import VisibleDevice

_SM_CLOCK = 1
_OWN_NAMESPACE = Path("/proc/self/ns/pid")
_FIRST_NAMESPACE = "pid:[4026531836]"  # the machine's own; the number never changes

# Bits that are not here are no limits: an idle GPU, clocks that somebody has set.
_HARDWARE = 0x8
_LIMITERS = (
    (0x4, "power limit"),
    (0x20 | 0x40, "heat"),
    (0x80, "power brake of the machine"),
    (_HARDWARE, "hardware slowdown"),
    (0x10, "a slower GPU that it is tied to (sync boost)"),
    (0x200, "board limit"),
    (0x400, "voltage kept reliable"),
)
_HARDWARE_REASONS = 0x40 | 0x80  # with one of these the general bit says nothing new


class GpuUse(NamedTuple):
    """What is done with a GPU at one moment, by whomever."""

    busy_share: float | None = None
    used_bytes: int | None = None
    total_bytes: int | None = None


class LoadReader:
    """Asks NVML again and again, and keeps it open meanwhile."""

    def __init__(self) -> None:
        self._kept_open_in_pid: int | None = None

    def read(self, shown: Iterable[VisibleDevice]) -> tuple[GpuLoad, ...]:
        """The loads of these GPUs now; one that cannot be asked is left out."""
        with self._opened() as nvml:
            asked = [_asked(nvml, each, _LOAD) for each in shown]
            return tuple(GpuLoad(**known) for known in asked if "index" in known)

    def uses(self, shown: Sequence[VisibleDevice]) -> dict[int, GpuUse]:
        """How busy and how full these GPUs are, by their place; cheap, never raises."""
        with self._opened() as nvml:
            asked = [_asked(nvml, each, _USE) for each in shown]
        uuids = [known.pop("uuid", None) for known in asked]
        return {
            number: GpuUse(**asked[number])
            for number, device in enumerate(shown)
            if same_uuid(uuids[number], device.uuid)
        }

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any | None]:
        """NVML, open for the length of a block; None where it cannot be opened."""
        try:
            nvml = load_pynvml()
            nvml.nvmlInit()
        except Exception:  # noqa: BLE001 -- the contract of those who ask: never raise
            yield None
            return
        try:
            # NVML counts who has opened it; so one more keeps it open.
            if self._kept_open_in_pid != os.getpid():
                with contextlib.suppress(Exception):
                    nvml.nvmlInit()
                    self._kept_open_in_pid = os.getpid()
                    weakref.finalize(self, _close, nvml, os.getpid())
            yield nvml
        finally:
            _close(nvml, os.getpid())


def limiters(reasons: int) -> tuple[str, ...]:
    """What holds a clock down, in words, from the bits of NVML.

    >>> limiters(0x4 | 0x1)
    ('power limit',)
    """
    if reasons & _HARDWARE_REASONS:
        reasons &= ~_HARDWARE
    return tuple(word for bits, word in _LIMITERS if reasons & bits)


def count_others(pids: list[int], *, own_pid: int, in_container: bool) -> int | None:
    """How many of the processes on a GPU are not this one, which is on it as well."""
    if not pids:
        return None
    known = own_pid in pids or in_container
    return len(pids) - 1 if known else len(pids)


def in_container() -> bool:
    """Whether processes have other numbers here than the driver gives them."""
    try:
        return str(_OWN_NAMESPACE.readlink()) != _FIRST_NAMESPACE
    except OSError:  # this system has no such numbers
        return False


def _close(nvml: Any, pid: int) -> None:
    if os.getpid() == pid:  # a forked child has not opened it
        with contextlib.suppress(Exception):
            nvml.nvmlShutdown()


def _asked(
    nvml: Any,
    device: VisibleDevice,
    questions: tuple[tuple[str, Callable[..., Any]], ...],
) -> dict[str, Any]:
    """What NVML tells of a GPU; nothing where it cannot be asked."""
    with contextlib.suppress(Exception):
        gpu = first(
            lambda: nvml.nvmlDeviceGetHandleByPciBusId(device.pci_address),
            lambda: nvml.nvmlDeviceGetHandleByUUID(f"GPU-{device.uuid}"),
        )
        return answers(questions, [], nvml, gpu)
    return {}


def _limiters(nvml: Any, gpu: Any) -> tuple[str, ...]:
    # Drivers before 535 know the question by its former name only.
    reasons = first(
        lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu),
        lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu),
    )
    return limiters(int(reasons))


def _other_processes(nvml: Any, gpu: Any) -> int | None:
    pids = [int(row.pid) for row in running(nvml, gpu, "Compute")]
    return count_others(pids, own_pid=os.getpid(), in_container=in_container())


_USE = (
    ("uuid", uuid),
    ("busy_share", utilisation_share),
    ("used_bytes", lambda nvml, gpu: int(nvml.nvmlDeviceGetMemoryInfo(gpu).used)),
    ("total_bytes", lambda nvml, gpu: int(nvml.nvmlDeviceGetMemoryInfo(gpu).total)),
)
_LOAD = (
    ("index", lambda nvml, gpu: int(nvml.nvmlDeviceGetIndex(gpu))),
    ("uuid", uuid),
    ("sm_clock_mhz", lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, _SM_CLOCK)),
    (
        "sm_clock_max_mhz",
        lambda nvml, gpu: nvml.nvmlDeviceGetMaxClockInfo(gpu, _SM_CLOCK),
    ),
    ("limiters", _limiters),
    ("other_processes", _other_processes),
    ("pci_address", pci_address),
)
