"""CUDA's runtime against a stand-in for torch that logs every way to cuInit."""

# ruff: noqa: D103 -- a fixture's name says what it gives

from __future__ import annotations

import pytest

from gpumagic.devices.accelerator import CudaRuntime
from tests.devices.contract import QUESTIONS, RuntimeContract
from tests.devices.standin_torch import Machine, Tensor, torch_with


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


class TestContract(RuntimeContract):
    """The whole of it."""


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


def test_the_count_is_what_the_driver_has_fixed(runtime, machine, torch):
    """After the start CUDA's own count is used; torch's may follow the variable."""
    assert runtime.device_count() == 3
    assert "device_count" not in machine.reached_driver

    del torch._C._cuda_getDeviceCount
    assert runtime.device_count() == 3


def test_memory_that_was_pinned_behind_the_back_of_torch(torch, machine):
    """Once cuInit has been reached by anybody, pinned memory is recognised."""
    pinned = Tensor(machine).pin_memory()

    assert not CudaRuntime(torch, lambda: False).is_pinned(pinned)
    assert CudaRuntime(torch, lambda: True).is_pinned(pinned)


def test_a_snapshot_leaves_the_history_behind(runtime, machine, torch):
    """Where torch can leave the recorded history out, it is left out."""
    machine.submit(1)
    asked = []

    def with_traces(*, include_traces=True):
        asked.append(include_traces)
        return []

    torch.cuda.memory_snapshot = with_traces
    assert runtime.memory_snapshot() == []
    assert asked == [False]

    torch.cuda.memory_snapshot = list  # torch 2.4: it takes nothing
    assert runtime.memory_snapshot() == []
