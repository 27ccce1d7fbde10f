"""The allocator's counters: who resets them is seen, as if torch's own were called."""

from __future__ import annotations

import contextlib
import sys
from types import ModuleType, SimpleNamespace

import pytest

from gpumagic.devices.memory_counters import watch_resets

NAME = "_cuda_resetPeakMemoryStats"


@pytest.fixture
def core(monkeypatch):
    """torch._C with one reset, which notes what it was called with."""
    core = ModuleType("torch._C")
    core.calls = []

    def reset(device):
        """Reset the peaks."""
        core.calls.append(device)
        return "done"

    reset.__module__, reset.__name__, reset.__qualname__ = "torch._C", NAME, NAME
    setattr(core, NAME, reset)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=None, _C=core))
    monkeypatch.setitem(sys.modules, "torch._C", core)
    return core


class Reader:
    """Counts what it sees."""

    def __init__(self):
        self.seen = []

    @contextlib.contextmanager
    def around(self):
        """Note that a reset began, and that it ended."""
        self.seen.append("before")
        try:
            yield
        finally:
            self.seen.append("after")


def test_a_reset_is_seen_and_done(core):
    """The reader is told before and after; the caller gets what torch gives."""
    reader = Reader()

    with watch_resets(reader.around) as seen:
        assert seen
        assert getattr(core, NAME)(1) == "done"
    getattr(core, NAME)(2)

    assert (core.calls, reader.seen) == ([1, 2], ["before", "after"])


@pytest.mark.parametrize("first", [0, 1])
def test_blocks_that_overlap(core, first):
    """In whichever order they end, the function is torch's own again."""
    before, readers = getattr(core, NAME), (Reader(), Reader())
    blocks = [contextlib.ExitStack() for _ in readers]
    for block, reader in zip(blocks, readers, strict=True):
        block.enter_context(watch_resets(reader.around))

    getattr(core, NAME)(0)
    blocks[first].close()
    getattr(core, NAME)(0)
    blocks[1 - first].close()

    assert getattr(core, NAME) is before
    assert len(readers[first].seen) == 2
    assert len(readers[1 - first].seen) == 4
