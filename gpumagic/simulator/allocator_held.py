"""Freed blocks that other streams may still use."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from gpumagic.simulator.allocator_blocks import PENDING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.simulator.allocator_blocks import Block
    from gpumagic.simulator.allocator_segments import DriverCalls


class HeldBlocks:
    """Blocks that lie still until the device has passed an event on every stream.

    Args:
        driver: Whom to ask for events.

        let_go: What to do with a block that waits for nothing any more.
    """

    def __init__(self, driver: DriverCalls, let_go: Callable[[Block], None]) -> None:
        # Events in the order of their stream, with the block that waits for each.
        self.queues: dict[int, deque[tuple[Any, Block]]] = {}
        # Freed while no event may be made, with the streams to make one for each.
        self._deferred: list[tuple[Block, list[int]]] = []
        self._driver = driver
        self._let_go = let_go

    def hold(self, block: Block, streams: list[int]) -> None:
        """Keep a block until all these streams have done what they have now."""
        block.state, block.uses = PENDING, None
        block.pending_events = len(streams)
        self._await(block, streams)

    def defer(self, block: Block, streams: list[int]) -> None:
        """Likewise, but the events are made later: now a capture would swallow them."""
        block.state, block.uses = PENDING, None
        block.pending_events = len(streams)
        self._deferred.append((block, streams))

    def hold_deferred(self) -> None:
        """Make the events that had to wait for the end of all captures."""
        while self._deferred:
            self._await(*self._deferred.pop(0))

    def awaited(self) -> Iterator[Block]:
        """Each block that is held, once for each of its events."""
        for queue in self.queues.values():
            yield from (block for _, block in queue)
        for block, streams in self._deferred:
            yield from [block] * len(streams)

    def let_go_of_done(self) -> None:
        """Look at each stream's oldest events, up to one the device has not passed."""
        for stream, queue in list(self.queues.items()):
            while queue and self._driver.done(queue[0][0]):
                self._count_event(queue.popleft()[1])
            if not queue:
                del self.queues[stream]

    def wait_for_all(self) -> None:
        """The host waits for every event; nothing is held afterwards."""
        for queue in self.queues.values():
            for event, block in queue:
                self._driver.wait(event)
                self._count_event(block)
        self.queues.clear()

    def _await(self, block: Block, streams: list[int]) -> None:
        for stream in streams:
            queue = self.queues.setdefault(stream, deque())
            queue.append((self._driver.record(stream), block))

    def _count_event(self, block: Block) -> None:
        block.pending_events -= 1
        if not block.pending_events:
            self._let_go(block)
