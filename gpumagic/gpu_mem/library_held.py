"""What libraries take from the caching allocator for themselves."""

from __future__ import annotations

from gpumagic.devices.simulated import simulated_box


def workspace_bytes(kind: str, device: int) -> int:
    """The workspaces of cuBLAS on a device, as far as that can be told.

    On a simulated GPU it is known. torch has no word for it on CUDA: there they are a
    part of what no name was found for.
    """
    box = simulated_box() if kind == "sim" else None
    if box is None:
        return 0
    return sum(
        block.size
        for gpu in box.machine.gpus
        if gpu.index == device
        for block in gpu.workspaces.values()
        if block is not None
    )
