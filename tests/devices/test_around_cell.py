"""What stands round a cell calls its observers in order, and knows no room."""

# ruff: noqa: ARG002 -- the class says what these words mean

from __future__ import annotations

import pytest

from gpumagic.devices import around_cell
from gpumagic.devices.around_cell import AroundCell, Observer, Trouble
from gpumagic.devices.cpu import CpuRuntime
from tests.devices.standin_runtime import HostTime, StandinDevice

STEPS = ("look_before", "start", "begin", "all_idle", "look_after", "close")


class Noting(Observer):
    """Notes each call."""

    def __init__(self, name, log):
        for step in STEPS:
            setattr(self, step, self.noting(f"{step} {name}", log))

    @staticmethod
    def noting(what, log):
        """Adds one line."""
        return lambda *_, **__: log.append(what)


def test_each_step_is_made_by_all_observers_before_the_next():
    """Who looks before, and who looks after, sees none of the others at work."""
    log = []
    around = AroundCell(CpuRuntime, [Noting("tracer", log), Noting("watcher", log)])

    around.begin()
    ended = around.end()

    expected = [f"{step} {who}" for step in STEPS[:-1] for who in ("tracer", "watcher")]
    assert log == [*expected, "close watcher", "close tracer"]
    assert not ended.uses_device


@pytest.fixture
def device(monkeypatch):
    """A device in use with a clock of its own; no torch of other tests knows of it."""
    monkeypatch.setattr("gpumagic.devices.waiting.loaded_torch", lambda: None)
    monkeypatch.setattr(around_cell, "time", HostTime())
    device = StandinDevice()
    yield device
    device.rest()


def test_who_does_not_wait_after_an_error_tells_that_to_all(device):
    """The device is left alone, and is not said to be idle."""

    class Told(Observer):
        unwaited = idle = None

        def all_idle(self, unwaited):
            self.unwaited = unwaited

        def look_after(self, runtime, *, idle):
            self.idle = idle

    told = Told()
    around = AroundCell(lambda: device, [told], waits_after_error=False)
    around.begin()
    before = list(device.log)

    ended = around.end(error=ValueError("mine"))

    assert device.log == before
    assert (ended.trouble, ended.late_error) == (Trouble.NOT_DRAINED, None)
    assert ended.failed == "ValueError: mine"
    assert "not waited for" in told.unwaited
    assert told.idle is around.is_idle is False


def test_an_error_of_the_wait_never_hides_the_code_s_own(device):
    """The code's error goes on alone; that of the device is told."""
    around = AroundCell(lambda: device)
    around.begin()
    device.error = RuntimeError("device-side assert")

    ended = around.end(error=ValueError("mine"))

    assert (ended.trouble, ended.late_error) == (Trouble.NOT_DRAINED, None)
    assert ended.failed == "ValueError: mine"
