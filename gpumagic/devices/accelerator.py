"""What this process can do on an accelerator, through torch's module for its kind.

torch gives each kind of device a module of its own (`torch.cuda`, `torch.xpu`,
`torch.mps`) with the same words in it, but not all of them everywhere and not in
every version. Each word is looked up when it is needed; a missing one is `None`.

What is here is what differs from other accelerators. The choice of visible GPUs
freezes when CUDA starts, so that asking must not start it; and a context costs
hundreds of megabytes, so that none may be made on a GPU that is not in use.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import TYPE_CHECKING, Any

from gpumagic.devices import torch_private
from gpumagic.devices.nvidia import driver_initialised
from gpumagic.devices.protocols import Runtime
from gpumagic.devices.simulated import SIMULATED, required_box, simulated_box
from gpumagic.errors import DeviceError, first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from contextlib import AbstractContextManager

    from gpumagic.devices.tracing import Tracing
    from gpumagic.report.events import SeenRace, SyncCall

# MPS events hung or ran backwards until September 2026 (pytorch PR 196395), and
# nothing tells from outside whether they are mended: wait and use the host clock.
_WITHOUT_EVENTS = ("mps",)
_WITHOUT_PINNING = ("mps",)  # torch itself forces pinning off there
_CALIBRATION_CYCLES = 10_000_000
_PRODUCT = 512  # the side of the matrices where nothing else keeps a device busy
_PRODUCTS = 20
_LAUNCH_NS = 10_000


def is_available(torch: Any, kind: str) -> bool:
    """Whether torch finds such a device. Never ask it of "cuda": that starts CUDA."""
    # torch 2.4 says it for MPS under `backends` only.
    homes = getattr(torch, kind, None), getattr(torch.backends, kind, None)
    return any(getattr(home, "is_available", bool)() for home in homes)


class AcceleratorRuntime(Runtime):
    """A `Runtime` on the devices of one torch module."""

    def __init__(self, torch: Any, kind: str) -> None:
        self.kind = kind
        self._torch = torch
        self._module = getattr(torch, kind)
        # torch.mps.synchronize() takes no device. Looked up here: it costs as much
        # as the shortest wait.
        self._waits_by_device = bool(_parameters(self._module.synchronize))

    def started(self) -> bool:
        """Whether the device has been used, so that asking it starts nothing."""
        ask = self._word("is_initialized")
        # MPS has no such word: being there is all that it can tell.
        return bool(ask()) if ask else is_available(self._torch, self.kind)

    def device_count(self) -> int | None:
        """How many devices there are; None before the start."""
        return int(self._module.device_count()) if self.started() else None

    def device_name(self, device: int) -> str | None:
        """What the maker calls it; None before the start."""
        name: str | None = self._ask_of(device, "get_device_name")
        return name

    def devices_in_use(self) -> tuple[int, ...]:
        """The devices with a context; empty before the start."""
        return tuple(i for i in range(self.device_count() or 0) if self._in_use(i))

    def current_device(self) -> int | None:
        """The device that work goes to by default; None before the start."""
        if not self.started():
            return None
        # Without the word there is only one.
        return int(getattr(self._module, "current_device", int)())

    def synchronize(self) -> None:
        """Wait until every device in use is idle; start none that is not."""
        wait = self._module.synchronize
        for device in self.devices_in_use():
            wait(device) if self._waits_by_device else wait()

    def current_stream(self, device: int) -> Any | None:
        """The stream that work on this device goes to; None before the start."""
        return self._ask_of(device, "current_stream")

    def on_stream(self, stream: Any | None) -> AbstractContextManager[Any]:
        """Send the work of a `with` block to this stream; None changes nothing."""
        if stream is None:
            return contextlib.nullcontext()
        block: AbstractContextManager[Any] = self._module.stream(stream)
        return block

    def record(self, stream: Any | None) -> Any | None:
        """A timing event on a stream, or where work goes now; None before the start."""
        make = self._word("Event")
        if make is None or self.kind in _WITHOUT_EVENTS or not self.started():
            return None
        event = make(enable_timing=True)
        event.record(stream)
        return event

    def reached(self, event: Any | None) -> bool:
        """Whether the device has passed this event."""
        return event is None or bool(event.query())

    def wait(self, event: Any | None) -> None:
        """Block until the device has passed this event."""
        if event is not None:
            event.synchronize()

    def elapsed_s(self, start: Any | None, end: Any | None) -> float | None:
        """Device time between two events of one device; waits for both."""
        if start is None or end is None:
            return None
        self.wait(start)  # otherwise torch raises "device not ready"
        self.wait(end)
        try:
            return float(start.elapsed_time(end)) / 1000
        except NotImplementedError:  # XPU before torch 2.6
            return None

    def memory_stats(self, device: int) -> Mapping[str, Any] | None:
        """The caching allocator's counters under torch's own flat keys."""
        try:
            return self._ask_of(device, "memory_stats") or None
        except RuntimeError:  # an allocator that was plugged in need not count
            return None

    def memory_snapshot(self) -> list[dict[str, Any]] | None:
        """The caching allocator's segments in torch's own shape."""
        ask = self._word("memory_snapshot")
        if ask is None or not self.started():
            return None
        # Newer versions add the recorded history: seconds of work, unused here.
        leave_out = "include_traces" in _parameters(ask)
        try:
            return list(ask(include_traces=False) if leave_out else ask())
        except RuntimeError:  # an allocator that was plugged in need not tell
            return None

    def memory_bytes(self, device: int) -> tuple[int, int] | None:
        """Free and total bytes; None unless the device is already in use."""
        ask = self._word("mem_get_info")
        if ask is None or device not in self.devices_in_use():
            return None  # asking would make a context there
        try:
            free, total = ask(device)
        except RuntimeError:  # some XPU drivers cannot tell what is free
            return None
        return int(free), int(total)

    def can_pin(self) -> bool:
        """Whether host memory can be page-locked now; False before the start."""
        return self.started() and self.kind not in _WITHOUT_PINNING

    def pin(self, tensor: Any) -> Any:
        """The tensor in page-locked memory; starts the device."""
        if self.kind in _WITHOUT_PINNING:
            raise _cannot_pin(f"torch does not page-lock memory for {self.kind}")
        try:
            pinned = self._pinned(tensor)
        except (RuntimeError, AssertionError) as error:
            raise _cannot_pin(first_line(error)) from error
        if not pinned.is_pinned():
            raise _cannot_pin("torch returned memory that is not page-locked")
        return pinned

    def is_pinned(self, tensor: Any) -> bool:
        """Whether a host tensor lies in page-locked memory."""
        return self.started() and bool(tensor.is_pinned())

    def watch_syncs(self) -> AbstractContextManager[list[SyncCall]]:
        """Note what makes the host wait during a block."""
        from gpumagic.devices.sync_watch import watch_syncs

        return watch_syncs(self._torch, self.kind)

    def watch_races(self) -> AbstractContextManager[list[SeenRace]]:
        """Note missing waits between streams during a block."""
        from gpumagic.devices.race_watch import watch_races

        return watch_races(self._torch, self.kind)

    def trace(self) -> AbstractContextManager[Tracing]:
        """Trace what host and devices do during a block."""
        from gpumagic.devices.tracing import trace

        return trace(self._torch, self.kind)

    def _pinned(self, tensor: Any) -> Any:
        return tensor.pin_memory()

    def _in_use(self, device: int) -> bool:
        """Ask after the start; a kind that tells nothing uses its current device."""
        reserved = self._word("memory_reserved")
        holds_memory = reserved is not None and reserved(device) > 0
        return holds_memory or device == self.current_device()

    def _word(self, name: str) -> Callable[..., Any] | None:
        return getattr(self._module, name, None)

    def _ask_of(self, device: int, name: str) -> Any | None:
        """What the module answers for a device that exists, after the start."""
        ask = self._word(name)
        if ask is None or not 0 <= device < (self.device_count() or 0):
            return None
        return ask(device)


def _parameters(function: Callable[..., Any]) -> Collection[str]:
    try:
        return inspect.signature(function).parameters
    except ValueError:  # written in C, and silent about it
        return ("device",)


def _cannot_pin(reason: str) -> DeviceError:
    return DeviceError(
        f"this memory cannot be page-locked: {reason}",
        "leave pin_memory off here, or pin a dense tensor that lies in host memory",
    )


class CudaRuntime(AcceleratorRuntime):
    """A `Runtime` on `torch.cuda`."""

    def __init__(
        self,
        torch: Any,
        driver_initialised: Callable[[], bool] = driver_initialised,
    ) -> None:
        super().__init__(torch, "cuda")
        self._driver_initialised = driver_initialised

    def device_count(self) -> int | None:
        """How many GPUs this process sees; None before the start.

        torch's count before the start reaches cuInit on MIG devices and wherever
        NVML fails.
        """
        if not self.started():
            return None
        return torch_private.cuda_count_latched(self._torch)

    def is_pinned(self, tensor: Any) -> bool:
        """Whether a host tensor lies in page-locked memory.

        Pinned memory cannot be there before cuInit, and up to torch 2.6 asking
        would reach it. After it, torch itself need not have been started.
        """
        return (self.started() or self._driver_initialised()) and bool(
            tensor.is_pinned()
        )

    def _pinned(self, tensor: Any) -> Any:
        # Pinning alone makes a context that `is_initialized()` knows nothing of.
        self._module.init()
        return super()._pinned(tensor)

    def _in_use(self, device: int) -> bool:
        return torch_private.has_cuda_context(self._torch, device)


class SimulatedRuntime(AcceleratorRuntime):
    """A `Runtime` on the simulated machine that is switched on."""

    kind = SIMULATED
    simulated = True

    def __init__(self, torch: Any) -> None:
        super().__init__(torch, SIMULATED)

    def now_ns(self) -> int:
        """The clock of the simulated host."""
        box = simulated_box()
        return int(box.machine.scheduler.now_ns) if box else 0

    def watch_syncs(self) -> AbstractContextManager[list[SyncCall]]:
        """Note what makes the host wait during a block, with its exact cost."""
        syncs: AbstractContextManager[list[SyncCall]] = required_box().watch_syncs()
        return syncs

    def watch_races(self) -> AbstractContextManager[list[SeenRace]]:
        """Collect the races that the machine finds during a block."""
        races: AbstractContextManager[list[SeenRace]] = required_box().watch_races()
        return races

    def trace(self) -> AbstractContextManager[Tracing]:
        """Trace what the machine does during a block, exactly."""
        tracing: AbstractContextManager[Tracing] = required_box().trace()
        return tracing


class Busy:
    """Keeps the current stream of a device busy for a while, and touches no memory.

    A copy is delayed by it, so that the host comes first for certain.
    """

    def __init__(self, runtime: Runtime, device: int, *, name: str = "busy") -> None:
        self._runtime, self._device, self._name = runtime, device, name
        if runtime.simulated:
            return
        # `_sleep` is private, but as old as torch.cuda; AMD's build has it as well.
        if hasattr(_module(runtime), "_sleep"):
            self._run: Callable[[int], None] = self._spin
            self._calibrate(_CALIBRATION_CYCLES)
        else:
            self._run = _products(runtime, device)
            self._calibrate(_PRODUCTS)

    def submit(self, seconds: float) -> None:
        """Keep the current stream busy; the host goes on."""
        if self._runtime.simulated:
            self._submit_simulated(seconds)
        else:
            self._run(max(round(seconds * self._rate), 1))

    def _spin(self, cycles: int) -> None:
        module = _module(self._runtime)
        with module.device(self._device):
            module._sleep(cycles)  # noqa: SLF001 -- as above

    def _calibrate(self, amount: int) -> None:
        """Find how much of it fits into a second."""
        runtime = self._runtime
        stream = runtime.current_stream(self._device)
        # From the idle clock to the full one; and the device still does it while the
        # host sends what is measured.
        self._run(amount)
        start = runtime.record(stream)
        if start is None:  # this kind of device has no events
            runtime.synchronize()
        began_ns = runtime.now_ns()
        self._run(amount)
        took_s = runtime.elapsed_s(start, runtime.record(stream))
        if took_s is None:
            runtime.synchronize()
            took_s = (runtime.now_ns() - began_ns) / 1e9
        self._rate = amount / max(took_s, 1e-9)

    def _submit_simulated(self, seconds: float) -> None:
        from gpumagic.simulator.scheduler import FULL_SHARE, Engine

        stream = self._runtime.current_stream(self._device)
        if not stream:
            return
        simulated = stream._simulated  # noqa: SLF001 -- the engine's own stream
        simulated.gpu.start()
        required_box().machine.scheduler.launch(
            simulated.queue,
            Engine.COMPUTE,
            round(seconds * 1e9),
            FULL_SHARE,
            _LAUNCH_NS,
            self._name,
        )


def _module(runtime: Runtime) -> Any:
    import torch

    return getattr(torch, runtime.kind)


def _products(runtime: Runtime, device: int) -> Callable[[int], None]:
    """What multiplies matrices so many times."""
    import torch

    shape, place = (_PRODUCT, _PRODUCT), torch.device(runtime.kind, device)
    left, right, product = (torch.zeros(shape, device=place) for _ in range(3))

    def run(amount: int) -> None:
        with torch.no_grad():
            for _ in range(amount):
                torch.mm(left, right, out=product)

    return run
