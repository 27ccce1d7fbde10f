"""What the simulated memory really lies in: this machine's RAM, which has an end."""

from __future__ import annotations

from gpumagic.errors import DeviceError
from gpumagic.host_memory import available_bytes
from gpumagic.units import bytes_text

WATCHED_BYTES = 1 << 26  # what is smaller is not looked at
_SPARE_BYTES = 512 << 20  # for the kernel, the notebook and the operation itself


class HostMemoryFull(DeviceError):
    """The RAM of this machine cannot hold what the simulated GPU could."""


def has_room(nbytes: int) -> bool:
    """Whether this machine's RAM has room for so much more."""
    free = available_bytes()
    return free is None or nbytes <= free - _SPARE_BYTES


def no_room(nbytes: int, label: str) -> HostMemoryFull:
    """What is said where it has not, but the simulated GPU has."""
    return HostMemoryFull(
        f"the {label} has room for {bytes_text(nbytes)} more, but its memory lies in "
        f"this machine's RAM, of which {bytes_text(available_bytes())} is left",
        'use smaller tensors; a smaller card, as in gpumagic.simulate("h100", '
        'memory="2GiB"), runs out of memory sooner than the machine',
    )
