"""Lists the GPUs and MIG slices to choose from, and finds the one a name means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.devices.visibility import usable
from gpumagic.errors import GpuMagicError
from gpumagic.report.units import listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpumagic.devices.protocols import Gpu, Inventory, MigSlice
    from gpumagic.devices.visibility import Visible

_LOOK = "type %gpu_select without a word to see what there is"


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
    def is_slice(self) -> bool:
        """Whether it is a part of a GPU."""
        return self.part is not None

    @property
    def device(self) -> Gpu | MigSlice:
        """What the driver tells of it: its own memory, and its own UUID."""
        return self.gpu if self.part is None else self.gpu.mig[self.part]

    @property
    def uuid(self) -> str | None:
        """Its own UUID: of a slice the slice's."""
        return self.device.uuid

    @property
    def processes(self) -> int | None:
        """How many compute on it, drawing apart; None where that is not listed."""
        found = getattr(self.device, "processes", None)
        return None if found is None else sum(x.kind == "compute" for x in found)

    @property
    def busy_share(self) -> float | None:
        """Its utilisation, which is told of whole GPUs only."""
        return getattr(self.device, "utilisation_share", None)

    @property
    def label(self) -> str:
        """What it is called in a sentence.

        >>> from gpumagic.devices.protocols import Gpu
        >>> Place(Gpu(2)).label
        'GPU 2'
        """
        number = f"GPU {self.gpu.index}"
        return f"slice {self.part} of {number}" if self.is_slice else number

    def is_within(self, others: Sequence[Place]) -> bool:
        """Whether it is one of these, or a slice of one."""
        return any(
            self.gpu.index == other.gpu.index and other.part in (None, self.part)
            for other in others
        )


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


def require_gpus(inventory: Inventory) -> None:
    """Raise where the machine has no GPU, with what the driver says of it."""
    if not inventory.gpus:
        raise GpuMagicError(
            inventory.problem or "this machine has no NVIDIA GPU",
            way_without(inventory),
        )


def way_without(inventory: Inventory) -> str:
    """What to do where there is no GPU."""
    hint = inventory.hint or "type %gpu_doctor to see what was looked for"
    return f"{hint}; to work without one, type %gpu_select --simulate h100"


def together(places: Iterable[Place]) -> str:
    """Places as words of a sentence.

    >>> from gpumagic.devices.protocols import Gpu
    >>> together([Place(Gpu(2))]), together([Place(Gpu(0)), Place(Gpu(1))])
    ('GPU 2', 'GPUs 0 and 1')
    """
    those = list(places)
    if len(those) > 1 and not any(place.is_slice for place in those):
        return f"GPUs {listed([str(place.gpu.index) for place in those])}"
    return listed([place.label for place in those]) or "no GPU"


# ---------------------------------------------------------------- what a name means


def resolve(name: str, inventory: Inventory) -> Place:
    """The one place that a name means: "2", "GPU-1a2b", "MIG-..."."""
    require_gpus(inventory)
    by_uuid = name.startswith(("GPU-", "MIG-"))
    found = _by_uuid(name, inventory) if by_uuid else _by_number(name, inventory)
    gpu = found.gpu
    if gpu.problem:
        raise GpuMagicError(
            f"GPU {gpu.index} is out of reach: {gpu.problem}", gpu.hint or _LOOK
        )
    if found.is_slice or not (gpu.mig or gpu.mig_enabled):
        return found
    if len(gpu.mig) == 1:
        return Place(gpu, 0)
    uuids = [part.uuid or "one without a UUID" for part in gpu.mig]
    ways = f"name one: type %gpu_select {listed(uuids, ' or ')}"
    raise GpuMagicError(
        f"GPU {gpu.index} is in MIG mode and has {len(gpu.mig) or 'no'} slices, of "
        "which a process sees one",
        ways if uuids else "choose another GPU, or make a slice first",
    )


def _by_number(name: str, inventory: Inventory) -> Place:
    for gpu in inventory.gpus:
        if str(gpu.index) == name:
            return Place(gpu)
    there = together(Place(gpu) for gpu in inventory.gpus)
    raise GpuMagicError(f"there is no GPU {name}: this machine has {there}", _LOOK)


def _by_uuid(name: str, inventory: Inventory) -> Place:
    """By the beginning; the case of letters does not count, nor do dashes."""
    begun = _bare(name)
    known = {
        place: _bare(place.uuid)
        for gpu in inventory.gpus
        for place in (Place(gpu), *(Place(gpu, part) for part in range(len(gpu.mig))))
        if place.uuid
    }
    found = [place for place, uuid in known.items() if uuid.startswith(begun)]
    whole = [place for place in found if known[place] == begun]
    if len(whole or found) == 1:
        return (whole or found)[0]
    if found:
        raise GpuMagicError(
            f"{name!r} is the beginning of more than one UUID: {together(found)}",
            f"type more of it: {listed([str(place.uuid) for place in found], ' or ')}",
        )
    raise GpuMagicError(f"no GPU or slice has a UUID that begins {name!r}", _LOOK)


def _bare(name: str) -> str:
    return name.lower().replace("-", "")
