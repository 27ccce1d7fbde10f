"""A watched cell: on the CPU, on devices that fail, and what its figures come to."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from gpumagic.devices.copy_watch import SeenCopy
from gpumagic.devices.cpu import CpuRuntime
from gpumagic.errors import DeviceError
from gpumagic.pin_loader.waits import SeenLoader, Wait
from gpumagic.pin_loader.watch_cell import (
    WatchRun,
    copy_remarks,
)
from gpumagic.report.places import Code

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, Dataset  # noqa: E402
from torch.utils.data.dataloader import _BaseDataLoaderIter  # noqa: E402

MIB = 1 << 20


class Numbers(Dataset):
    """Three numbers."""

    def __len__(self):
        return 3

    def __getitem__(self, row):
        if row >= 3:
            raise IndexError(row)
        return float(row)


def cpu_run(**names):
    """A run on the CPU that has begun."""
    run = WatchRun(CpuRuntime, lambda: names)
    run.begin()
    return run


def ended(run, error=None):
    """Its report."""
    run.end(error)
    return run.report(Code("x"))


# ------------------------------------------------------------------- on the CPU


def test_on_the_cpu_waits_are_told_and_nothing_is_copied():
    """Without a device the loop's waits are all there is, and they are told."""
    loader = DataLoader(Numbers(), 1)
    run = cpu_run(train_dl=loader)

    for _ in loader:
        time.sleep(0.01)
    report = ended(run)

    assert [(each.loader, len(each.waits.seconds)) for each in report.waits] == [
        ("train_dl", 3)
    ]
    assert report.copies == ()
    assert report.elapsed_s == report.host_s > report.waits[0].total_s
    assert report.setting.kind == "cpu"


# ------------------------------------------------------------- devices that fail


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
def test_a_device_that_is_broken_before_is_told_and_nothing_is_left():
    """An earlier cell's error is named, and the cell is not watched."""
    device, before = Device(), vars(_BaseDataLoaderIter)["__next__"]
    device.broken = RuntimeError("CUDA error: device-side assert triggered\nmore")

    with pytest.raises(DeviceError, match="device-side assert triggered"):
        WatchRun(lambda: device, dict).begin()

    assert vars(_BaseDataLoaderIter)["__next__"] is before


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


# ------------------------------------------------------------------------ advice


def here():
    """A place of this file."""
    from gpumagic.report.places import Places

    return Places().here()


def copies(mark, count, nbytes=MIB, *, pinned=False, non_blocking=False):
    """Some of one line."""
    each = SeenCopy(mark, nbytes, pinned, non_blocking, 1e-3, 100)
    return [each] * count


LOADER = SeenLoader(lambda: LOADER, "DataLoader", 0, waits=[Wait(None, 0.1, 50)])


@pytest.mark.parametrize(
    ("pinned", "non_blocking", "words", "hint"),
    [
        (False, False, "from pageable memory and waits", "let the loader pin"),
        (True, False, "from pinned memory and waits all the same", "write "),
        (False, True, "non_blocking=True gains nothing there", "let the loader pin"),
    ],
)
def test_each_way_that_holds_the_host_has_its_remark(pinned, non_blocking, words, hint):
    """The remark says what holds the host, and the hint begins with what to do."""
    seen = copies(here(), 3, pinned=pinned, non_blocking=non_blocking)

    (remark,) = copy_remarks(seen, [LOADER], {"dl": LOADER})

    assert words in remark.text
    assert "3.00 MiB" in remark.text
    assert remark.hint.startswith(hint)


def test_copies_as_they_should_be_have_no_remark():
    """Pinned and not blocking, or before the first batch: there is nothing to say."""
    good = copies(here(), 3, pinned=True, non_blocking=True)
    late = replace(LOADER, waits=[Wait(None, 0.1, 101)])

    assert copy_remarks(good, [LOADER], {}) == []
    assert copy_remarks(copies(here(), 3), [late], {}) == []
