"""The contract on the CPU, for real, and on stand-ins that log every way to cuInit."""

# ruff: noqa: D102, D103 -- a fixture's name says what it gives

from __future__ import annotations

import time

import pytest

from gpumagic.devices.accelerator import AcceleratorRuntime, CudaRuntime
from gpumagic.devices.cpu import CpuRuntime
from tests.devices.contract import QUESTIONS, RuntimeContract
from tests.devices.standin_torch import Machine, Tensor, torch_with


class BusyLoop:
    """Work for a CPU: done when submit() returns."""

    def submit(self, amount, stream=None):  # noqa: ARG002
        until = time.perf_counter() + amount * 1e-3
        while time.perf_counter() < until:
            pass

    def done(self):
        return True


class TestCpu(RuntimeContract):
    """It knows only the host's clock."""

    @pytest.fixture
    def runtime(self):
        return CpuRuntime()

    @pytest.fixture
    def unused(self):
        return CpuRuntime()

    @pytest.fixture
    def workload(self):
        return BusyLoop()

    @pytest.fixture
    def tensor(self):
        return pytest.importorskip("torch").zeros(8)


@pytest.fixture
def machine():
    return Machine(devices=3)


@pytest.fixture
def torch(machine):
    return torch_with(cuda=machine)


@pytest.fixture
def unused(torch, machine):
    # Reaching the driver is what sets the log; the real probe sees the same.
    return CudaRuntime(torch, driver_initialised=lambda: bool(machine.reached_driver))


@pytest.fixture
def runtime(unused, torch):
    torch.cuda.init()
    return unused


@pytest.fixture
def workload(machine):
    return machine


@pytest.fixture
def tensor(machine):
    return Tensor(machine)


class TestCuda(RuntimeContract):
    """The whole of it."""


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


@pytest.mark.parametrize("question", QUESTIONS)
def test_no_question_reaches_the_driver(unused, machine, tensor, question):
    """Before the start nothing that is asked gets as far as cuInit."""
    QUESTIONS[question](unused, tensor)

    assert machine.reached_driver == []


def test_before_the_start_nothing_is_known(unused, tensor):
    """Unknown is None, empty or False: never a zero that looks like a measurement."""
    assert not unused.started()
    assert unused.device_count() is None
    assert unused.device_name(0) is None
    assert unused.devices_in_use() == ()
    assert unused.current_device() is None
    assert unused.current_stream(0) is None
    assert unused.record(None) is None
    assert unused.memory_stats(0) is None
    assert unused.memory_snapshot() is None
    assert unused.memory_bytes(0) is None
    assert not unused.can_pin()
    assert not unused.is_pinned(tensor)


@pytest.mark.parametrize("private_names", [True, False])
def test_synchronising_waits_for_every_device_in_use_and_no_other(
    runtime, machine, torch, private_names
):
    """Work on two of three GPUs: both are waited for, the third gets no context."""
    if not private_names:
        del torch._C._cuda_hasPrimaryContext
    machine.current = 2
    machine.submit(5)
    machine.submit(9, machine.stream_of(0))

    runtime.synchronize()

    assert machine.waited_for == [0, 2]
    assert machine.contexts == {0, 2}
    assert machine.done()


def test_memory_that_was_pinned_behind_the_back_of_torch(torch, machine):
    """Once cuInit has been reached by anybody, pinned memory is recognised."""
    pinned = Tensor(machine).pin_memory()

    assert not CudaRuntime(torch, lambda: False).is_pinned(pinned)
    assert CudaRuntime(torch, lambda: True).is_pinned(pinned)
