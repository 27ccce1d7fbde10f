"""How loading is timed: in rounds, without what was prepared ahead."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

from gpumagic.pin_loader import load  # noqa: E402
from gpumagic.pin_loader.load import LoaderFailed, measure_loading  # noqa: E402
from tests.pin_loader.clocks import Clock  # noqa: E402
from tests.pin_loader.sleepy import (  # noqa: E402
    DiesAt,
    FailsAt,
    HangsInWorkers,
    children,
)

pytestmark = pytest.mark.filterwarnings("ignore")


class Scripted:
    """A loader whose batches come at these moments, on a clock that they move."""

    def __init__(self, clock, moments, workers=0, prefetch=2):
        self.clock, self.moments = clock, moments
        self.num_workers, self.prefetch_factor = workers, prefetch

    def __len__(self):
        return len(self.moments)

    def __iter__(self):
        began = self.clock.now
        for moment in self.moments:
            self.clock.pass_until(began + moment)
            yield moment


@pytest.fixture
def clock(monkeypatch):
    """A clock that only loaders move."""
    clock = Clock()
    monkeypatch.setattr(load, "time", clock)
    monkeypatch.setattr(load, "_QUEUED", "no such file")
    return clock


def test_without_workers_each_batch_counts_but_the_first(clock):
    """The first one opens files; the rest is what it takes in the long run."""
    told = measure_loading(Scripted(clock, [5, 6, 7, 8, 9]), budget_s=100.0)

    assert told.between.seconds == pytest.approx([1.0] * 4, rel=1e-3)
    assert told.start_s == pytest.approx(5.0, rel=1e-3)
    assert told.share_s == 0
    assert told.waited_s == pytest.approx(1.0, rel=1e-3)


def test_bursts_of_workers_are_not_taken_for_speed(clock):
    """Two workers of 2 s each hand over both at once: a batch takes one second."""
    moments = [2 * (at // 2 + 1) for at in range(40)]

    told = measure_loading(Scripted(clock, moments, workers=2), budget_s=100.0)

    assert told.batch_s - told.share_s == pytest.approx(1.0, rel=1e-3)
    assert told.share_s == pytest.approx(2 / 40, rel=1e-3)


def test_what_was_prepared_ahead_does_not_count(clock):
    """Batches that come at once after a long start were made in that time."""
    moments = [10.0] * 6 + [11.0 + at for at in range(30)]

    told = measure_loading(Scripted(clock, moments, workers=2), budget_s=1000.0)

    assert told.between.median_s == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize(("workers", "batch_s"), [(0, 0.5), (1, 1.0)])
def test_a_queue_shortens_what_waits_in_it_and_no_more(
    clock, monkeypatch, workers, batch_s
):
    """Workers go on loading while others have the processor of who takes batches."""

    def queued(_):
        return b"0 %d 0" % (clock.now * 0.5e9)

    monkeypatch.setattr(Path, "read_bytes", queued)

    told = measure_loading(Scripted(clock, range(1, 30), workers), budget_s=100.0)

    assert told.between.median_s == pytest.approx(batch_s, rel=1e-3)


def test_some_rounds_are_timed_however_short_the_budget(clock):
    """One alone is noise on a busy machine; but what takes very long is left."""
    short = measure_loading(Scripted(clock, range(1, 30), 1), budget_s=1.0)
    long = measure_loading(Scripted(clock, range(4, 120, 4), 1), budget_s=1.0)

    assert len(short.between.seconds) == 3
    assert len(long.between.seconds) == 1


def test_a_budget_is_kept_where_a_batch_takes_long(clock):
    """One that takes longer than all was to take is not loaded again and again."""
    told = measure_loading(Scripted(clock, [3, 6, 9, 12, 15]), budget_s=0.5)

    assert clock.now - 100 < 10
    assert told.batch_s == pytest.approx(3.0, rel=1e-3)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_the_dataset_is_told_in_two_lines(workers):
    """With the batch, the error's first line, and the user's own line."""
    with pytest.raises(LoaderFailed) as caught:
        measure_loading(DataLoader(FailsAt(40, 5), 4, num_workers=workers))

    assert "failed at batch 1: ValueError: item 5 is damaged" in caught.value.problem
    assert caught.value.__cause__ is caught.value.__context__ is None


def test_a_worker_that_dies_is_a_failure():
    """As the system ends one for want of memory."""
    before = children()

    with pytest.raises(LoaderFailed) as caught:
        measure_loading(DataLoader(DiesAt(4000, 9), 4, num_workers=1))

    said = caught.value.problem
    assert "killed by signal" in said or "exited unexpectedly" in said
    assert "want of memory" in caught.value.hint
    assert children() <= before


def test_a_worker_that_hangs_is_given_up():
    """After as long as one is patient."""
    before = children()

    with pytest.raises(LoaderFailed, match="timed out"):
        measure_loading(
            DataLoader(HangsInWorkers(40), 4, num_workers=1), patience_s=1.0
        )

    assert children() <= before
