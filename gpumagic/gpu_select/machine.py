"""The machine as a choice sees it: what can be chosen, by which names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.devices.visibility import usable

if TYPE_CHECKING:
    from gpumagic.devices.protocols import Gpu, Inventory
    from gpumagic.devices.visibility import Visible


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
