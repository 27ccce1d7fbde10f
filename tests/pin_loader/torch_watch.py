"""On the simulated GPU: a cell watched to the byte, and loaders judged right."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from gpumagic.pin_loader.api import watch
from tests.pin_loader.five_programs import PROGRAMS, report_of

MIB = 1 << 20


class Images(Dataset):
    """One MiB each."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, row):
        return torch.full((MIB // 4,), float(row))


@pytest.mark.parametrize("pinned", [False, True], ids=["pageable", "pinned"])
@pytest.mark.parametrize("non_blocking", [False, True], ids=["blocking", "not"])
@pytest.mark.usefixtures("box")
def test_bytes_are_told_by_line_and_way(pinned, non_blocking):
    """Each of the four ways is told apart, with all its bytes, at its line."""
    loader = DataLoader(Images(4), 2, pin_memory=pinned)
    torch.zeros(1, device="sim")

    def train():
        for batch in loader:
            batch.to("sim", non_blocking=non_blocking)

    report = watch(train)

    (line,) = report.copies
    assert line.line.source == 'batch.to("sim", non_blocking=non_blocking)'
    assert (line.times, line.nbytes) == (2, 4 * MIB)
    assert line.pageable_bytes == (0 if pinned else 4 * MIB)
    assert line.blocking == (0 if non_blocking else 2)


def keep_busy(there, count):
    """Work for the device, which takes it longer than the host to ask for."""
    for _ in range(count):
        there += 1


@pytest.mark.usefixtures("box")
def test_our_prefetcher_copies_pinned_and_is_waited_for_under_its_name():
    """A loop over a prefetcher copies nothing itself, and its waits are told once."""
    prefetcher = pytest.importorskip("gpumagic.pin_loader.prefetcher")
    pinned = DataLoader(Images(12), 2, pin_memory=True)
    train_dl_pinned = prefetcher.DevicePrefetcher(pinned, "sim")
    there = torch.zeros(16 * MIB, device="sim")
    keep_busy(there, 1)

    def train():
        for batch in itertools.islice(train_dl_pinned, 6):
            keep_busy(there, 4)
            batch.sum()

    report = watch(train)

    assert [(each.loader, len(each.waits.seconds)) for each in report.waits] == [
        ("train_dl_pinned", 6)
    ]
    assert sum(each.nbytes for each in report.copies) == 12 * MIB
    assert sum(each.pageable_bytes for each in report.copies) == 0


@pytest.mark.usefixtures("box")
@pytest.mark.parametrize(
    "name", ["waiting items", "fast items with workers", "doubled records"]
)
def test_it_is_judged_right(name):
    """Far more workers, none at all, and an error of the user's."""
    report = report_of(name)

    assert PROGRAMS[name].is_right(report), report.headline
