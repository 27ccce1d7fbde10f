"""Memory that a measurement took goes back, whatever allocator it came from."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from gpumagic.devices.cpu import CpuRuntime
from gpumagic.pin_loader.rates import given_back


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
