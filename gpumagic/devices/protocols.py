"""The two questions asked of hardware, and the records that answer them.

A `Driver` says what the machine has, whatever this process may see of it.
A `Runtime` says what this process can do on one kind of device. Asking either
never initialises CUDA and never imports torch; what a device cannot answer is
`None`.
"""

# ruff: noqa: ARG002 -- a runtime names a device, a stream, a tensor; the host has one

from __future__ import annotations

import contextlib
import enum
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from gpumagic.errors import DeviceError
from gpumagic.report.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from gpumagic.devices.nvidia import NvidiaDriver
    from gpumagic.devices.tracing import Tracing
    from gpumagic.report.events import SeenRace, SyncCall
    from gpumagic.simulator.driver import SimulatedDriver

    Driver: TypeAlias = NvidiaDriver | SimulatedDriver


# ---------------------------------------------------------------- the machine


@dataclass(frozen=True)
class GpuProcess(Record):
    """A process that the driver reports on a GPU."""

    pid: int | None
    used_bytes: int | None
    kind: str  # "compute" or "graphics"


@dataclass(frozen=True)
class MigSlice(Record):
    """A part of a GPU in MIG mode, with an identity of its own."""

    uuid: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_used_bytes: int | None = None


@dataclass(frozen=True)
class Gpu(Record):
    """One GPU as the driver knows it. Every figure may be unknown."""

    index: int  # NVML's number: neither CUDA's nor stable over reboots
    name: str | None = None
    uuid: str | None = None
    pci_address: str | None = None
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_reserved_bytes: int | None = None  # kept by the driver for itself
    utilisation_share: float | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    compute_capability: tuple[int, int] | None = None
    compute_mode: str | None = None
    processes: tuple[GpuProcess, ...] | None = None
    mig_enabled: bool | None = None
    mig: tuple[MigSlice, ...] = ()
    problem: str | None = None  # why this GPU cannot be asked, if it cannot
    hint: str | None = None  # what to do about it


@dataclass(frozen=True)
class Inventory(Record):
    """All that the driver says of the machine at one moment."""

    driver_version: str | None = None
    cuda_version: str | None = None  # the newest CUDA this driver can run
    nvml_version: str | None = None
    gpus: tuple[Gpu, ...] = ()
    absent: bool = False  # there is no driver at all, which is no fault
    unasked: bool = False  # pynvml is missing or foreign: nothing is known
    problem: str | None = None  # why the driver could not be asked
    hint: str | None = None  # what to do about it


class Initialisation(enum.Enum):
    """How far CUDA has come in this process."""

    NOT_LOADED = "not loaded"  # no driver library in this process
    UNTOUCHED = "not initialised"  # loaded, and nobody has called cuInit
    INITIALISED = "initialised"  # the visible GPUs are fixed
    FORKED_CHILD = "forked child"  # the parent had CUDA; it is lost here
    FAILED = "failed"  # cuInit was called and did not succeed
    UNKNOWN = "unknown"  # the driver library cannot be asked


@dataclass(frozen=True)
class CudaState(Record):
    """What a probe of the driver library found, without changing anything."""

    state: Initialisation
    code: int | None = None  # what cuDeviceGetCount answered
    device_count: int | None = None  # visible to this process, once initialised
    library: str | None = None  # the file that is mapped


@dataclass(frozen=True)
class VisibleDevice(Record):
    """A GPU or a slice as CUDA itself shows it to this process."""

    name: str | None
    uuid: str | None  # bare, without GPU- or MIG-; of a slice the slice's
    pci_address: str | None  # of a slice that of its GPU


@dataclass(frozen=True)
class GpuLoad(Record):
    """What holds a GPU back, or takes a part of it, at one moment."""

    index: int  # NVML's number
    uuid: str | None = None  # NVML's, with its GPU- in front
    # what holds its clock down, in plain words. Having nothing to do is none of them,
    # nor is a clock that somebody has set.
    limiters: tuple[str, ...] | None = None
    # the compute processes on it that are not this one. None also where the driver
    # does not even list this one.
    other_processes: int | None = None
    # where it is plugged in; of a slice it is the same as of its GPU
    pci_address: str | None = None


