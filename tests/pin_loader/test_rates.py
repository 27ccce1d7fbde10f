"""The step that is timed, its stand-in, and memory given back, on the CPU."""

from __future__ import annotations

import pytest

from gpumagic.devices.busy import Busy
from gpumagic.devices.cpu import CpuRuntime
from gpumagic.devices.opening import open_runtime
from gpumagic.pin_loader import rates
from gpumagic.pin_loader.rates import given_back
from gpumagic.pin_loader.report import CopyMode, Loading, Rates, Samples

pytest.importorskip("torch")


class Scripted:
    """A runtime whose clock moves only when a step runs."""

    kind = "cpu"
    simulated = False

    def __init__(self):
        self.now = 0
        self.waits = 0

    def now_ns(self):
        """What the clock shows."""
        return self.now

    def synchronize(self):
        """Note that somebody waited."""
        self.waits += 1


def test_a_step_is_timed_in_rows_and_divided():
    """Calls that take 3 ms each are samples of 3 ms, the dear first ones left out."""
    runtime, calls = Scripted(), []

    def train(batch):
        calls.append(batch)
        runtime.now += 500_000_000 if len(calls) <= 2 else 3_000_000

    found = rates.measure_step(train, "batch", runtime, budget_s=60.0)

    assert found.name == "train"
    assert found.samples.seconds == (0.003,) * 10
    assert set(calls) == {"batch"}


def test_a_small_budget_still_gives_three_samples():
    """A step that is too long for the budget runs once in each of three samples."""
    runtime, calls = Scripted(), []

    found = rates.measure_step(calls.append, None, runtime, budget_s=0.0)

    assert len(found.samples.seconds) == 3
    assert len(calls) == 5


def test_an_error_of_the_step_comes_through():
    """What the user's function raises is the user's to see."""

    def broken(_):
        raise ValueError("no such layer")

    with pytest.raises(ValueError, match="no such layer"):
        rates.measure_step(broken, None, Scripted(), budget_s=1.0)


def test_a_stand_in_multiplies_for_as_long_as_was_asked(monkeypatch):
    """With products whose length is known, their number is that of the length."""
    runtime = Scripted()

    def products_of_a_known_length(left, _, out):
        runtime.now += len(left) ** 3 // 100  # nanoseconds
        return out

    monkeypatch.setattr("torch.mm", products_of_a_known_length)
    for seconds in (0.01, 0.02, 0.5):
        stand_in = rates.StandIn(runtime, 0, seconds)
        began_ns = runtime.now
        stand_in(None)

        assert runtime.now - began_ns == pytest.approx(seconds * 1e9, rel=0.07)
    assert rates.StandIn(runtime, 0, 0.0)._times == 0


def test_a_device_without_a_sleep_is_kept_busy_by_products():
    """Where torch has no word for waiting, a stream is kept busy all the same."""
    runtime = open_runtime("cpu")
    busy = Busy(runtime, 0)

    began_ns = runtime.now_ns()
    busy.submit(0.0)

    assert runtime.now_ns() > began_ns


def same(seconds):
    """The same again and again."""
    return Samples((seconds,))


def test_the_slowest_other_part_is_found_among_all():
    """Loading, pinning and the copy on the device count, the host's part does not."""
    copies = (CopyMode(True, False, same(9.0), same(2.0)),)

    assert rates.slowest_other_part_s(Rates()) == 0
    assert rates.slowest_other_part_s(Rates(copies=copies)) == 2.0
    assert rates.slowest_other_part_s(Rates(pin_copy=same(3.0), copies=copies)) == 3.0
    assert rates.slowest_other_part_s(Rates(load=Loading(same(5.0), 0))) == 5.0


# ------------------------------------------------------------- memory given back


class PluggedIn(CpuRuntime):
    """A device whose allocator is another's, and answers as such a one does."""

    def memory_stats(self, device):
        """No figures."""
        raise RuntimeError(
            f"CUDAPluggableAllocator does not yet support getDeviceStats of {device}"
        )


def test_an_allocator_that_does_not_count_is_measured_with():
    """What it does not tell stops nobody, neither before nor afterwards."""
    reached = []

    with given_back(PluggedIn(), 0):
        reached.append("inside")

    assert reached == ["inside"]


def test_an_error_inside_is_the_one_that_is_raised():
    """Giving back hides no error of what was measured."""
    with pytest.raises(ZeroDivisionError), given_back(PluggedIn(), 0):
        _ = 1 / 0
