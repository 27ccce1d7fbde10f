"""Reads what torch says when memory has run out. Pure; what it does not say is None."""

from __future__ import annotations

import re
from typing import Any

from gpumagic.gpu_mem.records.requests import OomFacts

# "KB" and "GB" are how some backends write what the others call KiB and GiB.
_UNITS = {
    "bytes": 1,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
    "kb": 1 << 10,
    "mb": 1 << 20,
    "gb": 1 << 30,
    "tb": 1 << 40,
}
_SIZE = r"([0-9]+(?:\.[0-9]+)?) (bytes|[KMGT]i?B)\b"
_OUT_OF_MEMORY = re.compile(
    r"out of memory|would exceed allowed memory|can't allocate memory|"
    r"not enough memory",
    re.IGNORECASE,
)
_BEYOND_ANY_DEVICE = "allocate more than 1EB memory"
_DEVICE = re.compile(r"\bGPU (\d+) has a total capacity|\bon device (\d+) would exceed")
_THIS_PROCESS = rf"this process has {_SIZE} memory in use"
_OTHER_PROCESS = re.compile(rf"\bProcess (\d+) has {_SIZE} memory in use")
_ALLOWED = re.compile(rf"{_SIZE} allowed; ")
# Each is looked for on its own: versions and backends differ in what they tell.
_FIELDS = {
    "requested_bytes": (
        rf"[Tt]ried to allocate {_SIZE}",
        rf"\bRequested\s*: {_SIZE}",
    ),
    "total_bytes": (
        rf"total capacity of {_SIZE}",
        rf"Device limit\s*: {_SIZE}",
    ),
    "free_bytes": (
        rf"of which {_SIZE} is free",
        rf"Free \(according to CUDA\)\s*: {_SIZE}",
    ),
    "process_bytes": (_THIS_PROCESS,),
    "allocated_bytes": (
        rf"allocated memory {_SIZE} is allocated by PyTorch",
        rf"Currently allocated\s*: {_SIZE}",
    ),
    "reserved_unallocated_bytes": (rf"{_SIZE} is reserved by PyTorch but unallocated",),
    "private_pools_bytes": (rf"{_SIZE} allocated in private pools",),
}


def read_oom(text: str) -> OomFacts:
    """What the text of an out-of-memory error tells; cell and line it never does.

    torch rounds most sizes to hundredths of their unit. What it says was requested
    is what the driver was asked for: "20.00 MiB" is a tensor of 1 to 10 MiB as well.
    What lies free in private pools it counts as allocated.

    Args:
        text: Of any error; one that is about something else leaves all unknown. Known
            are the errors for CUDA, ROCm and XPU, for cudaMallocAsync, for MPS and
            for memory of the host, from torch 2.4 on.
    """
    is_one = is_out_of_memory(text)
    sizes: dict[str, Any] = {
        field: _first_size(patterns, text) if is_one else None
        for field, patterns in _FIELDS.items()
    }
    if is_one and _BEYOND_ANY_DEVICE in text:
        sizes["requested_bytes"] = 1 << 60  # or more
    device = _DEVICE.search(text) if is_one else None
    return OomFacts(
        text=text,
        cell=None,
        line=None,
        device=None if device is None else int(device[1] or device[2]),
        **sizes,
    )


def is_out_of_memory(text: str) -> bool:
    """Whether the text of an error says that memory has run out."""
    return _OUT_OF_MEMORY.search(text) is not None


def allowed_bytes(text: str) -> int | None:
    """The limit of this process that the text names; None where it names none."""
    return _first_size((_ALLOWED.pattern,), text)


def others_in(text: str) -> tuple[tuple[int, int], ...]:
    """Other processes that the text names, as process number and bytes.

    In a container torch does not recognise its own process and lists it among the
    others: then nobody can be told from it, and none is returned.
    """
    if re.search(_THIS_PROCESS, text) is None:
        return ()
    found = _OTHER_PROCESS.finditer(text)
    return tuple((int(each[1]), _bytes(each[2], each[3])) for each in found)


def others_bytes(oom: OomFacts) -> int | None:
    """What other processes held, as far as the error tells it."""
    listed = others_in(oom.text)
    if listed:
        return sum(nbytes for _, nbytes in listed)
    total, free, process = oom.total_bytes, oom.free_bytes, oom.process_bytes
    if total is None or free is None or process is None:
        return None
    return max(total - free - process, 0)


def _first_size(patterns: tuple[str, ...], text: str) -> int | None:
    for pattern in patterns:
        found = re.search(pattern, text)
        if found is not None:
            return _bytes(found[1], found[2])
    return None


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * _UNITS[unit.lower()])
