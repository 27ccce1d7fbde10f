"""Lists the GPUs and MIG slices to choose from, and finds the one a name means."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.devices.visibility import usable
from gpumagic.errors import GpuMagicError
from gpumagic.report.units import listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpumagic.devices.protocols import Gpu, Inventory
    from gpumagic.devices.visibility import Visible

_SHORT_UUID = len("GPU-12345678")
_SLICE = "MIG-"
_PCI = "pci:"
_SIMULATE = "to work without one, type %gpu_select --simulate h100"
# A bus alone, or [domain:]bus:device[.function]; every part is hexadecimal.
_ADDRESS = re.compile(
    r"(?:(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-7]))?"
    r"|([0-9a-f]{1,2}))",
    re.IGNORECASE,
)


@dataclass(frozen=True, eq=False)
class Place:
    """What a request can mean: a whole GPU, or a slice of one in MIG mode.

    It stays the same from one look at the machine to the next, figures apart.
    """

    gpu: Gpu
    part: int | None = None  # the slice's place in `gpu.mig`

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[int, int | None]:
        return self.gpu.index, self.part

    @property
    def uuid(self) -> str | None:
        """Its own UUID: of a slice the slice's."""
        return self.gpu.uuid if self.part is None else self.gpu.mig[self.part].uuid

    @property
    def label(self) -> str:
        """What it is called in a sentence.

        >>> from gpumagic.devices.protocols import Gpu
        >>> Place(Gpu(2)).label
        'GPU 2'
        """
        number = f"GPU {self.gpu.index}"
        return number if self.part is None else f"slice {self.part} of {number}"


def places(inventory: Inventory) -> tuple[Place, ...]:
    """All that can be chosen, by number: slices where MIG is on, whole GPUs else."""
    found = []
    for gpu in sorted(usable(inventory), key=lambda gpu: gpu.index):
        if gpu.mig:
            found += [Place(gpu, part) for part in range(len(gpu.mig))]
        elif not gpu.mig_enabled:
            found.append(Place(gpu))
    return tuple(found)


def numbers_are_safe(inventory: Inventory) -> bool:
    """Whether a number means the same GPU to nvidia-smi and to CUDA.

    It does where CUDA lists every GPU and both go by PCI address.
    """
    by_address = [gpu.index for gpu in usable(inventory)]
    known = all(gpu.pci_address for gpu in inventory.gpus)
    return known and by_address == list(range(len(inventory.gpus)))


def rank_of(place: Place, seen: Visible) -> int | None:
    """The k with which a place is cuda:k, if it is seen."""
    for k, (physical, uuid) in enumerate(zip(seen.physical, seen.uuids, strict=True)):
        if physical == place.gpu.index and uuid == place.uuid:
            return k
    return None


# ---------------------------------------------------------------- what a name means


def resolve(name: str, inventory: Inventory) -> Place:
    """The one place that a name means."""
    found = find(name, inventory)
    gpu = found.gpu
    if gpu.problem is not None:
        raise GpuMagicError(
            f"GPU {gpu.index} is out of reach: {gpu.problem}", gpu.hint or ""
        )
    if found.part is not None or not (gpu.mig or gpu.mig_enabled):
        return found
    if len(gpu.mig) != 1:
        raise _no_single_slice(gpu)
    return Place(gpu, 0)


def find(name: str, inventory: Inventory) -> Place:
    """What a name points at: a slice, or any GPU, also one that cannot be used."""
    require_gpus(inventory)
    if name.lower().startswith(_PCI):
        return _by_address(name, inventory)
    if name.upper().startswith(_SLICE):
        return _by_beginning(name, list(_slice_names(inventory)), inventory)
    if name.upper().startswith("GPU-"):
        return _by_beginning(name, list(_gpu_names(inventory)), inventory)
    return _by_number(name, inventory)


def require_gpus(inventory: Inventory) -> None:
    """Raise where the machine has no GPU, with what the driver says of it."""
    if not inventory.gpus:
        hint = inventory.hint or "type %gpu_doctor to see what was looked for"
        raise GpuMagicError(
            inventory.problem or "this machine has no NVIDIA GPU",
            f"{_SIMULATE}; {hint}" if inventory.absent else hint,
        )


def together(places: Iterable[Place]) -> str:
    """Places as words of a sentence.

    >>> from gpumagic.devices.protocols import Gpu
    >>> together([Place(Gpu(2))]), together([Place(Gpu(0)), Place(Gpu(1))])
    ('GPU 2', 'GPUs 0 and 1')
    """
    those = list(places)
    if len(those) > 1 and all(place.part is None for place in those):
        return f"GPUs {listed([str(place.gpu.index) for place in those])}"
    return listed([place.label for place in those]) or "no GPU"


# ---------------------------------------------------------------- numbers


