"""The memory of the devices in use, by torch, by the driver, by other processes."""

# ruff: noqa: D102 -- stand-ins have the words of what they stand in for

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from gpumagic.devices.cpu import CpuRuntime
from gpumagic.devices.protocols import (
    Gpu,
    GpuProcess,
    Inventory,
    MigSlice,
    VisibleDevice,
)
from gpumagic.gpu_mem import counters
from gpumagic.gpu_mem.answer_now import notes
from gpumagic.gpu_mem.counters import badges_now, device_memories
from gpumagic.gpu_mem.records import Setting
from gpumagic.gpu_mem.segments import answer_now

MIB, GIB = 1 << 20, 1 << 30
OWN = GpuProcess(os.getpid(), 3 * GIB, "compute")
OTHER = GpuProcess(1, 5 * GIB, "compute")
SCREEN = GpuProcess(2, 1 * GIB, "graphics")
UUIDS = ("aaaa1111-0000-4000-8000-000000000000", "bbbb2222-0000-4000-8000-000000000000")


@dataclass
class Runtime:
    """A runtime of which only the memory is asked; asking too early is an error."""

    in_use: tuple[int, ...] = (0,)
    memory: dict = field(default_factory=lambda: {0: (60 * GIB, 80 * GIB)})
    has_started: bool = True
    kind: str = "cuda"
    simulated: bool = False

    def started(self):
        return self.has_started

    def devices_in_use(self):
        assert self.has_started
        return self.in_use

    def device_name(self, device):
        assert self.has_started
        return f"GPU number {device}"

    def memory_stats(self, device):
        assert device in self.in_use
        return {"allocated_bytes.all.current": 1, "reserved_bytes.all.current": 2 * GIB}

    def memory_bytes(self, device):
        assert device in self.in_use
        told = self.memory.get(device)
        if isinstance(told, Exception):
            raise told
        return told


@dataclass
class Driver:
    """A driver that shows GPUs and lists processes."""

    gpus: tuple[Gpu, ...] = ()
    shown: tuple[VisibleDevice, ...] | None = None
    simulated: bool = False

    def visible_devices(self):
        return self.shown

    def inventory(self):
        return Inventory(gpus=self.gpus)


def driver_with(*processes, **others):
    """A driver of one GPU that lists these processes."""
    gpu = Gpu(0, uuid=f"GPU-{UUIDS[0]}", processes=processes or None, **others)
    return Driver((gpu,), (VisibleDevice("x", UUIDS[0], None),))


@pytest.fixture(autouse=True)
def _a_machine_with_its_own_torch(monkeypatch):
    """Process numbers are this process's own, and torch's words are none but ours."""
    monkeypatch.setattr(counters, "in_container", lambda: False)
    torch = SimpleNamespace(cuda=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torch", torch)


def memory_with(*processes):
    """The memory of one GPU with these processes on it."""
    (found,) = device_memories(Runtime(), driver_with(*processes))
    return found


@pytest.mark.parametrize(
    ("processes", "count"),
    [
        ((), None),
        ((OTHER,), 1),
        ((OWN, GpuProcess(1, None, "compute")), 1),
    ],
    ids=["an empty list", "without this process", "without sizes"],
)
def test_lists_that_are_not_whole(processes, count):
    """A list that lacks this process, or sizes, does not tell what others hold."""
    found = memory_with(*processes)

    assert (found.others_bytes, found.other_processes) == (None, count)


def test_in_a_container(monkeypatch):
    """Where numbers are foreign nobody is taken for this process by its number."""
    monkeypatch.setattr(counters, "in_container", lambda: True)

    several, single = memory_with(OWN, OTHER, SCREEN), memory_with(OTHER)

    assert (several.others_bytes, several.other_processes) == (None, 2)
    assert (single.others_bytes, single.other_processes) == (0, 0)


def test_gpus_are_matched_by_identity():
    """What CUDA calls 0 may be number 1 of the driver; the UUID decides."""
    gpus = (
        Gpu(0, uuid=f"GPU-{UUIDS[1].upper()}", processes=(OWN, OTHER)),
        Gpu(1, uuid=f"GPU-{UUIDS[0]}", processes=(OWN,)),
    )
    shown = tuple(VisibleDevice("x", uuid, None) for uuid in UUIDS)
    runtime = Runtime((0, 1), {0: (1, 2), 1: (3, 4)})

    first, second = device_memories(runtime, Driver(gpus, shown))

    assert (first.others_bytes, second.others_bytes) == (0, 5 * GIB)


@pytest.mark.parametrize("uuid", [UUIDS[1], None])
def test_a_slice_of_a_gpu(uuid):
    """Processes are listed for the whole GPU, so of a slice they are unknown."""
    part = MigSlice(f"MIG-{UUIDS[1]}", 1, 0, 10 * GIB, 9 * GIB)
    gpu = Gpu(
        0,
        uuid=f"GPU-{UUIDS[0]}",
        pci_address="0000:01:00.0",
        processes=(OWN, OTHER),
        mig_enabled=True,
        mig=(part,),
    )
    shown = (VisibleDevice("x", uuid, "0000:01:00.0"),)

    (found,) = device_memories(Runtime(memory={}), Driver((gpu,), shown))

    assert (found.others_bytes, found.other_processes) == (None, None)
    assert found.total_bytes == (10 * GIB if uuid else None)


def test_a_device_in_error():
    """What the driver library says is shown, and that it is no memory to be had."""
    runtime = Runtime(memory={0: RuntimeError("CUDA error")})
    driver = driver_with(OWN, memory_total_bytes=80 * GIB, memory_free_bytes=7 * GIB)

    (found,) = device_memories(runtime, driver)

    assert (found.free_bytes, found.total_bytes) == (7 * GIB, 80 * GIB)
    assert found.is_silent
    assert answer_now(1 << 20, found, (), runtime).place is None
    (note,) = notes(badges_now("cuda", [found]), Setting("cuda"))
    assert (note.kind, note.hint.split(":")[0]) == ("problem", "restart the kernel")


def test_nothing_is_started():
    """Before the start, and on the CPU, no device is asked and none is told of."""
    assert device_memories(Runtime(has_started=False), driver_with(OWN)) == ()
    assert device_memories(CpuRuntime(), driver_with(OWN)) == ()


@pytest.mark.parametrize(("share", "cap"), [(0.5, 40 * GIB), (1.0, None)])
def test_the_limit_of_this_process(monkeypatch, share, cap):
    """A share of the memory is told in bytes, and the whole is no limit."""
    cuda = SimpleNamespace(get_per_process_memory_fraction=lambda _: share)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))

    assert memory_with(OWN).cap_bytes == cap
