"""Looks up and sets the variables that CUDA reads; writes a choice as their values."""

from __future__ import annotations

import contextlib
import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpumagic.devices.visibility import BY_PCI_ADDRESS
from gpumagic.errors import GpuMagicError
from gpumagic.gpu_select.machine import numbers_are_safe, together
from gpumagic.gpu_select.report import Variable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpumagic.devices.protocols import Inventory
    from gpumagic.gpu_select.machine import Place

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
MPS = "CUDA_MPS_PIPE_DIRECTORY"  # where a daemon serves this process

_AT_START = Path("/proc/self/environ")
# Both hide every GPU, but some libraries take an empty value for one not set.
_NOTHING = "-1"


def look_up(name: str) -> Variable:
    """A variable's value everywhere where something may read it.

    The driver reads C's environment. Whatever is put into `os.environ` arrives
    there; what `os.putenv` or a library puts there does not arrive in `os.environ`.
    """
    c_known, c = _in_c(name)
    at_start_known, first = at_start(name)
    return Variable(
        name=name,
        python=os.environ.get(name),
        c=c,
        c_known=c_known,
        at_start=first,
        at_start_known=at_start_known,
    )


def at_start(name: str) -> tuple[bool, str | None]:
    """Whether it is known what the process was started with, and the value."""
    try:
        written = _AT_START.read_bytes()
    except OSError:
        return False, None
    entries = [each for each in written.split(b"\0") if each]
    # A process that has changed its own title has written it over this place.
    if not entries or any(b"=" not in each for each in entries):
        return False, None
    start = os.fsencode(name) + b"="
    values = (each[len(start) :] for each in entries if each.startswith(start))
    first = next(values, None)
    return True, None if first is None else os.fsdecode(first)


@contextlib.contextmanager
def changed(values: Mapping[str, str | None]) -> Iterator[None]:
    """Set (or with None remove) variables, for good unless the block raises."""
    before = [look_up(name) for name in values]
    try:
        for name, value in values.items():
            _put(name, value)
        yield
    except BaseException:
        for each in before:
            _put_back(each)
        raise


def _in_c(name: str) -> tuple[bool, str | None]:
    # PyDLL keeps hold of the interpreter's lock: no other thread of Python can
    # change the environment while C reads it.
    try:
        getenv = ctypes.PyDLL(None).getenv
    except (OSError, TypeError, AttributeError):  # not on Windows
        return False, None
    getenv.argtypes, getenv.restype = (ctypes.c_char_p,), ctypes.c_char_p
    value: bytes | None = getenv(os.fsencode(name))
    return True, None if value is None else os.fsdecode(value)


def _put(name: str, value: str | None) -> None:
    if value is not None:
        os.environ[name] = value
        return
    os.environ.pop(name, None)
    os.unsetenv(name)  # pop does not reach C where Python has no such variable


def _put_back(variable: Variable) -> None:
    _put(variable.name, variable.python)
    if not variable.c_known or variable.c == variable.python:
        return
    if variable.c is None:
        os.unsetenv(variable.name)
    else:
        os.putenv(variable.name, variable.c)


# ---------------------------------------------------------------- what a choice writes


@dataclass(frozen=True)
class Mask:
    """Values to set."""

    value: str  # for CUDA_VISIBLE_DEVICES; never empty
    order: str  # for CUDA_DEVICE_ORDER, without which numbers mean other GPUs
    why: str  # why it is not written as it would be by default; empty if it is


def mask_for(
    places: Sequence[Place], inventory: Inventory, *, form: str | None, mps: bool
) -> Mask:
    """The values that make exactly these places visible, in this order.

    Numbers are the default, for every library reads them; UUIDs are written where
    a number would not do.
    """
    if not places:
        return Mask(_NOTHING, BY_PCI_ADDRESS, "")
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


def _by_number(places: Sequence[Place], why: str = "") -> Mask:
    """Numbers are only written where CUDA's are NVML's."""
    value = ",".join(str(place.gpu.index) for place in places)
    return Mask(value, BY_PCI_ADDRESS, why)


def _by_uuid(places: Sequence[Place], why: str, against_numbers: str = "") -> Mask:
    nameless = [place for place in places if place.uuid is None]
    if nameless:
        raise GpuMagicError(
            f"a UUID is needed, and that of {together(nameless)} is not known",
            "choose another GPU" if against_numbers else "type --as index",
        )
    uuids = [place.uuid for place in places if place.uuid is not None]
    return Mask(",".join(uuids), BY_PCI_ADDRESS, why)


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
