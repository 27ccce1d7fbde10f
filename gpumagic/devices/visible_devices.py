"""What the CUDA driver shows a process in which it has been started."""

from __future__ import annotations

import ctypes

_TEXT_BYTES = 256
_UUID_BYTES = 16
_UUID_GROUPS = (8, 12, 16, 20)  # where the dashes of a UUID stand


def identities(library: ctypes.CDLL) -> list[dict[str, str | None]]:
    """Name, UUID and PCI address of each GPU that is shown, cuda:0 first."""
    count = ctypes.c_int(0)
    failed = library.cuDeviceGetCount(ctypes.byref(count))
    return [_identity(library, k) for k in range(0 if failed else count.value)]


def same_uuid(nvml_uuid: str | None, bare: str | None) -> bool:
    """Whether NVML's UUID of a GPU or slice is that of a `VisibleDevice`.

    An unknown UUID is the same as none. So is the name of a slice of before driver
    470, which is made of its GPU's UUID and has none of its own.

    >>> same_uuid("MIG-aaaa1111-2222-4333-8444-555566667777",
    ...           "AAAA1111-2222-4333-8444-555566667777")
    True
    """
    if not nvml_uuid or not bare:
        return False
    return nvml_uuid.partition("-")[2].lower() == bare.lower()


def _identity(library: ctypes.CDLL, ordinal: int) -> dict[str, str | None]:
    device = ctypes.c_int(0)
    if library.cuDeviceGet(ctypes.byref(device), ordinal):
        return {"name": None, "uuid": None, "pci_address": None}
    return {
        "name": _text(library, "cuDeviceGetName", device),
        # The first version would give a slice its GPU's UUID.
        "uuid": _uuid(library, "cuDeviceGetUuid_v2", device)
        or _uuid(library, "cuDeviceGetUuid", device),
        "pci_address": _pci_address(_text(library, "cuDeviceGetPCIBusId", device)),
    }


def _text(library: ctypes.CDLL, question: str, device: ctypes.c_int) -> str | None:
    answer = ctypes.create_string_buffer(_TEXT_BYTES)
    ask = getattr(library, question, None)
    if ask is None or ask(answer, _TEXT_BYTES, device):
        return None
    return answer.value.decode(errors="replace") or None


def _uuid(library: ctypes.CDLL, question: str, device: ctypes.c_int) -> str | None:
    answer = ctypes.create_string_buffer(_UUID_BYTES)
    ask = getattr(library, question, None)
    if ask is None or ask(answer, device):
        return None
    digits = answer.raw.hex()  # any of the bytes may be zero, so this is no text
    starts = (0, *_UUID_GROUPS)
    ends = (*_UUID_GROUPS, None)
    return "-".join(digits[start:end] for start, end in zip(starts, ends, strict=True))


def _pci_address(text: str | None) -> str | None:
    """As lspci writes it: the driver may use capitals, or a longer domain."""
    domain, _, rest = (text or "").partition(":")
    bus, _, place = rest.partition(":")
    try:
        return f"{int(domain, 16):04x}:{int(bus, 16):02x}:{place.lower()}"
    except ValueError:
        return None
