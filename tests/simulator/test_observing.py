"""What a simulated machine has seen is told in the user's words."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpumagic.errors import DeviceError
from gpumagic.report.places import Places
from gpumagic.simulator.observing import watch_syncs


def box_with(places, *, is_on=True):
    """A machine whose waits come from this test."""
    return SimpleNamespace(
        _simulation=SimpleNamespace(places=places),
        is_on=is_on,
        label="simulated H100",
        machine=SimpleNamespace(wait_observers=[]),
    )


Nowhere = SimpleNamespace(here=lambda: None, caller=lambda *_: None)


def test_a_wait_is_told_with_its_line_and_what_was_called_there():
    """What it cost is exact; whoever waits where no line is known has no line."""
    box, nowhere = box_with(Places()), box_with(Nowhere)

    with watch_syncs(box) as seen, watch_syncs(nowhere) as unknown:
        find_them = box.machine.wait_observers[0]
        find_them("nonzero", 1_000, 4_000)
        nowhere.machine.wait_observers[0]("nonzero", 1_000, 4_000)

    (found,), (other,) = seen, unknown
    assert (found.what, other.what) == ("find_them(): nonzero", "nonzero")
    assert found.line.source == 'find_them("nonzero", 1_000, 4_000)'
    assert other.line is None
    assert found.waited_s == other.waited_s == pytest.approx(3e-6)
    assert box.machine.wait_observers == []


def test_a_machine_that_is_off_has_nothing_to_see():
    """Asking it says how one is switched on."""
    with (
        pytest.raises(DeviceError) as refused,
        watch_syncs(box_with(None, is_on=False)),
    ):
        pass

    assert "simulated H100 was switched off" in refused.value.problem
