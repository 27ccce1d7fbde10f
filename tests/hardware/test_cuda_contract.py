"""CUDA's runtime keeps the contract on the real device."""

# ruff: noqa: D102 -- a fixture's name says what it gives

from __future__ import annotations

import pytest

from gpumagic.devices.opening import open_runtime
from tests.devices.contract import RuntimeContract


class Spinning:
    """Work for the GPU: kernels that spin, and a mark behind each of them."""

    def __init__(self, torch, spin):
        self._torch, self._spin, self._marks = torch, spin, []

    def submit(self, amount, stream=None):
        stream = stream or self._torch.cuda.current_stream()
        self._spin(amount, stream)
        self._marks.append(stream.record_event())

    def done(self):
        return all(mark.query() for mark in self._marks)


class TestContract(RuntimeContract):
    """The whole of it."""

    @pytest.fixture
    def unused(self, torch):
        if torch.cuda.is_initialized():
            pytest.skip("CUDA has been started; test_looking.py asks a fresh process")
        return open_runtime("cuda")

    @pytest.fixture
    def runtime(self, torch):
        torch.zeros(1, device="cuda")
        return open_runtime("cuda")

    @pytest.fixture
    def workload(self, torch, spin):
        return Spinning(torch, spin)

    @pytest.fixture
    def tensor(self, torch):
        return torch.zeros(1 << 16)
