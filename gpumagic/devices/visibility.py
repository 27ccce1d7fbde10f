"""Which GPUs a value of CUDA_VISIBLE_DEVICES makes visible, without asking CUDA.

The driver alone decides, once, inside `cuInit`. This is what it will decide: the
list is read up to the first entry that does not name exactly one GPU, and a GPU
named twice hides all of them. Where drivers are not known to agree, the likelier
reading is taken and called uncertain, with what makes it doubtful.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from gpumagic.report.record import Record
from gpumagic.report.units import count_text, shortened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumagic.devices.protocols import Gpu, Inventory

_BLANKS = " \t\n\v\f\r"
# As C's strtoul reads a number, in base ten or in the base that its digits show:
# it overlooks what follows them.
_DECIMAL = re.compile(rf"[{_BLANKS}]*([+-]?)([0-9]+)")
_OTHER_BASE = re.compile(rf"[{_BLANKS}]*([+-]?)(?:0[xX]([0-9a-fA-F]+)|(0[0-7]*))")
_SHOWN = 60  # letters of an entry that are quoted, so that any UUID is whole
_DIGITS = 20  # more of them only make a number that is too large still larger
_OLD_SLICE = "MIG-GPU-"  # MIG-GPU-<uuid>/<instance>/<instance>, before driver 470
_OTHERWISE = "drivers may read it otherwise"

BY_PCI_ADDRESS = "PCI_BUS_ID"


# A GPU that CUDA can use, with `index`, `uuid`, `mig` (its slices) and `mig_enabled`,
# as `Gpu` has them; a slice has a `uuid`.
Device: TypeAlias = Any


class Kind(enum.Enum):
    """What an entry is, told by how it begins."""

    GPU = "GPU-"
    SLICE = "MIG-"
    NUMBER = ""

    @classmethod
    def of(cls, text: str) -> Kind:
        """The kind that a driver takes a text for."""
        return next(kind for kind in cls if text.startswith(kind.value))


class Place(NamedTuple):
    """A GPU by its place in `devices`, or its slice by the place in `mig`."""

    gpu: int
    part: int | None = None

    @property
    def is_slice(self) -> bool:
        """Whether it is a part of a GPU."""
        return self.part is not None

    def uuid(self, devices: Sequence[Device]) -> str | None:
        """Its UUID, of a slice the slice's, where it is known."""
        device = devices[self.gpu]
        found: str | None = device.mig[self.part].uuid if self.is_slice else device.uuid
        return found


@dataclass(frozen=True)
class Entry:
    """One word of the list as it is read."""

    text: str
    place: Place | None = None  # None ends the list
    remark: str = ""  # why it ends it, or what is overlooked
    doubt: str = ""  # why a driver may read it otherwise

    def __str__(self) -> str:
        return repr(shortened(self.text, _SHOWN))


def _is_blank(text: str) -> bool:
    """Whether a driver finds nothing in it."""
    return not text.strip(_BLANKS)


def _read_entry(text: str, kind: Kind, devices: Sequence[Device]) -> Entry:
    """An entry in a list of this kind, which the first entry has fixed."""
    if Kind.of(text) is not kind:
        entry = Entry(text, remark="it is of another kind than the first")
    elif kind is Kind.NUMBER:
        entry = _read_number(text, len(devices))
    else:
        entry = _read_uuid(text, devices)
    if entry.place or entry.doubt:
        return entry
    return replace(entry, doubt=_doubt_of_nothing(text, kind, devices))


def _read_number(text: str, count: int) -> Entry:
    match = _DECIMAL.match(text)
    if not match:
        return Entry(text, remark="it is neither a number nor a UUID")
    sign, digits = match.groups()
    number = int(sign + (digits.lstrip("0")[:_DIGITS] or "0"))
    doubt = _doubt_of_number(text, sign, number, count)
    if number < 0:
        return Entry(text, None, "it is negative", doubt)
    if number >= count:
        return Entry(text, None, "there is no GPU of this number", doubt)
    alone = _is_blank(text[match.end() :])
    remark = "" if alone else "what follows the number is overlooked"
    return Entry(text, Place(number), remark, doubt)


def _doubt_of_number(text: str, sign: str, number: int, count: int) -> str:
    """Another base, a number cut to 32 bits, and "-0" may each mean another GPU."""
    others = {number}
    if match := _OTHER_BASE.match(text):
        own_sign, hexadecimal, octal = match.groups()
        others.add(int(own_sign + (hexadecimal or octal), 16 if hexadecimal else 8))
    others |= {other % 2**32 for other in others}
    here = range(count)
    differs = any(number in here or other in here for other in others - {number})
    negative_zero = sign == "-" and number == 0
    return "drivers may read another number" if differs or negative_zero else ""


def _read_uuid(text: str, devices: Sequence[Device]) -> Entry:
    """A beginning is enough for a GPU; a slice is known by its whole name only."""
    names = _names(text, devices)
    whole = Kind.of(text) is Kind.SLICE
    fitting = [
        place
        for place, name in names.items()
        if name and (name == text if whole else name.startswith(text))
    ]
    if len(fitting) > 1:
        return Entry(text, None, "more than one GPU fits it")
    doubt = ""
    if None in names.values() and text not in names.values():
        doubt = "a UUID of this machine is not known"
    elif fitting and text == Kind.GPU.value:
        doubt = "this may be too little to name the only GPU"
    if fitting:
        return Entry(text, fitting[0], doubt=doubt)
    return Entry(text, None, "no GPU or slice fits it", doubt)


