"""A watched cell: its waits by loader and loop, devices that fail, and advice."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from dataclasses import replace
from pathlib import Path

import pytest

from gpumagic.devices.copy_watch import SeenCopy
from gpumagic.devices.cpu import CpuRuntime
from gpumagic.pin_loader import watch_cell
from gpumagic.pin_loader.watch_cell import (
    SeenLoader,
    Wait,
    WatchRun,
    copy_remarks,
    loop_waits,
    name_of,
    waits_watched,
)
from gpumagic.report.places import Places
from tests.pin_loader.conftest import Clock

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, Dataset  # noqa: E402
from torch.utils.data.dataloader import _BaseDataLoaderIter  # noqa: E402

MIB = 1 << 20
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
            self.clock.now += SLOW_S
        return float(row)


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


def test_each_batch_is_one_wait_and_the_slow_one_is_long(monkeypatch):
    """Waits are in order, one for each batch; the end of an epoch is none."""
    clock = Clock()
    monkeypatch.setattr(watch_cell, "time", clock)
    loader = DataLoader(Sleepy(4, slow={2}, clock=clock), 1)

    seen = watched(lambda: run_through(loader))

    (wait,) = loop_waits(seen, {"train_dl": loader})
    assert (wait.loader, wait.workers) == ("train_dl", 0)
    assert wait.waits.seconds == pytest.approx((0, 0, SLOW_S, 0), abs=1e-3)


def test_the_line_is_that_of_the_loop():
    """A wait belongs to the `for`, also through what stands between."""
    loader = DataLoader(Sleepy(3), 1)

    def loop():
        for _ in enumerate(loader):
            pass

    (wait,) = loop_waits(watched(loop), {})

    assert wait.line.source == "for _ in enumerate(loader):"
    assert wait.line.where.startswith(f"{Path(__file__).name}, line ")


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
    assert name_of(seen[0], {}) == ""


def ended(run, error=None):
    """Its report."""
    run.end(error)
    return run.report()


def test_on_the_cpu_waits_are_told_and_nothing_is_copied():
    """Without a device the loop's waits are all there is, and they are told."""
    loader = DataLoader(Sleepy(3), 1)
    run = WatchRun(CpuRuntime, lambda: {"train_dl": loader})
    run.begin()

    run_through(loader)
    report = ended(run)

    (wait,) = report.waits
    assert (wait.loader, len(wait.waits.seconds)) == ("train_dl", 3)
    assert report.copies == ()
    assert report.elapsed_s == report.host_s > wait.total_s


@pytest.fixture
def no_capture(monkeypatch):
    """The stand-in device is no business of a torch that other tests have imported."""
    monkeypatch.setattr("gpumagic.devices.around_cell.is_capturing", lambda _: False)


class Device(CpuRuntime):
    """A device in use that can be broken."""

    kind = "cuda"

    def __init__(self):
        self.broken = None

    def synchronize(self):
        """Raise what is wrong."""
        if self.broken is not None:
            raise self.broken


@pytest.mark.usefixtures("no_capture")
@pytest.mark.parametrize(
    "error", [RuntimeError("CUDA error: no"), KeyboardInterrupt("stop")]
)
def test_an_error_at_the_end_is_kept_for_the_caller(error):
    """It is in the report, nothing stays wrapped, and the caller may raise it."""
    device, before = Device(), vars(_BaseDataLoaderIter)["__next__"]
    run = WatchRun(lambda: device, dict)
    run.begin()
    device.broken = error

    report = ended(run)

    assert run.late_error is error
    assert report.failed == f"{type(error).__name__}: {error}"
    assert vars(_BaseDataLoaderIter)["__next__"] is before
    assert not torch._C._dispatch_has_kernel_for_dispatch_key("aten::copy_", "CUDA")


def copies(mark, count, nbytes=MIB, *, pinned=False, non_blocking=False):
    """Some of one line."""
    each = SeenCopy(mark, nbytes, pinned, non_blocking, 1e-3, 100)
    return [each] * count


LOADER = SeenLoader(lambda: LOADER, "DataLoader", 0, waits=[Wait(None, 0.1, 50)])


@pytest.mark.parametrize(
    ("pinned", "non_blocking", "words", "hint"),
    [
        (False, False, "from pageable memory and waits", "let the loader pin"),
        (True, False, "from pinned memory and waits", "write "),
        (False, True, "non_blocking=True gains nothing there", "let the loader pin"),
    ],
)
def test_each_way_that_holds_the_host_has_its_remark(pinned, non_blocking, words, hint):
    """The remark says what holds the host, and the hint begins with what to do."""
    mark = Places().here()
    seen = copies(mark, 3, pinned=pinned, non_blocking=non_blocking)

    (remark,) = copy_remarks(seen, [LOADER], {"dl": LOADER})

    assert words in remark.text
    assert "3.00 MiB" in remark.text
    assert remark.hint.startswith(hint)


def test_copies_as_they_should_be_have_no_remark():
    """Pinned and not blocking, or before the first batch: there is nothing to say."""
    good = copies(Places().here(), 3, pinned=True, non_blocking=True)
    late = replace(LOADER, waits=[Wait(None, 0.1, 101)])

    assert copy_remarks(good, [LOADER], {}) == []
    assert copy_remarks(copies(Places().here(), 3), [late], {}) == []
