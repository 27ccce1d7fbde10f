"""How GPUs are joined to the host: what NVML tells of the link, Linux of the node."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumagic.devices.nvml import load_pynvml
from gpumagic.devices.nvml_gpu import answers, pci_address, uuid
from gpumagic.devices.nvml_load import handle_of
from gpumagic.devices.protocols import GpuLink

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpumagic.devices.protocols import VisibleDevice

_PCI_DEVICES = Path("/sys/bus/pci/devices")
_UNKNOWN_NODE = -1  # what Linux writes on machines with one node


def read_links(shown: Iterable[VisibleDevice]) -> tuple[GpuLink, ...]:
    """The links of these GPUs now; one that cannot be asked is left out.

    Never raises, initialises no CUDA, and touches no other GPU.
    """
    try:
        nvml = load_pynvml()
        nvml.nvmlInit()
    except Exception:  # noqa: BLE001 -- the contract: never raises
        return ()
    try:
        return tuple(_links(nvml, shown))
    finally:
        with contextlib.suppress(Exception):
            nvml.nvmlShutdown()


def node_of(address: str, devices: Path = _PCI_DEVICES) -> int | None:
    """The memory node that a PCI device is attached to; None where Linux knows none.

    Args:
        address: As CUDA writes it, "0000:18:00.0".

        devices: The folder where Linux lists them.
    """
    try:
        node = int((devices / address.lower() / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return None if node == _UNKNOWN_NODE else node


def _links(nvml: Any, shown: Iterable[VisibleDevice]) -> Iterator[GpuLink]:
    for device in shown:
        handle = handle_of(nvml, device)
        link = None if handle is None else _link(nvml, handle)
        if link is not None:
            yield link


def _link(nvml: Any, gpu: Any) -> GpuLink | None:
    known = answers(_LINK, [], nvml, gpu)
    return GpuLink(**known) if "index" in known else None


def _index(nvml: Any, gpu: Any) -> int:
    return int(nvml.nvmlDeviceGetIndex(gpu))


def _generation(nvml: Any, gpu: Any) -> int:
    return int(nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu))


def _width(nvml: Any, gpu: Any) -> int:
    return int(nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu))


def _most_generation(nvml: Any, gpu: Any) -> int:
    return int(nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu))


def _most_width(nvml: Any, gpu: Any) -> int:
    return int(nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu))


def _numa_node(nvml: Any, gpu: Any) -> int | None:
    # NVML has a word for it as well, which tells of the GPU's own memory.
    return node_of(pci_address(nvml, gpu))


def _c2c(nvml: Any, gpu: Any) -> bool:
    return bool(nvml.nvmlDeviceGetC2cModeInfoV(gpu).isC2cEnabled)


_LINK = (
    ("index", _index),
    ("uuid", uuid),
    ("pci_address", pci_address),
    ("generation", _generation),
    ("width", _width),
    ("most_generation", _most_generation),
    ("most_width", _most_width),
    ("numa_node", _numa_node),
    ("c2c", _c2c),
)