def _names(text: str, devices: Sequence[Device]) -> dict[Place, str | None]:
    """All that is of the text's kind."""
    if Kind.of(text.upper()) is Kind.GPU:
        return {Place(gpu): device.uuid for gpu, device in enumerate(devices)}
    return {
        Place(gpu, place): part.uuid
        for gpu, device in enumerate(devices)
        for place, part in enumerate(device.mig)
    }


def _doubt_of_nothing(text: str, kind: Kind, devices: Sequence[Device]) -> str:
    """What some driver might allow, so that it finds something all the same."""
    bare = text.strip(_BLANKS)
    own = Kind.of(bare.upper())
    if own is Kind.NUMBER:
        number = _read_number(bare, len(devices))
        allowed = number.place or number.doubt
        return _OTHERWISE if allowed and kind is not own else ""
    if bare.upper().startswith(_OLD_SLICE):
        return _OTHERWISE
    names = _names(bare, devices)
    if None in names.values() and bare not in names.values():
        return "a UUID of this machine is not known"
    start = bare.lower()
    near = [each for each in names.values() if each and each.lower().startswith(start)]
    return _OTHERWISE if len(near) == 1 else ""


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
    """The GPUs that a process sees under a value of CUDA_VISIBLE_DEVICES."""
    notes = _Notes()
    named = _all_or_named(mask, devices, notes)
    by_number = mask is None or Kind.of(mask) is Kind.NUMBER
    if named and by_number and order != BY_PCI_ADDRESS and len(devices) > 1:
        notes.doubt("without CUDA_DEVICE_ORDER=PCI_BUS_ID the fastest may come first")
    seen = _limited(_with_slices(named, devices, notes), mig_limit, notes)
    return Visible(
        tuple(devices[place.gpu].index for place in seen),
        tuple(place.uuid(devices) for place in seen),
        notes.certain,
        tuple(notes.reasons),
    )


def seen_under(
    mask: str | None, order: str | None, inventory: Inventory, *, mps: bool = False
) -> Visible:
    """What a process sees under values of the two variables."""
    gpus = usable(inventory)
    names = {gpu.name for gpu in gpus}
    if len(names) == 1 and None not in names:
        order = BY_PCI_ADDRESS  # as all are equally fast
    seen = visible(mask, gpus, order=order)
    if mps and not (mask or "").startswith(("GPU-", "MIG-")):
        doubt = "an MPS daemon may number the GPUs in its own way"
        return replace(seen, certain=False, reasons=(*seen.reasons, doubt))
    return seen


def usable(inventory: Inventory) -> tuple[Gpu, ...]:
    """The GPUs that CUDA can use, by ascending PCI address, as it numbers them."""
    answering = [gpu for gpu in inventory.gpus if not gpu.problem]
    return tuple(sorted(answering, key=lambda gpu: gpu.pci_address or ""))


class _Notes:
    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.certain = True
        self.say = self.reasons.append

    def doubt(self, reason: str) -> None:
        self.certain = False
        self.say(reason)


def _all_or_named(
    mask: str | None, devices: Sequence[Device], notes: _Notes
) -> list[Place]:
    if not devices:
        notes.say("there is no GPU")
        return []
    if mask is None:
        return [Place(number) for number in range(len(devices))]
    if _is_blank(mask):
        notes.say("an empty value hides every GPU")
        return []
    kind = Kind.of(mask)
    return _named([_read_entry(text, kind, devices) for text in mask.split(",")], notes)


def _named(entries: Sequence[Entry], notes: _Notes) -> list[Place]:
    """What the entries name, up to the first that names nothing."""
    found = list[Place]()
    for entry in entries:
        if entry.doubt:
            notes.doubt(f"{entry}: {entry.doubt}")
        if not entry.place:
            notes.say(f"the list ends at {entry}: {entry.remark}")
            break
        if entry.remark:
            notes.say(f"{entry}: {entry.remark}")
        if entry.place in found:
            notes.say(f"{entry} names a GPU again, which hides every GPU")
            return []
        found.append(entry.place)
    return found


def _with_slices(
    named: Sequence[Place], devices: Sequence[Device], notes: _Notes
) -> list[Place]:
    """The same, with its first slice in the place of each GPU in MIG mode."""
    seen = []
    for place in named:
        device = devices[place.gpu]
        if not place.is_slice and device.mig:
            notes.say(f"GPU {device.index} is in MIG mode: its first slice is seen")
            seen.append(Place(place.gpu, 0))
        elif not place.is_slice and getattr(device, "mig_enabled", False):
            notes.say(f"GPU {device.index} is in MIG mode and has no slices")
        else:
            seen.append(place)
    return seen


def _limited(seen: list[Place], mig_limit: int, notes: _Notes) -> list[Place]:
    """The first slices alone, if there are slices."""
    slices = [place for place in seen if place.is_slice]
    if not slices:
        return seen
    if len(slices) < len(seen):
        notes.doubt("slices and whole GPUs together: what is seen then is not known")
    elif len(seen) > 1 or mig_limit > 1:
        limit = count_text(mig_limit, "MIG slice")
        notes.doubt(f"a process is taken to see {limit} at most: drivers differ in it")
    return slices[:mig_limit]
