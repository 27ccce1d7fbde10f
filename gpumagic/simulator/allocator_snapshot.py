"""What an allocator holds, in the shape of torch's memory snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.simulator.allocator_blocks import ALLOCATED, INACTIVE, Block

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpumagic.simulator.allocator_history import History


def snapshot_of(
    device: int, heads: Iterable[Block], history: History
) -> list[dict[str, Any]]:
    """The segments that begin with these blocks, by address.

    Args:
        device: The number of the device.

        heads: The first block of each segment.

        history: Knows where what is there was allocated.
    """
    ordered = sorted(heads, key=lambda head: head.address)
    return [_segment(device, head, history) for head in ordered]


def blocks_from(head: Block) -> Iterator[Block]:
    """The blocks of a segment in order of address."""
    block: Block | None = head
    while block is not None:
        yield block
        block = block.next


def _segment(device: int, head: Block, history: History) -> dict[str, Any]:
    blocks = list(blocks_from(head))
    active = [each for each in blocks if each.state is not INACTIVE]
    return {
        "device": device,
        "address": head.address,
        "total_size": sum(each.size for each in blocks),
        "allocated_size": sum(each.size for each in active if each.state is ALLOCATED),
        "active_size": sum(each.size for each in active),
        "requested_size": sum(each.requested for each in active),
        "stream": head.stream,
        "segment_type": head.pool.name,
        "segment_pool_id": head.pool.identity,
        "is_expandable": False,
        "frames": history.frames_of_segment(head),
        "blocks": [_block(each, history) for each in blocks],
    }


def _block(block: Block, history: History) -> dict[str, Any]:
    return {
        "address": block.address,
        "size": block.size,
        "requested_size": block.requested,
        "state": block.state,
        "frames": history.frames_of(block),
    }
