"""Missing waits between streams of the simulated GPU, collected during a block."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch

import gpumagic
from gpumagic.devices.opening import open_runtime
from gpumagic.errors import DeviceError

pytestmark = pytest.mark.usefixtures("box")


def watched(action):
    """The races of one call."""
    with open_runtime("sim").watch_races() as found:
        action()
    return found


def sums_too_early():
    """The wrong example of PyTorch's page on CUDA semantics."""
    side = torch.sim.Stream()
    numbers = torch.empty((100, 100), device="sim").normal_(0.0, 1.0)
    with torch.sim.stream(side):
        torch.sum(numbers)
    torch.sim.synchronize()  # its memory may go back now


def sums_in_time():
    """The same, corrected as the page has it."""
    side = torch.sim.Stream()
    numbers = torch.empty((100, 100), device="sim").normal_(0.0, 1.0)
    side.wait_stream(torch.sim.default_stream())
    with torch.sim.stream(side):
        torch.sum(numbers)
    numbers.record_stream(side)
    torch.sim.default_stream().wait_stream(side)


def test_the_wrong_example_is_found_with_both_lines():
    """A sum that may start before its input is there names both lines."""
    (race,) = watched(sums_too_early)

    assert race.earlier.source == (
        'numbers = torch.empty((100, 100), device="sim").normal_(0.0, 1.0)'
    )
    assert race.later.source == "torch.sum(numbers)"
    assert race.earlier.where in race.problem
    assert race.later.where in race.problem
    assert race.hint.endswith(f"before {race.later.where}")
    assert ".wait_stream(torch.sim.default_stream())" in race.hint


def test_the_corrected_example_is_not_found():
    """What waits is no race."""
    assert watched(sums_in_time) == []


def test_the_hint_names_the_users_variable(monkeypatch):
    """A stream that has a name in the notebook is told by it."""
    side = torch.sim.Stream()
    monkeypatch.setattr(sys.modules["__main__"], "side", side, raising=False)
    numbers = torch.ones(8, device="sim")

    def early():
        with torch.sim.stream(side):
            numbers.mul_(2)

    (race,) = watched(early)

    assert race.hint.startswith("side.wait_stream(")


def test_no_warning_is_shown_for_what_is_collected(box):
    """During the block races are told in the list alone; the machine counts them."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = watched(sums_too_early)

    assert len(found) == len(box.races) == 1


def test_afterwards_races_warn_again():
    """A race that was collected is told as ever once nobody collects."""
    watched(sums_too_early)

    with pytest.warns(RuntimeWarning, match="nothing makes it wait"):
        sums_too_early()


def test_a_loop_tells_a_race_once(box):
    """The same two places are one entry, however often they meet."""

    def again_and_again():
        for _ in range(3):
            sums_too_early()

    assert len(watched(again_and_again)) == 1
    assert len(box.races) == 3


def test_a_buffer_read_too_early_on_the_host():
    """What a non_blocking copy has not brought yet is a race with the host."""
    x = torch.ones(1 << 20, device="sim")

    def read_too_early():
        host = x.to("cpu", non_blocking=True)
        host.sum()

    (race,) = watched(read_too_early)

    assert race.later.source == "host.sum()"
    assert "synchronize()" in race.hint


def test_the_list_is_whole_where_the_code_raises(box):
    """A cell that raises has its races in the list, and later ones warn again."""

    def raise_after():
        sums_too_early()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), box.watch_races() as found:
        raise_after()

    assert len(found) == 1
    with pytest.warns(RuntimeWarning):
        sums_too_early()


def test_a_machine_that_does_not_look_says_so():
    """Without hazards there is nothing to collect, and the error says what to type."""
    with gpumagic.simulate("h100", hazards="off") as box:
        with pytest.raises(DeviceError) as caught, box.watch_races():
            pass

        assert 'hazards="report"' in caught.value.hint
