"""What a prefetcher does to its loader: workers, errors, and where it stands."""

from __future__ import annotations

import multiprocessing
import time
import traceback

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from gpumagic.pin_loader.prefetcher import DevicePrefetcher

PATIENCE_S = 300


pytestmark = pytest.mark.usefixtures("box")


class Numbers(Dataset):
    """Rows with their own number; one of them may fail."""

    def __init__(self, count, error=None, fails_at=None):
        self.count, self.error, self.fails_at = count, error, fails_at

    def __len__(self):
        return self.count

    def __getitem__(self, row):
        if row == self.fails_at:
            raise self.error
        return torch.tensor(float(row))


def workers():
    """How many worker processes are alive, once those that end have done so."""
    until = time.monotonic() + PATIENCE_S
    while multiprocessing.active_children() and time.monotonic() < until:
        time.sleep(0.02)
    return len(multiprocessing.active_children())


def values(batches):
    """The numbers of some batches."""
    return [batch.tolist() for batch in batches]


# --------------------------------------------------------------------------- errors


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("processes", [0, 1])
def test_an_error_comes_after_the_batches_before_it(depth, processes):
    """Batches 0, 1 and 2 are handed out, then the error of 3 with its traceback."""
    data = Numbers(6, ValueError("row 3 is broken"), fails_at=3)
    loader = DataLoader(data, 1, num_workers=processes)
    batches = iter(DevicePrefetcher(loader, depth=depth))

    seen = [next(batches) for _ in range(3)]
    with pytest.raises(ValueError, match="row 3 is broken") as caught:
        next(batches)

    assert values(seen) == [[0.0], [1.0], [2.0]]
    text = "".join(traceback.format_exception(caught.value))
    assert "__getitem__" in text
    assert workers() == 0


# -------------------------------------------------------------------------- workers


def test_leaving_early_ends_the_workers():
    """After a break the workers of this epoch end."""
    loader = DataLoader(Numbers(40), 1, num_workers=2)

    for _ in DevicePrefetcher(loader):
        break

    assert workers() == 0


def test_persistent_workers_stay():
    """Workers that the loader keeps are the same in the next epoch."""
    loader = DataLoader(Numbers(8), 1, num_workers=2, persistent_workers=True)
    batches = DevicePrefetcher(loader)
    epochs = []
    for epoch in range(2):
        for _ in batches:
            if epoch == 0:
                break
        epochs.append({child.pid for child in multiprocessing.active_children()})

    loader._iterator._shutdown_workers()

    assert len(epochs[0]) == 2
    assert epochs[0] == epochs[1]


def test_an_interrupt_leaves_no_worker_behind(monkeypatch):
    """Ctrl-C while a batch is fetched ends the workers though its traceback is kept."""
    from torch.utils.data import dataloader

    kind = dataloader._MultiProcessingDataLoaderIter
    original, calls = kind._process_data, []

    def process(self, *args):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(self, *args)

    monkeypatch.setattr(kind, "_process_data", process)
    loader = DataLoader(Numbers(40), 1, num_workers=2)

    with pytest.raises(KeyboardInterrupt) as caught:
        list(DevicePrefetcher(loader))

    assert workers() == 0
    assert "process" in [each.name for each in traceback.extract_tb(caught.tb)]
