"""A driver for allocators under test, and allocators on it."""

from __future__ import annotations

from gpumagic.simulator.allocator import CachingAllocator
from gpumagic.simulator.allocator_settings import AllocatorSettings

MIB, GIB = 1 << 20, 1 << 30
DEFAULT, SIDE, THIRD = 0, 35, 67


class Device:
    """A driver that writes down its calls, and whose streams finish when told to."""

    def __init__(self):
        self.calls = []
        self.finished = set()

    def malloc(self, nbytes):
        """Write it down."""
        self.calls.append(("malloc", nbytes))

    def free(self, nbytes):
        """Write it down."""
        self.calls.append(("free", nbytes))

    def record(self, stream):
        """One event for each stream, which is the stream."""
        self.calls.append(("record", stream))
        return stream

    def done(self, event):
        """Whether the stream was said to have finished."""
        return event in self.finished

    def wait(self, event):
        """Write it down."""
        self.calls.append(("wait", event))


def allocator_of(capacity=8 * GIB, *, conf="", device=None, **others):
    """An allocator on a fresh device."""
    context_bytes = others.pop("context_bytes", 0)
    return CachingAllocator(
        others.pop("index", 0),
        capacity,
        context_bytes=lambda: context_bytes,
        driver=device or Device(),
        settings=AllocatorSettings.parse(conf),
        **others,
    )
