"""How busy GPUs are and how they are joined to the host, asked of NVML.

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
from gpumagic.devices.protocols import GpuLink, GpuLoad
from gpumagic.devices.visible_devices import same_uuid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpumagic.devices.protocols import VisibleDevice

_PCI_DEVICES = Path("/sys/bus/pci/devices")
_UNKNOWN_NODE = -1  # what Linux writes on machines with one node
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
    """Asks NVML again and again, and keeps it open meanwhile.

    Opening takes milliseconds, and the last one who closes NVML lets go of the GPUs.
    """

    def __init__(self) -> None:
        self._kept_open_in_pid: int | None = None

    def read(self, shown: Iterable[VisibleDevice]) -> tuple[GpuLoad, ...]:
        """The loads of these GPUs now; one that cannot be asked is left out.

        Never raises, and initialises no CUDA.
        """
        with _opened() as nvml:
            if nvml is None:
                return ()
            self._keep_open(nvml)
            return tuple(GpuLoad(**each) for each in _answers_of(nvml, shown, _LOAD))

    def uses(self, shown: Sequence[VisibleDevice]) -> dict[int, GpuUse]:
        """How busy and how full these GPUs are, by their place; cheap, never raises.

        A slice of a GPU is left out: NVML tells of the whole GPU only.
        """
        with _opened() as nvml:
            if nvml is None:
                return {}
            self._keep_open(nvml)
            return dict(_uses_of(nvml, shown))

    def _keep_open(self, nvml: Any) -> None:
        """NVML counts who has opened it; so one more keeps it open."""
        if self._kept_open_in_pid == os.getpid():
            return
        with contextlib.suppress(Exception):
            nvml.nvmlInit()
            self._kept_open_in_pid = os.getpid()
            weakref.finalize(self, _close, nvml, os.getpid())


def read_links(shown: Iterable[VisibleDevice]) -> tuple[GpuLink, ...]:
    """The links of these GPUs now; one that cannot be asked is left out.

    Never raises, initialises no CUDA, and touches no other GPU.
    """
    with _opened() as nvml:
        if nvml is None:
            return ()
        return tuple(GpuLink(**each) for each in _answers_of(nvml, shown, _LINK))


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


@contextlib.contextmanager
def _opened() -> Iterator[Any | None]:
    """NVML, open for the length of a block; None where it cannot be opened."""
    try:
        nvml = load_pynvml()
        nvml.nvmlInit()
    except Exception:  # noqa: BLE001 -- the contract of those who ask: never raise
        yield None
        return
    try:
        yield nvml
    finally:
        with contextlib.suppress(Exception):
            nvml.nvmlShutdown()


def _handle_of(nvml: Any, device: VisibleDevice) -> Any | None:
    """By address, which a slice shares with its GPU; by UUID where it is unknown."""
    with contextlib.suppress(Exception):
        return first(
            lambda: nvml.nvmlDeviceGetHandleByPciBusId(device.pci_address),
            lambda: nvml.nvmlDeviceGetHandleByUUID(f"GPU-{device.uuid}"),
        )
    return None


def _answers_of(
    nvml: Any,
    shown: Iterable[VisibleDevice],
    questions: tuple[tuple[str, Callable[..., Any]], ...],
) -> Iterator[dict[str, Any]]:
    """What NVML tells of each GPU that it can be asked about."""
    for device in shown:
        handle = _handle_of(nvml, device)
        known = {} if handle is None else answers(questions, [], nvml, handle)
        if "index" in known:
            yield known


def _index(nvml: Any, gpu: Any) -> int:
    return int(nvml.nvmlDeviceGetIndex(gpu))


def _sm_clock_mhz(nvml: Any, gpu: Any) -> int:
    return int(nvml.nvmlDeviceGetClockInfo(gpu, _SM_CLOCK))


def _sm_clock_max_mhz(nvml: Any, gpu: Any) -> int:
    return int(nvml.nvmlDeviceGetMaxClockInfo(gpu, _SM_CLOCK))


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


def _uses_of(nvml: Any, shown: Sequence[VisibleDevice]) -> Iterator[tuple[int, GpuUse]]:
    for number, device in enumerate(shown):
        handle = _handle_of(nvml, device)
        known = {} if handle is None else answers(_USE, [], nvml, handle)
        if same_uuid(known.pop("uuid", None), device.uuid):
            yield number, GpuUse(**known)


_USE = (
    ("uuid", uuid),
    ("busy_share", utilisation_share),
    ("used_bytes", lambda nvml, gpu: int(nvml.nvmlDeviceGetMemoryInfo(gpu).used)),
    ("total_bytes", lambda nvml, gpu: int(nvml.nvmlDeviceGetMemoryInfo(gpu).total)),
)
_LOAD = (
    ("index", _index),
    ("uuid", uuid),
    ("sm_clock_mhz", _sm_clock_mhz),
    ("sm_clock_max_mhz", _sm_clock_max_mhz),
    ("limiters", _limiters),
    ("other_processes", _other_processes),
    ("pci_address", pci_address),
)


def node_of(address: str, devices: Path = _PCI_DEVICES) -> int | None:
    """The memory node that a PCI device is attached to; None where Linux knows none."""
    try:
        node = int((devices / address.lower() / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return None if node == _UNKNOWN_NODE else node


def _generation(nvml: Any, gpu: Any) -> int:
    return int(nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu))


def _width(nvml: Any, gpu: Any) -> int:
    return int(nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu))


def _most_generation(nvml: Any, gpu: Any) -> int:
    return int(nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu))


def _most_width(nvml: Any, gpu: Any) -> int:
    return int(nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu))


def _numa_node(nvml: Any, gpu: Any) -> int | None:
    # NVML has a word for it as well, which tells of the GPU's own memory.
    return node_of(pci_address(nvml, gpu))


def _c2c(nvml: Any, gpu: Any) -> bool:
    return bool(nvml.nvmlDeviceGetC2cModeInfoV(gpu).isC2cEnabled)


_LINK = (
    ("index", _index),
    ("uuid", uuid),
    ("pci_address", pci_address),
    ("generation", _generation),
    ("width", _width),
    ("most_generation", _most_generation),
    ("most_width", _most_width),
    ("numa_node", _numa_node),
    ("c2c", _c2c),
)
