"""The simulated GPU keeps the contract of every runtime."""

# ruff: noqa: D102 -- a fixture's name says what it gives

from __future__ import annotations

import pytest
import torch

import gpumagic
from gpumagic.devices.opening import open_runtime
from tests.devices.contract import RuntimeContract


class Multiplying:
    """Work for the simulated GPU: matrix products of about a millisecond each."""

    def __init__(self):
        self._matrix = torch.zeros(16, 16, device="sim")
        self._marks = []

    def submit(self, amount, stream=None):
        stream = stream or torch.sim.current_stream()
        stream.wait_stream(torch.sim.default_stream())
        with torch.sim.stream(stream):
            for _ in range(100 * amount):
                self._matrix.add_(1)
        self._marks.append(stream.record_event())

    def done(self):
        return all(mark.query() for mark in self._marks)


class TestContract(RuntimeContract):
    """The whole of it."""

    @pytest.fixture
    def unused(self, box):
        return open_runtime("sim")

    @pytest.fixture
    def runtime(self, box):
        torch.zeros(1, device="sim")
        return open_runtime("sim")

    @pytest.fixture
    def workload(self, runtime):
        return Multiplying()

    @pytest.fixture
    def tensor(self, box):
        return torch.zeros(1 << 16)


def test_it_is_the_best_device_where_it_is_switched_on(box):
    """Asked for the best device, a simulated GPU comes before the CPU."""
    runtime = open_runtime()

    assert (runtime.kind, runtime.simulated) == ("sim", True)
    assert gpumagic.device() == torch.device("sim")


def test_two_runs_take_the_same_time_to_the_nanosecond():
    """The same program takes the same simulated time whenever it is run."""

    def run():
        with gpumagic.simulate("2xh100") as box:
            model = torch.nn.Linear(64, 64).to("sim")
            side = torch.Stream("sim")
            for _ in range(5):
                with side:
                    model(torch.ones(8, 64, device="sim")).sum().backward()
                torch.sim.current_stream().wait_stream(side)
            model.weight.grad.cpu()
            return box.time_s

    assert run() == run()
