"""What could not be looked at, or does not add up, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.report.units import bytes_text, count_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.gpu_mem.blocks_held import Places
    from gpumagic.gpu_mem.walk import Walk

_WORKSPACE_BYTES = 32 << 20  # of cuBLAS on a GPU of 2022 and later, at most
_WORKSPACES = 4  # cuBLAS and cuBLASLt may have one each, forward and backward


def search_remarks(walk: Walk, places: Places) -> Iterator[str]:
    """What a search had to leave out."""
    if walk.hidden:
        count = count_text(walk.hidden, "saved tensor")
        yield (
            f"{count} of autograd graphs could not be looked at: this torch would have "
            "to run the hooks that packed them"
        )
    if places.foreign:
        held = bytes_text(sum(places.foreign.values()))
        yield (
            f"{held} that names hold are not counted here: torch's caching allocator "
            "did not hand them out (memory of another library, or of another process)"
        )


def surplus_remark(where: str, allocated_bytes: int, found_bytes: int) -> str:
    """Names hold more than is allocated, which is no mistake of theirs.

    Args:
        where: The device, as in "cuda:0".

        allocated_bytes: What the allocator says.

        found_bytes: What was found.
    """
    more = bytes_text(found_bytes - allocated_bytes)
    return (
        f"names hold {more} on {where} beyond the {bytes_text(allocated_bytes)} that "
        "the allocator says it has handed out: memory of another library, or memory "
        "that was given back meanwhile"
    )


def workspace_remark(kind: str, unattributed_bytes: int) -> str | None:
    """What the rest on a GPU may be, where it is small enough for that."""
    if kind != "cuda" or not 0 < unattributed_bytes <= _WORKSPACES * _WORKSPACE_BYTES:
        return None
    return (
        "what no name was found for may be workspaces of cuBLAS: the first matrix "
        f"product of a thread on a stream takes one, of up to "
        f"{bytes_text(_WORKSPACE_BYTES)}, and a backward pass has a thread of its own"
    )
