"""What one run promises of its flags: nothing is told that only looks so."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from gpumagic.cuda_sync_time.digits import rate_text
from gpumagic.cuda_sync_time.instruments import Instruments
from gpumagic.cuda_sync_time.one_run import OneRun
from gpumagic.cuda_sync_time.report import FlagKind, SyncPoint
from gpumagic.cuda_sync_time.view import draw
from gpumagic.report.events import Code
from tests.cuda_sync_time import samples
from tests.cuda_sync_time.samples import MS
from tests.cuda_sync_time.standin_runtime import StandinDevice


@dataclass
class SlowToAnswer(StandinDevice):
    """An idle device on a clock of its own, each wait for which takes some time."""

    waits_s: tuple[float, ...] = ()
    clock_ns: int = 0

    def now_ns(self):
        """Moved by waits alone."""
        return self.clock_ns

    def synchronize(self):
        """The next of the waits; none takes any time in the end."""
        first, *rest = (*self.waits_s, 0.0)
        self.clock_ns += round(first * 1e9)
        self.waits_s = tuple(rest)


@pytest.fixture(autouse=True)
def no_torch(monkeypatch):
    """The stand-in device is no business of a torch that other tests have imported."""
    monkeypatch.setattr(
        "gpumagic.cuda_sync_time.around_cell.loaded_torch", lambda: None
    )


@pytest.mark.parametrize(
    ("waits_s", "is_told"), [((0.005, 0.0), True), ((0.005, 0.005), False)]
)
def test_a_slow_answer_of_an_idle_device_is_no_backlog(waits_s, is_told):
    """Work of earlier cells is told; a wait that takes as long for nothing is not."""
    # Given
    driver = SimpleNamespace(
        inventory=lambda: SimpleNamespace(driver_version=None),
        visible_devices=lambda: None,
        loads=tuple,
    )
    run = OneRun(Instruments(lambda: driver, SlowToAnswer(waits_s=waits_s)))

    # When
    run.begin()
    run.end()
    flags = run.report(Code("x")).flags

    # Then
    assert (FlagKind.BACKLOG in {flag.kind for flag in flags}) is is_told


@pytest.mark.parametrize(("other_s", "is_all"), [(2 * MS, True), (None, False)])
def test_a_sum_of_waits_with_one_unknown_is_a_least(other_s, is_all):
    """Where one wait has no known cost, the others come to "at least" so much."""
    waits = (
        SyncPoint(".item()", None, 1, 3 * MS),
        SyncPoint(".nonzero()", None, 1, other_s),
    )
    report = dataclasses.replace(samples.LAUNCH_BOUND, syncs=waits)

    title = draw(report).title

    assert (f"waited {'5.00' if is_all else 'at least 3.00'} ms for the GPU") in title


@pytest.mark.parametrize(
    ("rate", "text"), [(999.9e9, "1.00 TB/s"), (999.4e9, "999 GB/s")]
)
def test_a_rate_just_below_a_unit_is_written_in_that_unit(rate, text):
    """What rounds to 1000 of one unit reads as 1.00 of the next."""
    assert rate_text(rate, "B/s") == text
