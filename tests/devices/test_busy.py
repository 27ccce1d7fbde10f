"""A device is kept busy for as long as is said, whatever the host does meanwhile."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

from gpumagic.devices import accelerator
from gpumagic.devices.accelerator import Busy
from tests.devices.standin_runtime import Event, StandinDevice

HZ = 2e9


class Late(StandinDevice):
    """On a machine whose processor comes back to the process later."""

    def record(self, stream):  # noqa: ARG002
        """A mark behind what is queued, or of this moment."""
        if not self.has_events:
            return None
        return Event(max(self.main.until, self.host.perf_counter()))

    def synchronize(self):
        """As late as that."""
        super().synchronize()
        self.host.sleep(0.05)


def kept_busy_s(device, monkeypatch):
    """For how long it is when a tenth of a second is asked for."""
    module = SimpleNamespace(
        _sleep=lambda cycles: device.busy(cycles / HZ),
        device=lambda _: contextlib.nullcontext(),
    )
    monkeypatch.setattr(accelerator, "_module", lambda _: module)
    kept = Busy(device, 0)
    device.rest()
    kept.submit(0.1)
    return device.main.until - device.host.perf_counter()


def test_it_is_measured_by_the_device(monkeypatch):
    """What passes on the host until the wait returns is no work."""
    assert kept_busy_s(Late(), monkeypatch) == pytest.approx(0.1, rel=0.01)


def test_without_events_the_host_measures(monkeypatch):
    """Then a busy machine makes it shorter, and nothing can be done."""
    assert 0 < kept_busy_s(Late(has_events=False), monkeypatch) < 0.1
