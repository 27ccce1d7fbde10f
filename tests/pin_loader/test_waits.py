"""Waits for data, by loader and loop."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing.process
import threading
import weakref
from pathlib import Path

import pytest

from gpumagic.pin_loader import waits as watch_waits
from gpumagic.pin_loader.waits import loop_waits, name_of, waits_watched

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, Dataset  # noqa: E402
from torch.utils.data.dataloader import _BaseDataLoaderIter  # noqa: E402

PATIENCE_S = 300
SLOW_S = 0.5


class Sleepy(Dataset):
    """Numbers, of which some take their time."""

    def __init__(self, count=4, slow=(), clock=None):
        self.count, self.slow, self.clock = count, slow, clock

    def __len__(self):
        return self.count

    def __getitem__(self, row):
        if row >= self.count:
            raise IndexError(row)
        if row in self.slow:
            self.clock.now_ns += round(SLOW_S * 1e9)
        return float(row)


class Clock:
    """Stands still but for what takes its time on it."""

    now_ns = 0

    def perf_counter(self):
        """As Python's."""
        return self.now_ns / 1e9

    def perf_counter_ns(self):
        """Likewise."""
        return self.now_ns


@pytest.fixture
def clock(monkeypatch):
    """The clock by which waits are timed, and on which only what is slow takes time."""
    clock = Clock()
    monkeypatch.setattr(watch_waits, "time", clock)
    return clock


@pytest.fixture
def slow_starts(clock, monkeypatch):
    """Each start of a worker takes its time."""
    start = multiprocessing.process.BaseProcess.start

    def slow_start(process):
        clock.now_ns += round(SLOW_S * 1e9)
        start(process)

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", slow_start)


def watched(loop):
    """What was seen while a function ran."""
    with waits_watched(torch) as seen:
        loop()
    return seen


def run_through(loader):
    """A loop that does nothing."""
    for _ in loader:
        pass


def told(seen, **names):
    """By loader, the number of waits."""
    return [(each.loader, len(each.waits.seconds)) for each in loop_waits(seen, names)]


def test_each_batch_is_one_wait_and_the_slow_one_is_long(clock):
    """Waits are in order, one for each batch; the end of an epoch is none."""
    loader = DataLoader(Sleepy(4, slow={2}, clock=clock), 1)

    seen = watched(lambda: run_through(loader))

    (wait,) = loop_waits(seen, {"train_dl": loader})
    assert (wait.loader, wait.workers) == ("train_dl", 0)
    assert wait.waits.seconds == (0, 0, SLOW_S, 0)


def test_the_line_is_that_of_the_loop():
    """A wait belongs to the `for`, also through what stands between."""
    loader = DataLoader(Sleepy(3), 1)

    def loop():
        for _ in enumerate(loader):
            pass

    (wait,) = loop_waits(watched(loop), {})

    assert wait.line.source == "for _ in enumerate(loader):"
    assert wait.line.where.startswith(f"{Path(__file__).name}, line ")


@pytest.mark.usefixtures("slow_starts")
def test_the_first_wait_has_the_start_of_the_workers():
    """What workers take to start is a part of the wait for the first batch."""
    loader = DataLoader(Sleepy(6), 1, num_workers=2)

    seen = watched(lambda: run_through(loader))

    (only,) = seen
    assert [wait.wait_s for wait in only.waits] == [2 * SLOW_S, 0, 0, 0, 0, 0]


def test_two_loops_over_two_loaders_are_told_by_their_names():
    """Loaders are known by what the notebook calls them, else by their classes."""
    first, second = DataLoader(Sleepy(2), 1), DataLoader(Sleepy(3), 1)

    def loops():
        run_through(first)
        run_through(second)
        run_through(DataLoader(Sleepy(1), 1))

    seen = watched(loops)

    assert told(seen, train_dl=first, val_dl=second) == [
        ("train_dl", 2),
        ("val_dl", 3),
        ("DataLoader of Sleepy", 1),
    ]


def test_other_threads_hold_no_loop():
    """Batches that another thread takes are nobody's wait."""
    loader = DataLoader(Sleepy(3), 1)

    def loop():
        thread = threading.Thread(target=run_through, args=(loader,))
        thread.start()
        thread.join(PATIENCE_S)

    seen = watched(loop)

    assert seen == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, None])
def test_the_loaders_are_as_before(error):
    """However the block ends, torch's methods are torch's again."""
    before = vars(DataLoader)["__iter__"], vars(_BaseDataLoaderIter)["__next__"]

    with contextlib.suppress(ValueError, KeyboardInterrupt), waits_watched(torch):
        assert vars(_BaseDataLoaderIter)["__next__"] is not before[1]
        if error is not None:
            raise error

    after = vars(DataLoader)["__iter__"], vars(_BaseDataLoaderIter)["__next__"]
    assert after == before


def test_no_loader_is_kept_alive():
    """What was seen of a loader holds neither it nor its dataset."""
    loaders = [DataLoader(Sleepy(2), 1)]
    gone = [weakref.ref(loaders[0]), weakref.ref(loaders[0].dataset)]
    seen = watched(lambda: run_through(loaders[0]))

    loaders.clear()
    gc.collect()

    assert [each() for each in gone] == [None, None]
    assert name_of(seen[0], {}) is None
