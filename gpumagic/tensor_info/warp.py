"""What a warp fetches that reads along one dim: 32 lanes, 32-byte sectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.tensor_info.report import WarpRead

if TYPE_CHECKING:
    from gpumagic.tensor_info.geometry import Geometry

LANES = 32
SECTOR_BYTES = 32
LINE_BYTES = 128


def warp_reads(g: Geometry, base_address: int) -> tuple[WarpRead, ...]:
    """What 32 lanes fetch along each dim, the other indices at 0.

    Args:
        g: The tensor; an empty one is not read, and the result is empty.

        base_address: Of the byte where its storage starts, before the offset.
    """
    if not g.numel:
        return ()
    start = base_address + g.offset * g.itemsize
    return tuple(_read(g, dim, start) for dim in range(g.ndim))


def _read(g: Geometry, dim: int, start: int) -> WarpRead:
    lanes = min(LANES, g.size[dim])
    step_bytes = g.stride[dim] * g.itemsize
    lowest = min(start, start + (lanes - 1) * step_bytes)
    sectors = _pieces(lowest, abs(step_bytes), lanes, g.itemsize, SECTOR_BYTES)
    unique_bytes = g.itemsize * (lanes if step_bytes else 1)
    return WarpRead(
        dim=dim,
        lanes=lanes,
        requested_bytes=lanes * g.itemsize,
        unique_bytes=unique_bytes,
        sectors=sectors,
        lines=_pieces(lowest, abs(step_bytes), lanes, g.itemsize, LINE_BYTES),
        fetched_bytes=sectors * SECTOR_BYTES,
        efficiency=unique_bytes / (sectors * SECTOR_BYTES),
        ideal_sectors=-(-unique_bytes // SECTOR_BYTES),
    )


def _pieces(start: int, step: int, lanes: int, item: int, piece: int) -> int:
    """How many aligned pieces of memory the lanes touch."""
    last_byte = start + (lanes - 1) * step + item - 1
    if step <= piece:  # no piece between the first and the last is stepped over
        return last_byte // piece - start // piece + 1
    if start % item == step % item == piece % item == 0:  # no item in two pieces
        return lanes
    lows = [start + lane * step for lane in range(lanes)]
    return len(
        {
            each
            for low in lows
            for each in range(low // piece, (low + item - 1) // piece + 1)
        }
    )
