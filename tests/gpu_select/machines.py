"""Machines made up for a test, and choosing free GPUs on them, chance under control."""

from dataclasses import replace

import pytest

from gpumagic.devices.protocols import Gpu, GpuProcess, Inventory, MigSlice
from gpumagic.gpu_select.free import NotEnough, freest
from gpumagic.gpu_select.machine import places
from gpumagic.gpu_select.request import read

GIB = 2**30
TOTAL = 80 * GIB
ADDRESSES = ("0000:18:00.0", "0000:3b:00.0", "0000:86:00.0", "000f:01:00.0")
UUIDS = (
    "GPU-11111111-aaaa-4aaa-8aaa-111111111111",
    "GPU-11111111-bbbb-4bbb-8bbb-111111111111",
    "GPU-22222222-cccc-4ccc-8ccc-222222222222",
    "GPU-33333333-dddd-4ddd-8ddd-333333333333",
)
SLICES = (
    MigSlice("MIG-aaaa1111-2222-4333-8444-555566667777", 1, 0, 10 * GIB),
    MigSlice("MIG-bbbb1111-2222-4333-8444-555566667777", 2, 0, 20 * GIB),
)


def gpu(index=0, used_gib=0.0, pids=(), each_gib=None, **changes):
    """An H100 of 80 GiB, idle if nothing else is said."""
    used = int(used_gib * GIB)
    held = None if each_gib is None else int(each_gib * GIB)
    known = Gpu(
        index,
        name="NVIDIA H100 80GB HBM3",
        uuid=UUIDS[index],
        pci_address=ADDRESSES[index],
        memory_total_bytes=TOTAL,
        memory_free_bytes=TOTAL - used,
        memory_used_bytes=used,
        memory_reserved_bytes=0,
        utilisation_share=0.0,
        processes=tuple(GpuProcess(pid, held, "compute") for pid in pids),
    )
    return replace(known, **changes)


def sliced(index=2, slices=SLICES):
    """A GPU in MIG mode."""
    return gpu(index, mig_enabled=True, mig=tuple(slices), utilisation_share=None)


def lost(index=1):
    """A GPU that does not answer."""
    return Gpu(index, problem="this GPU is lost", hint="reboot")


def machine(*gpus):
    """A machine with these GPUs, or with four that are idle and alike."""
    return Inventory(gpus=gpus or tuple(gpu(index) for index in range(4)))


def choose(inventory, *, allowed=None, claimed=None, pick=min, **options):
    """The choice of free GPUs; of equals the one that `pick` finds by number."""
    return freest(
        read("free", **options),
        inventory,
        allowed=places(inventory) if allowed is None else allowed,
        claimed=claimed or {},
        pick=lambda equals: pick(equals, key=lambda each: each.gpu.index),
    )


def refusal(inventory, **options):
    """The error of a choice that finds too few."""
    with pytest.raises(NotEnough) as caught:
        choose(inventory, **options)
    return caught.value


def numbers(choice):
    """The chosen GPUs by number, in order."""
    return [place.gpu.index for place in choice.places]


def said(choice):
    """What is said of each GPU, by number."""
    return {place.gpu.index: why for place, why in choice.whys.items()}
