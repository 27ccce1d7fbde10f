"""What the tests of the loader magic share."""

from __future__ import annotations

import sys

import pytest

import gpumagic

_PATIENCE_S = 300


class Clock:
    """Seconds that pass where they are told to, and a microsecond at each look."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        """As Python's."""
        self.now += 1e-6
        return self.now

    monotonic = perf_counter

    def process_time(self):
        """Nothing is computed."""
        return 0.0

    def perf_counter_ns(self):
        """Likewise."""
        return round(self.perf_counter() * 1e9)

    def pass_until(self, when):
        """Move it on, never back."""
        self.now = max(self.now, when)


@pytest.fixture(autouse=True)
def one_thread():
    """Let torch compute in the thread that asks: a forked child has no others."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def box():
    """A simulated machine with one H100, switched on for one test."""
    with gpumagic.simulate("h100") as machine:
        yield machine


@pytest.fixture
def unhurried(monkeypatch):
    """The clock that loading and budgets go by: no machine is too busy for anything.

    It shows a microsecond more at each look, and nothing else moves it but a test.
    """
    from gpumagic.pin_loader import feed, load, stages

    clock = Clock()
    monkeypatch.setattr(feed, "perf_counter", clock.perf_counter)
    for module in (load, stages):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(load, "_QUEUED", "no such file")
    monkeypatch.setattr(load, "_ROUNDS", 6)
    monkeypatch.setattr(load, "PATIENCE_S", 6 * _PATIENCE_S)
    monkeypatch.setattr(stages, "_PATIENCE", _PATIENCE_S)
    return clock
