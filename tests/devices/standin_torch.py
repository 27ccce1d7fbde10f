"""A stand-in for the torch module, with virtual devices and a log of what starts them.

It stands for what we rely on and no more: which call reaches the driver, which
device it makes a context on, when work is done on a virtual clock, and torch's own
errors. What real hardware does is the business of tests/hardware.
"""

# ruff: noqa: D102 -- what torch documents is not said again here

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from types import SimpleNamespace

UNIT_S = 0.001


@dataclass(eq=False)
class Machine:
    """The state behind a stand-in: what the tests look at."""

    devices: int = 2
    now_s: float = 0.0
    started: bool = False
    forked: bool = False
    current: int = 0
    contexts: set[int] = field(default_factory=set)
    reserved: dict[int, int] = field(default_factory=dict)
    streams: list[Stream] = field(default_factory=list)
    chosen: dict[int, Stream] = field(default_factory=dict)
    reached_driver: list[str] = field(default_factory=list)  # what reached cuInit
    waited_for: list[int | None] = field(default_factory=list)

    def start(self, by: str) -> None:
        """What torch does lazily before most of its calls."""
        if self.forked:
            raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
        self.reached_driver.append(by)
        self.started = True

    def stream_of(self, device: int) -> Stream:
        """The stream that work on a device goes to."""
        if device not in self.chosen:
            self.chosen[device] = Stream(self, device)
        return self.chosen[device]

    def submit(self, amount: int, stream: Stream | None = None) -> None:
        """Queue so many units of work."""
        self.start("submit")
        stream = stream or self.stream_of(self.current)
        self.contexts.add(stream.device)
        self.reserved[stream.device] = 2 << 20
        stream.free_at_s = max(self.now_s, stream.free_at_s) + amount * UNIT_S

    def done(self) -> bool:
        """Whether every stream is idle now."""
        return all(stream.free_at_s <= self.now_s for stream in self.streams)

    def wait_for(self, device: int) -> None:
        """Let time pass until a device is idle; makes a context, as CUDA does."""
        self.contexts.add(device)
        mine = [each.free_at_s for each in self.streams if each.device == device]
        self.now_s = max(self.now_s, *mine, 0.0)


class Stream:
    """A queue of work on one device."""

    def __init__(self, machine: Machine, device: int) -> None:
        self.machine, self.device, self.free_at_s = machine, device, 0.0
        machine.streams.append(self)


class Event:
    """A mark in a stream. Without timing it cannot be asked for times, as in torch."""

    def __init__(self, machine: Machine, *, enable_timing: bool = False) -> None:
        self.machine, self.timing, self.at_s = machine, enable_timing, 0.0

    def record(self, stream: Stream | None = None) -> None:
        self.machine.start("Event.record")
        stream = stream or self.machine.stream_of(self.machine.current)
        self.machine.contexts.add(stream.device)
        self.at_s = max(self.machine.now_s, stream.free_at_s)

    def query(self) -> bool:
        return self.at_s <= self.machine.now_s

    def synchronize(self) -> None:
        self.machine.now_s = max(self.machine.now_s, self.at_s)

    def elapsed_time(self, end: Event) -> float:
        if not (self.timing and end.timing):
            raise ValueError("Both events must be created with 'enable_timing=True'")
        if not (self.query() and end.query()):
            raise RuntimeError("device not ready")
        return (end.at_s - self.at_s) * 1000


class Tensor:
    """A host tensor; pinning it reaches the driver behind torch's back."""

    def __init__(self, machine: Machine, *, pinned: bool = False) -> None:
        self.machine, self.pinned = machine, pinned

    def is_pinned(self) -> bool:
        # As torch up to 2.6 does: it looks for devices first.
        self.machine.reached_driver.append("is_pinned")
        return self.pinned

    def pin_memory(self) -> Tensor:
        if not self.machine.devices:
            raise RuntimeError("Found no NVIDIA driver on your system.\nPlease check")
        self.machine.reached_driver.append("pin_memory")
        return Tensor(self.machine, pinned=True)


