"""Which blocks keep free memory from going back to the driver. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.gpu_mem.fragmentation import stuck_bytes
from gpumagic.gpu_mem.records.blocks import BlockState
from gpumagic.gpu_mem.records.requests import Pinning

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpumagic.gpu_mem.records.blocks import Segment


def pinning_of(segments: Iterable[Segment], most: int = 5) -> tuple[Pinning, ...]:
    """Blocks that keep free memory from going back to the driver.

    Those come first of which the fewest hold back the most.

    Args:
        segments: Of one device.

        most: How many blocks are wanted.
    """
    found = []
    for segment in segments:
        kept_bytes = stuck_bytes(segment)
        blocks = [b for b in segment.blocks if b.state is not BlockState.FREE]
        found += [
            (
                kept_bytes / len(blocks),
                Pinning(segment.nbytes, b.nbytes, kept_bytes, b.names, b.line),
            )
            for b in blocks
            if kept_bytes
        ]
    found.sort(key=lambda each: -each[0])
    return tuple(pinning for _, pinning in found[:most])


def names_to_delete(pinnings: Sequence[Pinning]) -> tuple[str, ...]:
    """The variables that are among them, or have them as elements, each once."""
    first_names = (each.names[0].partition("[")[0] for each in pinnings if each.names)
    return tuple(dict.fromkeys(each for each in first_names if each.isidentifier()))
