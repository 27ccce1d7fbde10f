"""Tells which memory is cuBLAS's own: no name leads to it, and it stays.

Each thread keeps a workspace for each stream on which it has made a product; a backward
pass has a thread of its own. Of a simulated GPU they are known. On CUDA torch tells
their size alone, so that a nameless block of just that size is one, probably; the stack
of a block, where the user's memory history has it whole, makes it certain.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.simulated import simulated_box
from gpumagic.devices.torch_private import cublas_workspace_bytes, loaded_torch
from gpumagic.report.units import bytes_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    Snapshot = Sequence[Mapping[str, Any]]

WORKSPACES = "cuBLAS workspaces"
PROBABLY_WORKSPACES = f"{WORKSPACES} (probably)"
_IN_USE = "active_allocated"
_TAKES_ONE = re.compile("WorkspaceForHandle|CUDABlasHandle|CUDABlasLtWorkspace")
_MOST_OF_A_STREAM = 2  # the notebook's thread and that of its backward passes
_LARGEST_BYTES = 32 << 20  # on a GPU of 2022 and later
_MOST = 4  # cuBLAS and cuBLASLt may have one each, forward and backward


class Workspace(NamedTuple):
    """A block that cuBLAS keeps, by its name among the holders."""

    device: int
    address: int
    nbytes: int
    name: str = WORKSPACES


def workspaces(
    kind: str,
    named: Collection[tuple[int, int]],
    nameless_bytes: int | None,
    tell_blocks: Callable[[], Snapshot | None],
) -> tuple[Workspace, ...]:
    """The workspaces on all devices of a kind, as far as that can be told."""
    box = simulated_box() if kind == "sim" else None
    if box is not None:
        return tuple(
            Workspace(gpu.index, block.address, block.size)
            for gpu in box.machine.gpus
            for block in gpu.workspaces.values()
            if block is not None
        )
    size = cublas_workspace_bytes(loaded_torch()) if kind == "cuda" else None
    if not size or (nameless_bytes is not None and nameless_bytes < size):
        return ()
    return tuple(_in_blocks(tell_blocks() or (), named, size))


def _in_blocks(
    snapshot: Snapshot, named: Collection[tuple[int, int]], size: int
) -> Iterator[Workspace]:
    ordered = sorted(named)
    guessed = Counter[tuple[int, int]]()
    for segment in snapshot:
        device, end = segment["device"], segment["address"]
        of_stream = device, segment.get("stream", 0)
        for block in segment["blocks"]:
            start, end = end, end + block["size"]
            first, behind = (bisect_left(ordered, (device, at)) for at in (start, end))
            if block["state"] != _IN_USE or first < behind:  # a name leads there
                continue
            found = Workspace(device, start, block["size"])
            if any(_TAKES_ONE.search(each["name"]) for each in block.get("frames", ())):
                yield found
            elif block.get("requested_size") == size:
                guessed[of_stream] += 1
                if guessed[of_stream] <= _MOST_OF_A_STREAM:
                    yield found._replace(name=PROBABLY_WORKSPACES)


def workspace_remark(word: str, rest_bytes: int, *, are_found: bool) -> str | None:
    """What workspaces are and how they go; also where there may be some."""
    may_be = 0 < rest_bytes <= _MOST * _LARGEST_BYTES
    if word != "cuda" or not (are_found or may_be):
        return None
    which = "" if are_found else "what no name was found for may be "
    return (
        f"{which}{WORKSPACES}: the first matrix product of a thread on a stream takes "
        f"one, of up to {bytes_text(_LARGEST_BYTES)}; a backward pass has a thread of "
        "its own. torch._C._cuda_clearCublasWorkspaces() frees them"
    )