def _by_number(name: str, inventory: Inventory) -> Place:
    for gpu in inventory.gpus:
        if str(gpu.index) == name:
            return Place(gpu)
    there = together(Place(gpu) for gpu in inventory.gpus)
    has = "one GPU" if len(inventory.gpus) == 1 else f"{len(inventory.gpus)} GPUs"
    raise GpuMagicError(
        f"there is no GPU {name}: this machine has {has}, {there}",
        "type %gpu_select without a word to see them",
    )


# ---------------------------------------------------------------- UUIDs


class _Named(NamedTuple):
    name: str | None
    place: Place


def _gpu_names(inventory: Inventory) -> Iterator[_Named]:
    for gpu in inventory.gpus:
        yield _Named(gpu.uuid, Place(gpu))


def _slice_names(inventory: Inventory) -> Iterator[_Named]:
    """The slices by their UUIDs, and by what they were called before driver 470."""
    for gpu in inventory.gpus:
        for number, part in enumerate(gpu.mig):
            place = Place(gpu, number)
            yield _Named(part.uuid, place)
            instances = (part.gpu_instance, part.compute_instance)
            if gpu.uuid is not None and None not in instances:
                old = "/".join([gpu.uuid, *map(str, instances)])
                yield _Named(_SLICE + old, place)


def _by_beginning(name: str, names: list[_Named], inventory: Inventory) -> Place:
    known = {_bare(each.name): each.place for each in names if each.name is not None}
    if (whole := known.get(_bare(name))) is not None:
        return whole
    begins = (place for full, place in known.items() if full.startswith(_bare(name)))
    found = list(dict.fromkeys(begins))
    if len(found) > 1:
        fitting = listed([place.uuid or place.label for place in found], " or ")
        raise GpuMagicError(
            f"{name!r} is the beginning of more than one UUID: {together(found)}",
            f"type more of it: {fitting}",
        )
    if not found:
        raise _no_such_uuid(name, names, inventory)
    return found[0]


def _bare(name: str) -> str:
    """What counts of a UUID: the case of letters does not, nor do dashes."""
    return name.lower().replace("-", "")


def _no_such_uuid(
    name: str, names: list[_Named], inventory: Inventory
) -> GpuMagicError:
    what = "slice" if name.upper().startswith(_SLICE) else "GPU"
    nameless = [each.place for each in names if each.place.uuid is None]
    unknown = f"; the UUID of {together(nameless)} is not known" if nameless else ""
    here = list(dict.fromkeys(each.place for each in names))
    numbers = {str(gpu.index) for gpu in inventory.gpus}
    if what == "GPU" and (number := name[len("GPU-") :]) in numbers:
        hint = f"for GPU {number} type %gpu_select {number}"
    elif not here:
        hint = "type %gpu_select without a word to see what there is"
    else:
        hint = f"there is {listed([_introduced(place) for place in here])}"
    return GpuMagicError(f"no {what} has a UUID that begins {name!r}{unknown}", hint)


def _introduced(place: Place) -> str:
    uuid = place.uuid or "UUID unknown"
    return f"{place.label} ({uuid if place.part is not None else uuid[:_SHORT_UUID]})"


# ---------------------------------------------------------------- PCI addresses


def _by_address(name: str, inventory: Inventory) -> Place:
    wanted = _address(name[len(_PCI) :])
    if wanted is None:
        raise GpuMagicError(
            f"{name!r} is not a PCI address",
            "write it as nvidia-smi does: pci:3b:00.0, or pci:0000:3b:00.0",
        )
    found = [gpu for gpu in inventory.gpus if _fits(wanted, gpu)]
    if len(found) == 1:
        return Place(found[0])
    there = [
        f"GPU {gpu.index} at {gpu.pci_address or 'an unknown address'}"
        for gpu in found or inventory.gpus
    ]
    many = "more than one GPU is" if found else "no GPU is"
    raise GpuMagicError(f"{many} at {name}", f"there is {listed(there)}")


def _address(text: str) -> tuple[int | None, ...] | None:
    """Domain, bus, device and function; None for each that is not said."""
    match = _ADDRESS.fullmatch(text)
    if match is None:
        return None
    domain, bus, device, function, alone = match.groups()
    parts = (domain, bus or alone, device, function)
    return tuple(None if part is None else int(part, 16) for part in parts)


def _fits(wanted: tuple[int | None, ...], gpu: Gpu) -> bool:
    address = _address(gpu.pci_address or "")
    return address is not None and all(
        want is None or want == have for want, have in zip(wanted, address, strict=True)
    )


# ---------------------------------------------------------------- GPUs in MIG mode


def _no_single_slice(gpu: Gpu) -> GpuMagicError:
    where = f"GPU {gpu.index} is in MIG mode and has"
    if not gpu.mig:
        return GpuMagicError(
            f"{where} no slices", "choose another GPU, or make a slice first"
        )
    uuids = [part.uuid or "one whose UUID is not known" for part in gpu.mig]
    return GpuMagicError(
        f"{where} {len(gpu.mig)} slices, of which a process sees one",
        f"name one: type %gpu_select {listed(uuids, 'or')}",
    )
