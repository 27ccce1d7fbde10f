"""What a report says of the machine, beside what is chosen on it."""

from __future__ import annotations

import pytest

from gpumagic.devices.protocols import Inventory
from gpumagic.gpu_select import status
from gpumagic.gpu_select.report import Severity
from tests.gpu_select.machines import Driver, Nobody


@pytest.mark.parametrize(
    ("absent", "problems"), [(True, []), (False, [("the driver differs", "reboot")])]
)
def test_a_broken_driver_is_a_problem_and_none_at_all_is_not(
    monkeypatch, absent, problems
):
    """Who has no NVIDIA GPU is not told to mend what is not there."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    there = Inventory(absent=absent, problem="the driver differs", hint="reboot")

    found = status(Driver(there), witness=Nobody())

    told = [each for each in found.remarks if each.severity is Severity.PROBLEM]
    assert [(each.text, each.next_step) for each in told] == problems
    begun = "Nothing can be chosen: the driver differs." if problems else "There is no"
    assert found.headline.startswith(begun)
