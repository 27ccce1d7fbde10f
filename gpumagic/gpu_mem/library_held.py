"""What libraries take from the caching allocator for themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.devices.simulated import simulated_box

if TYPE_CHECKING:
    from collections.abc import Iterator


def workspace_bytes(kind: str, device: int) -> int:
    """The workspaces of cuBLAS on a device, as far as that can be told.

    On a simulated GPU it is known. torch has no word for it on CUDA: there they are a
    part of what no name was found for.
    """
    return sum(block.size for at, block in _workspaces(kind) if at == device)


def workspace_addresses(kind: str) -> tuple[int, ...]:
    """Where the workspaces lie, as far as that can be told."""
    return tuple(block.address for _, block in _workspaces(kind))


def _workspaces(kind: str) -> Iterator[tuple[int, Any]]:
    """The blocks of the allocator that are workspaces, with their devices."""
    box = simulated_box() if kind == "sim" else None
    for gpu in () if box is None else box.machine.gpus:
        for block in gpu.workspaces.values():
            if block is not None:
                yield gpu.index, block
