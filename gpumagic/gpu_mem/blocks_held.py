"""What the caching allocator says of the memory that names hold."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from gpumagic.devices.storages import StorageKey, Stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_IN_USE = "active_allocated"


class BlocksInUse:
    """The blocks that are handed out, by where they begin.

    Args:
        snapshot: The segments, as `torch.cuda.memory_snapshot()` tells them.
    """

    def __init__(self, snapshot: Iterable[Mapping[str, Any]]) -> None:
        blocks = sorted(_blocks(snapshot))
        self._starts = [(device, address) for device, address, _ in blocks]
        self._sizes = [size for _, _, size in blocks]

    def around(self, key: StorageKey) -> Stored | None:
        """The block that memory lies in; None where it is no block of this allocator.

        It may begin further inside, as that of a graph's outputs does.
        """
        position = bisect_right(self._starts, (key.device, key.address)) - 1
        if position < 0:
            return None
        device, start = self._starts[position]
        size = self._sizes[position]
        if device != key.device or key.address >= start + size:
            return None
        return Stored(StorageKey(key.kind, device, start), size)


def _blocks(snapshot: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, int, int]]:
    for segment in snapshot:
        address = segment["address"]
        for block in segment["blocks"]:
            start = block.get("address", address)
            if block["state"] == _IN_USE:
                yield segment["device"], start, block["size"]
            address = start + block["size"]


class Places:
    """Says what the memory that a search has found counts as.

    Attributes:
        foreign: What was met of this kind of device that is in none of them.

    Args:
        kind: The kind of device whose memory is looked for.

        blocks: The blocks in use; None where the allocator has told nothing.
    """

    def __init__(self, kind: str, blocks: BlocksInUse | None = None) -> None:
        self._blocks = blocks
        self.foreign: dict[StorageKey, int] = {}
        self._kind = kind

    def place(self, stored: Stored) -> Stored | None:
        """The block that memory lies in; None for what does not count."""
        if stored.key.kind != self._kind:
            return None
        if self._blocks is None:
            return stored
        block = self._blocks.around(stored.key)
        if block is None:
            self.foreign[stored.key] = stored.nbytes
        return block
