"""What stands round a cell calls its observers in order, and knows no room."""

# ruff: noqa: ARG002 -- the class says what these words mean

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from gpumagic.devices import around_cell
from gpumagic.devices.around_cell import AroundCell, Observer
from gpumagic.devices.cpu import CpuRuntime
from gpumagic.errors import GpuMagicError


class Noting(Observer):
    """Notes each call; one that refuses does so when it is to start."""

    def __init__(self, name, log, *, refuses=False):
        self.name, self.log, self.refuses = name, log, refuses

    def note(self, what):
        """One more call."""
        self.log.append(f"{what} {self.name}")

    def look_before(self, runtime):
        """Noted."""
        self.note("look before")

    def start(self, runtime):
        """Noted, or refused."""
        self.note("start")
        if self.refuses:
            raise GpuMagicError("no", "try another")

    def begin(self):
        """Noted."""
        self.note("begin")

    def all_idle(self, unwaited):
        """Noted."""
        self.note("all idle")

    def look_after(self, runtime, *, idle):
        """Noted."""
        self.note("look after")

    def close(self):
        """Noted."""
        self.note("close")


def test_each_step_is_made_by_all_observers_before_the_next():
    """Who looks before, and who looks after, sees none of the others at work."""
    log = []
    around = AroundCell(CpuRuntime, [Noting("tracer", log), Noting("watcher", log)])

    around.begin()
    ended = around.end(error=ValueError("so"))

    steps = ("look before", "start", "begin", "all idle", "look after")
    expected = [f"{step} {who}" for step in steps for who in ("tracer", "watcher")]
    assert log == [*expected, "close watcher", "close tracer"]
    assert ended.failed == "ValueError: so"
    assert not ended.uses_device


def test_one_that_refuses_leaves_none_running():
    """Its error goes through, after all of them have been closed."""
    log = []
    observers = [Noting("tracer", log), Noting("watcher", log, refuses=True)]

    with pytest.raises(GpuMagicError, match="no"):
        AroundCell(CpuRuntime, observers).begin()

    assert log[-2:] == ["close watcher", "close tracer"]


def test_it_knows_devices_and_errors_and_nothing_of_a_room():
    """Whatever goes round a cell can be built on it."""
    tree = ast.parse(Path(around_cell.__file__).read_text(encoding="utf-8"))
    imported = {
        node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module.startswith("gpumagic")
    }

    assert all(
        each.startswith(("gpumagic.devices", "gpumagic.errors")) for each in imported
    )
