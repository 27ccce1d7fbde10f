"""What a batch consists of, and what pinning and workers take of the machine for it.

Each tensor and array is looked at: pinned or not, and why not. With everything handed
over, `prefetch_factor * workers` batches wait for their turn, one is in the user's
hands, and a prefetcher holds one ahead. Each of them takes pinned blocks of powers of
two, which are kept for reuse, and with workers the plain bytes in shared memory before
that.
"""

from __future__ import annotations

import enum
import math
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpumagic.devices.host import container_room, machine_room
from gpumagic.devices.storages import tensors_within, without_overrides
from gpumagic.pin_loader.batch import walk
from gpumagic.pin_loader.records import Anatomy, Leaf, Pinned, Remark, WhyPageable
from gpumagic.report.introspection import is_array
from gpumagic.report.units import bytes_text

if TYPE_CHECKING:
    from gpumagic.devices.protocols import Runtime
    from gpumagic.pin_loader.records import LoaderFacts

_WITHOUT_PINNING = ("cpu", "mps")
_WARN_SHARE, _REFUSE_SHARE = 0.2, 0.5  # of what there is
_GIB = 1 << 30


def passed_through_by(above: Sequence[Any]) -> str:
    """The class of a tensor's container that torch's pinner does not look into."""
    for each in above:
        # By the object, not by its class: so the pinner asks, and finds whatever a
        # `__getattr__` answers.
        if hasattr(each, "pin_memory"):
            return ""  # it pins itself
        if isinstance(each, str | bytes) or not isinstance(each, Mapping | Sequence):
            return type(each).__name__
    return ""


def anatomy_of(
    batch: Any, runtime: Runtime, facts: LoaderFacts, *, unpinned: bool = False
) -> Anatomy:
    """What a batch consists of, without changing or keeping anything of it.

    A leaf that the pinner would not reach says so whether `pin_memory` is on or not:
    to switch it on would not help. `unpinned`: the loader was kept from pinning.
    """
    import torch

    leaves: list[Leaf] = []
    locked_bytes = 0
    for path, value, _, above in walk(batch):
        if isinstance(value, torch.Tensor):
            with without_overrides(torch):
                # Rows of different length have no shape but their number.
                shape = (value.size(0),) if value.is_nested else value.shape
                dtype = str(value.dtype).removeprefix("torch.")
                about = tuple(map(int, shape)), dtype, _bytes_of(value)
                leaf = Leaf(path, *about, _where(value, runtime))
                if leaf.pinned is Pinned.PAGEABLE:
                    leaf = _with_reason(leaf, value, above, runtime, facts)
                if unpinned and leaf.why is WhyPageable.UNKNOWN:
                    leaf = replace(leaf, pinned=Pinned.UNKNOWN, why=None)
            if leaf.pinned is not Pinned.ON_DEVICE and leaf.nbytes:
                locked_bytes += 1 << (leaf.nbytes - 1).bit_length()
            leaves.append(leaf)
        elif is_array(value):
            about = tuple(value.shape), str(value.dtype), int(value.nbytes)
            why = WhyPageable.NOT_A_TENSOR
            leaves.append(Leaf(path, *about, Pinned.PAGEABLE, why))
    return Anatomy(tuple(leaves), locked_bytes)


def _where(tensor: Any, runtime: Runtime) -> Pinned:
    if tensor.device.type == "meta":  # fake tensors lie there as well
        return Pinned.UNKNOWN
    if tensor.device.type != "cpu":
        return Pinned.ON_DEVICE
    try:
        is_pinned = runtime.is_pinned(tensor)
    except (RuntimeError, NotImplementedError):  # a subclass without that word
        return Pinned.UNKNOWN
    return Pinned.PINNED if is_pinned else Pinned.PAGEABLE


def _with_reason(
    leaf: Leaf, tensor: Any, above: Sequence[Any], runtime: Runtime, facts: LoaderFacts
) -> Leaf:
    """Pageable for the reason that would be left if all others were taken away."""
    import torch

    if runtime.kind in _WITHOUT_PINNING:
        return replace(leaf, why=WhyPageable.NO_ACCELERATOR)
    if tensor.is_nested or tensor.layout is not torch.strided:
        return replace(leaf, why=WhyPageable.NOT_DENSE)
    if holder := passed_through_by(above):
        return replace(leaf, why=WhyPageable.PASSED_THROUGH, holder=holder)
    if facts.pin_memory:
        return replace(leaf, why=WhyPageable.UNKNOWN)
    return replace(leaf, why=WhyPageable.FLAG_OFF)


def _bytes_of(tensor: Any) -> int:
    parts = list(tensors_within(sys.modules["torch"], tensor))
    if not parts and tensor.is_nested:
        parts = list(tensor.unbind())
    if parts:
        return sum(map(_bytes_of, parts))
    return int(tensor.numel() * tensor.element_size())


class Memory(enum.Enum):
    """What can run out."""

    AVAILABLE = "memory of the machine"
    CGROUP = "memory of the container"
    SHM = "shared memory"


def look_at_room() -> dict[Memory, int]:
    """Read what is left now of each kind of memory that the system tells of."""
    rooms = {Memory.AVAILABLE: machine_room(), Memory.CGROUP: container_room()}
    left = {kind: room.nbytes for kind, room in rooms.items() if room}
    with suppress(OSError, AttributeError):  # Windows has no statvfs
        found = os.statvfs("/dev/shm")  # noqa: S108 -- it is only asked how full it is
        left[Memory.SHM] = int(found.f_bavail * found.f_frsize)
    return left


def needed_bytes(
    anatomy: Anatomy, workers: int, ahead: int, *, pinned: bool
) -> dict[Memory, int]:
    """What a loader takes; shared memory, by which its workers send, is RAM too."""
    batches = ahead * workers + 1 + pinned
    sent = sum(
        leaf.nbytes
        for leaf in anatomy.leaves
        if leaf.why is not WhyPageable.NOT_A_TENSOR
        and leaf.pinned is not Pinned.ON_DEVICE
    )
    shared = batches * sent * bool(workers)
    all_of_it = shared + batches * anatomy.locked_bytes * pinned
    return {
        Memory.AVAILABLE: all_of_it,
        Memory.CGROUP: all_of_it,
        Memory.SHM: shared,
    }


def limits_of(
    needed_of: dict[Memory, int], room: dict[Memory, int]
) -> list[tuple[Remark, bool]]:
    """What a loader would take of the machine, kind by kind; whether it is too much."""
    found = []
    for kind, left in room.items():
        needed, hint = needed_of[kind], ""
        if needed > _WARN_SHARE * left:
            hint = "take fewer workers, a smaller prefetch_factor, or smaller batches"
            if kind is Memory.SHM:
                larger = math.ceil(needed / _REFUSE_SHARE / _GIB)
                hint = (
                    f"start the container with --shm-size={larger}g (in Kubernetes: an "
                    f"emptyDir with medium Memory at /dev/shm), or {hint}"
                )
        if needed:
            text = (
                f"it would take {bytes_text(needed)} of the {kind.value}, and "
                f"{bytes_text(left)} are left"
            )
            found.append((Remark(text, hint), needed > _REFUSE_SHARE * left))
    return found