class DeviceModule:
    """What `torch.cuda` and `torch.xpu` have in common."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def is_initialized(self) -> bool:
        return self._machine.started and not self._machine.forked

    def is_available(self) -> bool:
        self._machine.reached_driver.append("is_available")
        return self._machine.devices > 0

    def init(self) -> None:
        self._machine.start("init")

    def device_count(self) -> int:
        # Reaches the driver for MIG devices and without NVML: the worst is assumed.
        self._machine.reached_driver.append("device_count")
        return self._machine.devices

    def current_device(self) -> int:
        self._machine.start("current_device")
        return self._machine.current

    def get_device_name(self, device: int) -> str:
        self._machine.start("get_device_name")
        return f"Virtual {device}"

    def synchronize(self, device: int | None = None) -> None:
        self._machine.start("synchronize")
        self._machine.waited_for.append(device)
        self._machine.wait_for(self._machine.current if device is None else device)

    def current_stream(self, device: int) -> Stream:
        self._machine.start("current_stream")
        return self._machine.stream_of(device)

    def Stream(self, device: int) -> Stream:  # noqa: N802 -- torch's own word
        self._machine.start("Stream")
        self._machine.contexts.add(device)
        return Stream(self._machine, device)

    def Event(self, *, enable_timing: bool = False) -> Event:  # noqa: N802
        return Event(self._machine, enable_timing=enable_timing)

    @contextlib.contextmanager
    def stream(self, stream: Stream):
        self._machine.start("stream")
        before = self._machine.stream_of(stream.device)
        self._machine.chosen[stream.device] = stream
        try:
            yield
        finally:
            self._machine.chosen[stream.device] = before

    def memory_stats(self, device: int) -> dict[str, int]:
        if not self._machine.started:
            return {}
        held = self._machine.reserved.get(device, 0)
        return {"allocated_bytes.all.current": held, "reserved_bytes.all.peak": held}

    def memory_reserved(self, device: int) -> int:
        return self._machine.reserved.get(device, 0)

    def mem_get_info(self, device: int) -> tuple[int, int]:
        self._machine.start("mem_get_info")
        self._machine.contexts.add(device)
        return (60 << 30, 80 << 30)


class CudaModule(DeviceModule):
    """`torch.cuda`, which says more of itself."""

    def memory_snapshot(self, mempool_id=None, include_traces=True):  # noqa: ARG002, FBT002
        self._machine.start("memory_snapshot")
        block = {"size": 2 << 20, "state": "active_allocated"}
        return [
            {"device": device, "address": 0, "total_size": size, "blocks": [block]}
            for device, size in self._machine.reserved.items()
        ]

    def _device_count_nvml(self) -> int:
        return self._machine.devices or -1

    def _is_in_bad_fork(self) -> bool:
        return self._machine.forked


class MpsModule:
    """`torch.mps`, which has few of the words, and synchronises without a device."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def device_count(self) -> int:
        return self._machine.devices

    def synchronize(self) -> None:
        self._machine.wait_for(0)

    def Event(self, *, enable_timing: bool = False) -> Event:  # noqa: N802
        return Event(self._machine, enable_timing=enable_timing)


def torch_with(
    *,
    cuda: Machine | None = None,
    xpu: Machine | None = None,
    mps: Machine | None = None,
) -> SimpleNamespace:
    """A torch module with these machines; without one it is built without it."""
    return SimpleNamespace(
        version=SimpleNamespace(cuda="13.0" if cuda else None, hip=None),
        backends=SimpleNamespace(
            cuda=SimpleNamespace(is_built=lambda: cuda is not None),
            mps=SimpleNamespace(is_available=lambda: mps is not None),
        ),
        cuda=CudaModule(cuda or Machine(devices=0)),
        xpu=DeviceModule(xpu or Machine(devices=0)),
        mps=MpsModule(mps or Machine(devices=0)),
        _C=SimpleNamespace(
            _cuda_hasPrimaryContext=lambda device: device in cuda.contexts,
            _cuda_getDeviceCount=lambda: cuda.devices,
            _get_privateuse1_backend_name=lambda: "privateuseone",
        ),
    )
