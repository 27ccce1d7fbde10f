"""How loading is timed, and which numbers of workers are tried and chosen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

from gpumagic.pin_loader import load  # noqa: E402
from gpumagic.pin_loader.load import (  # noqa: E402
    LoaderFailed,
    TooMany,
    chosen_of,
    is_told_apart,
    measure_loading,
    search,
    within_reason,
)
from gpumagic.pin_loader.records import (  # noqa: E402
    Loading,
    Remark,
    Samples,
    Stopped,
    WorkerSearch,
)
from tests.pin_loader.conftest import Clock  # noqa: E402
from tests.pin_loader.kinds import (  # noqa: E402
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
        self.timeout = 0

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
    until_now = clock.now
    alone = measure_loading(Scripted(clock, [3, 6, 9, 12, 15]), budget_s=0.5)

    assert len(short.between.seconds) == 3
    assert len(long.between.seconds) == 1
    assert clock.now - until_now < 10
    assert alone.batch_s == pytest.approx(3.0, rel=1e-3)


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


MS = 1e-3
TOO_MUCH = Remark("too much", "smaller")
NOTHING = (MS, 0.0)  # of a processor, and waited


def loading(workers, batch_ms, cost=None, *, spread=0.02):
    """What was measured; a batch's cost where one thread has loaded it."""
    low, high = batch_ms * (1 - spread), batch_ms * (1 + spread)
    five = (low, low, batch_ms, high, high)
    samples = Samples(tuple(each * MS for each in five))
    cpu_s, waited_s = (0.0, 0.0) if workers or cost is None else cost
    return Loading(samples, workers, start_s=0.01, cpu_s=cpu_s, waited_s=waited_s)


def found(table, *, now, cost=NOTHING, processors=2, **options):
    """What a search makes of a table of measurements: by workers, in milliseconds."""
    tried = []

    def measure(count, _):
        tried.append(count)
        told = table.get(count, TooMany(TOO_MUCH.text, TOO_MUCH.hint))
        if isinstance(told, Exception):
            raise told
        return loading(count, told, cost)

    known = loading(now, table[now], cost)
    options = {"budget_s": 1000.0, **options}
    return search(measure, known, processors=processors, **options), tried


# As they were measured on two processors, and on one, where a tester was misled.
WAITING = {0: 98.0, 2: 49.0, 4: 24.6, 8: 12.7, 16: 6.4, 32: 3.4, 64: 3.3}
FAST = {0: 0.7, 1: 3.9, 2: 3.0, 4: 3.2, 8: 3.5}


@pytest.mark.parametrize("processors", [1, 2])
@pytest.mark.parametrize("now", [0, 2])
def test_waiting_is_not_computing(now, processors):
    """What waits for a disk gains by far more workers than there are processors."""
    waits = (1.6 * MS, 96 * MS)

    told, tried = found(WAITING, now=now, cost=waits, processors=processors)

    assert told.chosen == 32
    assert told.times == pytest.approx(WAITING[now] / WAITING[32])
    assert max(tried) == 64


def test_workers_are_judged_as_if_they_were_kept():
    """Their start takes most of a short epoch, and persistent_workers=True saves it."""

    def starting(count, _=0.0):
        found = loading(count, WAITING[count], (1.6 * MS, 96 * MS))
        return replace(found, share_s=0.05 * count)

    told = search(starting, starting(2), processors=2, budget_s=1000.0)
    now = WorkerSearch((starting(2),), 2, Stopped.FOUND, 2)

    assert (told.chosen, told.gains, told.times < 1) == (32, True, True)
    assert now.changes
    assert not replace(now, trials=(starting(2).kept,)).changes


def test_a_larger_share_of_a_busy_machine_is_no_gain():
    """More workers than can be busy count as no better, whatever was measured."""
    told, _ = found({0: 64.0, 2: 40.0, 4: 30.0}, now=0, cost=(64 * MS, 0), processors=1)

    assert told.chosen == 0


