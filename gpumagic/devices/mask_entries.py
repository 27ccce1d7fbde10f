"""One entry of CUDA_VISIBLE_DEVICES, read as the driver reads it.

Where drivers are not known to agree, the likelier reading is taken, and what makes it
doubtful goes with it.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

_BLANKS = " \t\n\v\f\r"
# As C's strtoul reads a number, in base ten or in the base that its digits show:
# it overlooks what follows them.
_DECIMAL = re.compile(rf"[{_BLANKS}]*([+-]?)([0-9]+)")
_OTHER_BASE = re.compile(rf"[{_BLANKS}]*([+-]?)(?:0[xX]([0-9a-fA-F]+)|(0[0-7]*))")
_SHOWN = 60  # letters of an entry that are quoted, so that any UUID is whole
_DIGITS = 20  # more of them only make a number that is too large still larger
_OLD_SLICE = "MIG-GPU-"  # MIG-GPU-<uuid>/<instance>/<instance>, before driver 470
_INSTANCES = ("gpu", "compute")
_MIXED = "drivers may allow numbers and UUIDs in one list"


class Slice(Protocol):
    """A part of a GPU in MIG mode.

    With `gpu_instance` and `compute_instance` its old name is understood as well.
    """

    @property
    def uuid(self) -> str | None:
        """As `nvidia-smi -L` prints it."""


class Device(Protocol):
    """A GPU that CUDA can use.

    With `mig_enabled` one in MIG mode is recognised that has no slices yet.
    """

    @property
    def index(self) -> int:
        """The number by which the caller knows it."""

    @property
    def uuid(self) -> str | None:
        """As `nvidia-smi -L` prints it."""

    @property
    def mig(self) -> Sequence[Slice]:
        """Its slices; empty when MIG is off."""


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


def uuid_of(place: Place, devices: Sequence[Device]) -> str | None:
    """The UUID of a GPU or slice, where it is known."""
    device = devices[place.gpu]
    return device.uuid if place.part is None else device.mig[place.part].uuid


@dataclass(frozen=True)
class Entry:
    """One word of the list as it is read."""

    text: str
    place: Place | None = None  # None ends the list
    remark: str = ""  # why it ends it, or what is overlooked
    name: str | int | None = None  # what it asks for in vain, if for anything
    doubt: str = ""  # why a driver may read it otherwise

    def __str__(self) -> str:
        shown = self.text[:_SHOWN] + "..." if len(self.text) > _SHOWN else self.text
        return repr(shown)


def is_blank(text: str) -> bool:
    """Whether a driver finds nothing in it."""
    return not text.strip(_BLANKS)


def read_entry(text: str, kind: Kind, devices: Sequence[Device]) -> Entry:
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
    if match is None:
        empty = is_blank(text)
        why = "it is empty" if empty else "it is neither a number nor a UUID"
        return Entry(text, remark=why)
    sign, digits = match.groups()
    number = int(sign + (digits.lstrip("0")[:_DIGITS] or "0"))
    doubt = _doubt_of_number(text, sign, number, count)
    if number < 0:
        return Entry(text, None, "it is negative", None, doubt)
    if number >= count:
        return Entry(text, None, "there is no GPU of this number", number, doubt)
    alone = is_blank(text[match.end() :])
    remark = "" if alone else "what follows the number is overlooked"
    return Entry(text, Place(number), remark, number, doubt)


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
    place = fitting[0] if len(fitting) == 1 else None
    doubt = ""
    if len(fitting) < 2 and _may_fit_unknown(text, names):
        doubt = "a UUID of this machine is not known"
    elif place and text == Kind.GPU.value:
        doubt = "this may be too little to name the only GPU"
    elif place and whole and text != uuid_of(place, devices):
        doubt = "newer drivers may not know a slice by its old name"
    if place:
        return Entry(text, place, name=text, doubt=doubt)
    remark = "more than one GPU fits it" if fitting else "no GPU or slice fits it"
    return Entry(text, None, remark, text, doubt)


def _names(text: str, devices: Sequence[Device]) -> dict[Place, str | None]:
    """All that is of the text's kind, each by the sort of name that the text is."""
    if Kind.of(text.upper()) is Kind.GPU:
        return {Place(gpu): device.uuid for gpu, device in enumerate(devices)}
    old = text.upper().startswith(_OLD_SLICE)
    return {
        Place(gpu, place): _old_name(device, part) if old else part.uuid
        for gpu, device in enumerate(devices)
        for place, part in enumerate(device.mig)
    }


def _old_name(device: Device, part: Slice) -> str | None:
    if part.uuid and part.uuid.startswith(_OLD_SLICE):
        return part.uuid
    instances = [getattr(part, f"{word}_instance", None) for word in _INSTANCES]
    if device.uuid is None or None in instances:
        return None
    return "/".join([f"MIG-{device.uuid}", *map(str, instances)])


def _may_fit_unknown(text: str, names: dict[Place, str | None]) -> bool:
    known = names.values()
    return None in known and text not in known


def _doubt_of_nothing(text: str, kind: Kind, devices: Sequence[Device]) -> str:
    """What some driver might allow, so that it finds something all the same."""
    bare = text.strip(_BLANKS)
    own = Kind.of(bare.upper())
    if own is Kind.NUMBER:
        number = _read_number(bare, len(devices))
        allowed = number.place or number.doubt
        return _MIXED if allowed and kind is not own else ""
    names = _names(bare, devices)
    if _may_fit_unknown(bare, names):
        return "a UUID of this machine is not known"
    near = [name for name in names.values() if name and _begins(name, bare)]
    if len(near) != 1:
        return ""
    if bare != text:
        return "drivers may overlook the blanks"
    if not near[0].startswith(bare):
        return "drivers may take capital for small letters"
    return (
        _MIXED if Kind.of(bare) is not kind else "drivers may take a part of the name"
    )


def _begins(name: str, start: str) -> bool:
    return name.lower().startswith(start.lower())
