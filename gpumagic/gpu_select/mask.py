"""How a choice is written as values of the two variables that CUDA reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.devices.visibility import BY_PCI_ADDRESS
from gpumagic.errors import GpuMagicError
from gpumagic.gpu_select.machine import numbers_are_safe
from gpumagic.gpu_select.naming import together

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumagic.devices.protocols import Inventory
    from gpumagic.gpu_select.machine import Place

# Both hide every GPU, but some libraries take an empty value for one not set.
_NOTHING = "-1"


@dataclass(frozen=True)
class Written:
    """Values to set.

    Attributes:
        value: For CUDA_VISIBLE_DEVICES; never empty.

        order: For CUDA_DEVICE_ORDER, without which numbers mean other GPUs.

        why: Why it is not written as it would be by default; empty if it is.
    """

    value: str
    order: str
    why: str


def written(
    places: Sequence[Place], inventory: Inventory, *, form: str | None, mps: bool
) -> Written:
    """The values that make exactly these places visible, in this order.

    Numbers are the default, for every library reads them; UUIDs are written where
    a number would not do.

    Args:
        places: What is to become cuda:0, cuda:1 and so on: whole GPUs or one slice.

        inventory: The machine.

        form: "index" or "uuid" to have it so; None lets the machine decide.

        mps: Whether an MPS daemon serves this process: it numbers GPUs by itself.

    Raises:
        GpuMagicError: The form cannot express these places.
    """
    if not places:
        return Written(_NOTHING, BY_PCI_ADDRESS, "")
    against = _against_numbers(places, inventory)
    if form == "index":
        if against:
            raise GpuMagicError(
                f"numbers cannot be written: {against}", "type --as uuid"
            )
        served = "numbers, as asked for, although an MPS daemon may give its own"
        return _by_number(places, served if mps else "")
    if form == "uuid":
        return _by_uuid(places, "UUIDs, as asked for", against)
    if form is not None:
        raise GpuMagicError(
            f"{form!r} is no form of a mask", "type --as index or --as uuid"
        )
    if against:
        return _by_uuid(places, f"UUIDs, because {against}", against)
    if mps:
        return _by_uuid(places, "UUIDs, because an MPS daemon numbers GPUs by itself")
    return _by_number(places)


def _by_number(places: Sequence[Place], why: str = "") -> Written:
    """Numbers are only written where CUDA's are NVML's."""
    value = ",".join(str(place.gpu.index) for place in places)
    return Written(value, BY_PCI_ADDRESS, why)


def _by_uuid(places: Sequence[Place], why: str, against_numbers: str = "") -> Written:
    nameless = [place for place in places if place.uuid is None]
    if nameless:
        raise GpuMagicError(
            f"a UUID is needed, and that of {together(nameless)} is not known",
            "choose another GPU" if against_numbers else "type --as index",
        )
    uuids = [place.uuid for place in places if place.uuid is not None]
    return Written(",".join(uuids), BY_PCI_ADDRESS, why)


def _against_numbers(places: Sequence[Place], inventory: Inventory) -> str:
    """Why a number would not mean these places, if it would not."""
    if any(place.part is not None for place in places):
        return "the slices of a GPU have no numbers of their own"
    # The only GPU of a machine is 0 to everyone, whatever else is unknown of it.
    if numbers_are_safe(inventory) or len(inventory.gpus) == 1:
        return ""
    hidden = [gpu for gpu in inventory.gpus if gpu.problem is not None]
    if hidden:
        numbers = ", ".join(str(gpu.index) for gpu in hidden)
        return f"CUDA may not count GPU {numbers}, which is out of reach"
    if not all(gpu.pci_address for gpu in inventory.gpus):
        return "a PCI address is not known, by which CUDA numbers GPUs"
    return "CUDA numbers these GPUs otherwise than nvidia-smi does"
