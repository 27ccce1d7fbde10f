"""The CPU keeps the contract, for real, and knows only the host clock."""

# ruff: noqa: D102, D103 -- a fixture's name says what it gives

from __future__ import annotations

import time

import pytest

from gpumagic.devices.cpu import CpuRuntime
from gpumagic.errors import DeviceError
from tests.devices.contract import RuntimeContract


class BusyLoop:
    """Work for a CPU: done when submit() returns."""

    def submit(self, amount, stream=None):  # noqa: ARG002
        until = time.perf_counter() + amount * 1e-3
        while time.perf_counter() < until:
            pass

    def done(self):
        return True


@pytest.fixture
def runtime():
    return CpuRuntime()


@pytest.fixture
def unused():
    return CpuRuntime()


@pytest.fixture
def workload():
    return BusyLoop()


@pytest.fixture
def tensor():
    return pytest.importorskip("torch").zeros(8)


class TestContract(RuntimeContract):
    """The whole of it."""


def test_pinning_says_what_it_would_be_for(runtime):
    """The error explains that nothing here would fetch pinned memory."""
    with pytest.raises(DeviceError, match="page-locked for an accelerator"):
        runtime.pin(object())