# ---------------------------------------------------------------- the process


class Runtime:
    """What this process can do on one kind of device.

    What stands here are the answers of a host, which has done its work by the time a
    call returns: there is nothing to wait for, an event is a reading of its clock, and
    there are neither streams nor counters.

    Asking never starts a device: before the start the answers are `None`, empty or
    False. Three words do start it, because they make something there: `on_stream`
    with a stream, `record` on a stream, and `pin`.

    Streams and events are the library's own objects (`torch.cuda.Stream`, ...),
    opaque to callers, who only hand them back. `None` in the place of a stream is
    where work goes by default; `None` in the place of an event is one that was
    never needed: it has been reached, and no time is known from it.
    """

    kind = "cpu"  # the word in front of the colon of a torch device
    simulated = False  # whether its times and bytes come from a model

    def started(self) -> bool:
        """Whether asking the device starts nothing: it has been used, or is a CPU."""
        return True

    def device_count(self) -> int | None:
        """How many devices this process sees, if that can be told without starting."""
        return 1  # torch has a single CPU device, however many cores

    def device_name(self, device: int) -> str | None:
        """What the maker calls it."""
        return None

    def devices_in_use(self) -> tuple[int, ...]:
        """The devices on which this process has a context."""
        return (0,)

    def current_device(self) -> int | None:
        """The device that work goes to by default; None before the start."""
        return 0

    def now_ns(self) -> int:
        """The host clock that times of this device are on, in nanoseconds."""
        return time.perf_counter_ns()

    def synchronize(self) -> None:
        """Wait until every device in use is idle; start none that is not."""

    def current_stream(self, device: int) -> Any | None:
        """The stream that work on this device goes to; None if there is none yet."""
        return None

    def on_stream(self, stream: Any | None) -> AbstractContextManager[Any]:
        """Send the work of a `with` block to this stream; None changes nothing."""
        return contextlib.nullcontext()

    def record(self, stream: Any | None) -> Any | None:
        """A timing event behind the stream's work; None where it cannot be exact."""
        return time.perf_counter_ns()

    def reached(self, event: Any | None) -> bool:
        """Whether the device has passed this event."""
        return True

    def wait(self, event: Any | None) -> None:
        """Block until the device has passed this event."""

    def elapsed_s(self, start: Any | None, end: Any | None) -> float | None:
        """Device time between two events of one device; waits for both."""
        return None if start is None or end is None else float(end - start) / 1e9

    def memory_stats(self, device: int) -> Mapping[str, Any] | None:
        """The caching allocator's counters under torch's own flat keys."""
        return None

    def memory_snapshot(self) -> list[dict[str, Any]] | None:
        """The caching allocator's segments in torch's own shape."""
        return None

    def memory_bytes(self, device: int) -> tuple[int, int] | None:
        """Free and total bytes of a device in use, as it tells itself."""
        return None

    def can_pin(self) -> bool:
        """Whether host memory can be page-locked for this device, now."""
        return False

    def pin(self, tensor: Any) -> Any:
        """The tensor in page-locked memory (itself if it is); else DeviceError."""
        raise DeviceError(
            "memory is page-locked for an accelerator to fetch, and none is used here",
            "leave pin_memory off: on a CPU it saves no copy",
        )

    def is_pinned(self, tensor: Any) -> bool:
        """Whether a host tensor lies in memory page-locked for this kind."""
        return False

    def watch_syncs(self) -> AbstractContextManager[list[SyncCall]]:
        """Note what makes the host wait during a block; the list is whole after it.

        Entering raises DeviceError where this kind of device cannot be watched.
        """
        return contextlib.nullcontext([])

    def watch_races(self) -> AbstractContextManager[list[SeenRace]]:
        """Note missing waits between streams during a block, which becomes slow.

        Entering raises DeviceError where this kind of device cannot be watched.
        """
        return contextlib.nullcontext([])

    def trace(self) -> AbstractContextManager[Tracing]:
        """Trace what host and devices do during a block.

        Entering raises DeviceError where nothing can be traced.
        """
        raise NotImplementedError
