"""Which GPUs a value of CUDA_VISIBLE_DEVICES makes visible, without asking CUDA.

The driver alone decides, once, inside `cuInit`. This is what it will decide: the
list is read up to the first entry that does not name exactly one GPU, and a GPU
named twice hides all of them. Where drivers are not known to agree, the likelier
answer is given and called uncertain.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpumagic.devices.mask_entries import Kind, Place, is_blank, read_entry, uuid_of
from gpumagic.record import Record
from gpumagic.units import count_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumagic.devices.mask_entries import Device, Entry
    from gpumagic.devices.protocols import Gpu, Inventory

BY_PCI_ADDRESS = "PCI_BUS_ID"


@dataclass(frozen=True)
class Visible(Record):
    """What a process sees: cuda:k is the k-th of `physical` and of `uuids`."""

    physical: tuple[int, ...]  # the `index` of each
    uuids: tuple[str | None, ...]  # the slice's own, where a slice is seen
    certain: bool  # False where drivers may differ from this
    reasons: tuple[str, ...]  # why it differs from what was written, or is uncertain


def visible(
    mask: str | None,
    devices: Sequence[Device],
    *,
    order: str | None = BY_PCI_ADDRESS,
    mig_limit: int = 1,
) -> Visible:
    """The GPUs that a process sees under a value of CUDA_VISIBLE_DEVICES.

    Args:
        mask: The value; None if the variable is not set.

        devices: The machine's GPUs by ascending PCI address, without those that
            this user may not open: CUDA does not count them.

        order: The value of CUDA_DEVICE_ORDER, None if it is not set. Anything but
            PCI_BUS_ID lets CUDA put the fastest GPU first, which makes numbers
            uncertain. Where all GPUs are alike it makes no difference: leave it out.

        mig_limit: How many MIG slices the driver lets one process see.
    """
    notes = _Notes()
    named = _all_or_named(mask, devices, notes)
    by_number = mask is None or Kind.of(mask) is Kind.NUMBER
    if named and by_number and order != BY_PCI_ADDRESS and len(devices) > 1:
        notes.doubt("without CUDA_DEVICE_ORDER=PCI_BUS_ID the fastest may come first")
    seen = _limited(_with_slices(named, devices, notes), mig_limit, notes)
    return Visible(
        tuple(devices[place.gpu].index for place in seen),
        tuple(uuid_of(place, devices) for place in seen),
        notes.certain,
        tuple(notes.reasons),
    )


def seen_under(
    mask: str | None, order: str | None, inventory: Inventory, *, mps: bool = False
) -> Visible:
    """What a process sees under values of the two variables.

    The order makes no difference where all GPUs are of one model. An MPS daemon
    numbers the GPUs that it serves in its own way.

    Args:
        mask: Of CUDA_VISIBLE_DEVICES; None if it is not set.

        order: Of CUDA_DEVICE_ORDER; None if it is not set.

        inventory: The machine.

        mps: Whether such a daemon is in between.
    """
    gpus = usable(inventory)
    alike = len({gpu.name for gpu in gpus}) == 1 and gpus[0].name is not None
    seen = visible(mask, gpus, order=BY_PCI_ADDRESS if alike else order)
    if mps and not (mask or "").startswith(("GPU-", "MIG-")):
        doubt = "an MPS daemon may number the GPUs in its own way"
        return replace(seen, certain=False, reasons=(*seen.reasons, doubt))
    return seen


def usable(inventory: Inventory) -> tuple[Gpu, ...]:
    """The GPUs that CUDA can use, by ascending PCI address, as it numbers them."""
    answering = [gpu for gpu in inventory.gpus if gpu.problem is None]
    return tuple(sorted(answering, key=lambda gpu: gpu.pci_address or ""))


@dataclass
class _Notes:
    reasons: list[str] = field(default_factory=list)
    certain: bool = True

    def say(self, reason: str) -> None:
        self.reasons.append(reason)

    def doubt(self, reason: str) -> None:
        self.certain = False
        self.reasons.append(reason)


def _all_or_named(
    mask: str | None, devices: Sequence[Device], notes: _Notes
) -> list[Place]:
    if not devices:
        notes.say("there is no GPU")
        return []
    if mask is None:
        return [Place(number) for number in range(len(devices))]
    if is_blank(mask):
        notes.say("an empty value hides every GPU")
        return []
    kind = Kind.of(mask)
    return _named([read_entry(text, kind, devices) for text in mask.split(",")], notes)


def _named(entries: Sequence[Entry], notes: _Notes) -> list[Place]:
    """What the entries name, up to the first that names nothing."""
    found = list[Place]()
    for entry in entries:
        if entry.doubt:
            notes.doubt(f"{entry}: {entry.doubt}")
        if entry.place is None:
            notes.say(f"the list ends at {entry}: {entry.remark}")
            break
        if entry.remark:
            notes.say(f"{entry}: {entry.remark}")
        if entry.place in found:
            notes.say(f"{entry} names a GPU again, which hides every GPU")
            return []
        found.append(entry.place)
    # Some readers of the list look for repetitions before they look for its end.
    if found and _repeats(entries):
        notes.doubt("a repetition behind the end of the list may hide every GPU")
    return found


def _repeats(entries: Sequence[Entry]) -> bool:
    names = [entry.place or entry.name for entry in entries]
    readable = names[: names.index(None)] if None in names else names
    return len(set(readable)) < len(readable)


def _with_slices(
    named: Sequence[Place], devices: Sequence[Device], notes: _Notes
) -> list[Place]:
    """The same, with its first slice in the place of each GPU in MIG mode."""
    seen = []
    for place in named:
        device = devices[place.gpu]
        if place.part is None and device.mig:
            notes.say(f"GPU {device.index} is in MIG mode: its first slice is seen")
            seen.append(Place(place.gpu, 0))
        elif place.part is None and getattr(device, "mig_enabled", None):
            notes.say(f"GPU {device.index} is in MIG mode and has no slices")
        else:
            seen.append(place)
    return seen


def _limited(seen: list[Place], mig_limit: int, notes: _Notes) -> list[Place]:
    """The first slices alone, if there are slices."""
    slices = [place for place in seen if place.part is not None]
    if not slices:
        return seen
    if len(slices) < len(seen):
        notes.doubt("slices and whole GPUs together: what is seen then is not known")
    elif len(seen) > 1 or mig_limit > 1:
        limit = count_text(mig_limit, "MIG slice")
        notes.doubt(f"a process is taken to see {limit} at most: drivers differ in it")
    return slices[:mig_limit]