def test_what_there_is_no_time_for_is_not_judged():
    """It ends with what was tried, and says why."""
    told, tried = found(WAITING, now=0, cost=(1.6 * MS, 96 * MS), budget_s=0.0)

    assert (told.chosen, tried, told.stopped) == (0, [], Stopped.BUDGET)


def test_what_would_not_fit_is_not_tried():
    """The limit is told, with what to do."""
    told, _ = found({0: 98.0, 8: 12.7}, now=0, cost=(1.6 * MS, 96 * MS))

    assert (told.chosen, told.stopped) == (8, Stopped.LIMIT)
    assert told.problems == (TOO_MUCH,)


def test_a_failed_trial_ends_the_search():
    """But for none at all: that there is no such process says nothing of more."""
    failing = {0: 98.0, 2: 49.0, 8: LoaderFailed("no", "why"), 16: 6.4}

    told, tried = found(failing, now=0, cost=(1.6 * MS, 96 * MS))
    apart, more = found({2: 49.0, 0: LoaderFailed("no"), 4: 48.0, 1: 98.0}, now=2)

    assert (tried, told.chosen, told.problems[0].text) == ([8], 0, "no")
    assert (more, apart.chosen, apart.problems) == ([0, 4, 1], 2, ())


times_ms = st.floats(0.1, 1000)


@given(
    times_ms, times_ms, times_ms, st.integers(1, 16), st.sampled_from([0, 1, 2, 4, 8])
)
@settings(max_examples=300, deadline=None)
def test_what_is_chosen_is_as_good_as_any_that_was_tried(
    cpu, waited, handing_over, processors, now
):
    """On a machine where it is known how long each number of workers takes."""

    def takes(count):
        if not count:
            return cpu + waited
        return max((cpu + waited) / count, cpu / processors, handing_over)

    table = {count: takes(count) for count in range(65)}
    told, _ = found(table, now=now, cost=(cpu * MS, waited * MS), processors=processors)

    tried = {each.workers for each in told.trials}
    assert table[told.chosen] <= 1.27 * min(table[count] for count in tried)
    assert told.chosen in tried
    assert {0, now} <= tried
    assert len(tried) > 2 or told.chosen == 0 or now == 0


@given(st.lists(times_ms, min_size=1, max_size=6), st.integers(1, 8))
@settings(max_examples=200, deadline=None)
def test_the_fewest_as_good_as_the_best_are_chosen(batch_ms, busy):
    """Checked against all that are believed."""
    trials = {
        2**at if at else 0: loading(2**at if at else 0, each)
        for at, each in enumerate(batch_ms)
    }

    chosen = chosen_of(trials, 0, busy)

    believed = [each for count, each in trials.items() if count <= max(2 * busy - 1, 1)]
    best_s = min(each.batch_s for each in believed)
    assert trials[chosen].batch_s <= 1.1 * best_s
    assert all(
        each.batch_s > 1.1 * best_s for each in believed if each.workers < chosen
    )


def test_two_are_told_apart_by_enough_samples_that_do_not_overlap():
    """Else the first line of a proof would be noise; alike is known, too."""
    few = Loading(Samples((MS,)), 4)

    assert is_told_apart(loading(1, 36.0), loading(4, 9.0))
    assert is_told_apart(loading(1, 9.2), loading(4, 9.0))
    assert not is_told_apart(loading(1, 36.0), few)
    assert not is_told_apart(loading(1, 36.0), loading(4, 22.0, spread=0.9))


def test_four_workers_are_at_most_four_times_as_fast_as_one():
    """What is more comes of a busy machine; what is less stays as it was measured."""
    one, slow, fast = loading(1, 36.0), loading(4, 12.0), loading(4, 6.0)

    assert within_reason(fast, one).between.median_s == pytest.approx(9 * MS)
    assert within_reason(fast, one, 2).between.median_s == pytest.approx(18 * MS)
    assert within_reason(slow, one) == slow
    assert within_reason(loading(0, 1.0), one).between.median_s == MS
