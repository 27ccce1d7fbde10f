"""Accelerators: XPU keeps the contract whole, MPS without streams and events."""

# ruff: noqa: D102, D103 -- a fixture's name says what it gives

from __future__ import annotations

import pytest

from gpumagic.devices.accelerator import AcceleratorRuntime, CudaRuntime
from tests.devices.contract import QUESTIONS, RuntimeContract
from tests.devices.standin_torch import UNIT_S, Machine, Tensor, torch_with


@pytest.fixture
def machine():
    return Machine()


@pytest.fixture
def workload(machine):
    return machine


@pytest.fixture
def tensor(machine):
    return Tensor(machine)


class TestXpu(RuntimeContract):
    """Intel's has all the words of CUDA but for the snapshot."""

    @pytest.fixture
    def unused(self, machine):
        return AcceleratorRuntime(torch_with(xpu=machine), "xpu")

    @pytest.fixture
    def runtime(self, unused, machine):
        machine.start("the test")
        return unused

    @pytest.mark.parametrize("question", QUESTIONS)
    def test_no_question_reaches_the_driver(self, unused, machine, tensor, question):
        """Before the start nothing that is asked goes any further."""
        QUESTIONS[question](unused, tensor)

        assert machine.reached_driver == []

    def test_in_use_are_the_current_device_and_those_with_memory(
        self, runtime, machine
    ):
        """Without a word for contexts, memory on a device shows that it is used."""
        machine.current = 1
        assert runtime.devices_in_use() == (1,)

        machine.submit(3, machine.stream_of(0))
        runtime.synchronize()

        assert machine.waited_for == [0, 1]


@pytest.fixture(params=["cuda", "xpu"])
def with_events(request, machine):
    """A runtime on two devices that were started, of either kind that has events."""
    machine.start("the test")
    torch = torch_with(**{request.param: machine})
    if request.param == "cuda":
        return CudaRuntime(torch, lambda: True)
    return AcceleratorRuntime(torch, request.param)


def test_device_time_is_told_in_seconds(with_events, machine):
    """Torch's events tell milliseconds; between two of them a report has seconds."""
    start = with_events.record(None)
    machine.submit(5)
    end = with_events.record(None)

    assert with_events.elapsed_s(start, end) == pytest.approx(5 * UNIT_S)
