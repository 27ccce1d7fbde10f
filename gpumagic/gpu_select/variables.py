"""Looks up and sets the variables that CUDA reads; writes a choice as their values."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING

from gpumagic.devices.visibility import BY_PCI_ADDRESS
from gpumagic.errors import GpuMagicError
from gpumagic.gpu_select.machine import numbers_are_safe, together
from gpumagic.gpu_select.report import Remark, Variable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpumagic.devices.protocols import Inventory
    from gpumagic.devices.visibility import Visible
    from gpumagic.drawing import NoteKind
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
    return Variable(name, os.environ.get(name), _in_c(name), at_start(name))


def at_start(name: str) -> str | None:
    """What the process was started with; None where it was not set, or is not known."""
    try:
        written = _AT_START.read_bytes()
    except OSError:
        return None
    entries = [each for each in written.split(b"\0") if each]
    # A process that has changed its own title has written it over this place.
    if any(b"=" not in each for each in entries):
        return None
    start = os.fsencode(name) + b"="
    values = (
        os.fsdecode(each[len(start) :]) for each in entries if each.startswith(start)
    )
    return next(values, None)


@contextlib.contextmanager
def changed(values: Mapping[str, str | None]) -> Iterator[None]:
    """Set (or with None remove) variables, for good unless the block raises."""
    before = [(name, os.environ.get(name), _in_c(name)) for name in values]
    try:
        for name, value in values.items():
            _put(name, value)
        yield
    except BaseException:
        for each in before:
            _put_back(*each)
        raise


def _in_c(name: str) -> str | None:
    # PyDLL keeps hold of the interpreter's lock: no other thread of Python can
    # change the environment while C reads it.
    try:
        getenv = ctypes.PyDLL(None).getenv
    except (OSError, TypeError, AttributeError):  # Windows has no such function
        return os.environ.get(name)
    getenv.argtypes, getenv.restype = (ctypes.c_char_p,), ctypes.c_char_p
    value: bytes | None = getenv(os.fsencode(name))
    return None if value is None else os.fsdecode(value)


def _put(name: str, value: str | None) -> None:
    if value is not None:
        os.environ[name] = value
        return
    os.environ.pop(name, None)
    os.unsetenv(name)  # pop does not reach C where Python has no such variable


def _put_back(name: str, python: str | None, c: str | None) -> None:
    _put(name, python)
    if c != python:
        os.unsetenv(name) if c is None else os.putenv(name, c)


# ---------------------------------------------------------------- what a choice writes


def mask_for(
    places: Sequence[Place], inventory: Inventory, *, mps: bool
) -> tuple[str, str]:
    """The value that makes exactly these places visible, and why it holds UUIDs.

    Numbers are the default, for every library reads them; UUIDs are written where
    a number would not do.
    """
    if not places:
        return _NOTHING, ""
    if any(place.is_slice for place in places):
        why = "the slices of a GPU have no numbers of their own"
    # The only GPU of a machine is 0 to everyone, whatever else is unknown of it.
    elif not numbers_are_safe(inventory) and len(inventory.gpus) > 1:
        why = "CUDA may number these GPUs otherwise than nvidia-smi does"
    elif mps:
        why = "an MPS daemon numbers GPUs by itself"
    else:
        return ",".join(str(place.gpu.index) for place in places), ""
    nameless = [place for place in places if not place.uuid]
    if nameless:
        raise GpuMagicError(
            f"a UUID is needed, and that of {together(nameless)} is not known",
            "choose another GPU",
        )
    uuids = ",".join(str(place.uuid) for place in places)
    return uuids, f"{VISIBLE} holds UUIDs: {why}"


# ---------------------------------------------------------------- what they are set to


def remarks(visible: Variable, order: Variable, seen: Visible) -> Iterator[Remark]:
    """What is wrong with the variables as they are set, or surprising."""
    for each in (visible, order):
        if each.python != each.c:
            yield Remark(
                "warning",
                f"{each.name} is {_shown(each.python)} to Python and {_shown(each.c)} "
                "to C, which is what CUDA reads: os.putenv or a library has changed "
                "it for C alone",
                "choose with %gpu_select, which sets both",
            )
    if order.c not in (None, BY_PCI_ADDRESS, "FASTEST_FIRST"):
        yield Remark(
            "warning",
            f"{ORDER} is {_shown(order.c)}, which CUDA does not know",
            f"choose with %gpu_select, which sets it to {BY_PCI_ADDRESS}",
        )
    value, given = visible.c, visible.at_start
    reasons = [each for each in seen.reasons if each != "there is no GPU"]
    useless = False
    if reasons and (value or "").strip() != _NOTHING:
        hidden: NoteKind = "warning" if seen.physical else "problem"
        step = "choose with %gpu_select, which writes what all drivers read alike"
        useless = given is not None and value == given and not seen.physical
        if useless:
            step = "type %gpu_select free --force: the kernel was started with that"
        yield Remark(
            "note" if value is None else hidden,
            f"{VISIBLE} is {_shown(value)}: {'; '.join(reasons)}",
            step,
        )
    if any(letter.isdigit() for letter in given or "") and not useless:
        job = os.environ.get("SLURM_JOB_ID")
        giver = f"by Slurm (job {job})" if job else "by whatever has started it"
        yield Remark(
            "note",
            f"this process was started with {VISIBLE}={given}, {giver}: that is what "
            "there is to choose from",
            "add --force to a choice to go beyond it",
        )


def _shown(value: str | None) -> str:
    return "not set" if value is None else repr(value[:80])
