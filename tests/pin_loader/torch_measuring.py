"""What a batch costs on its way to a simulated GPU."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from gpumagic.devices.opening import open_runtime
from gpumagic.pin_loader.feed import measure_feed
from gpumagic.pin_loader.records import Loading, Samples

MS = 1e-3
ROWS, WIDTH = 8, 1 << 17  # a batch of 4 MiB: 0.69 ms pageable, 0.075 ms pinned


@pytest.fixture(autouse=True)
def clock(unhurried):
    """As many pairs are run as a machine has time for that has nothing else to do."""
    return unhurried


@pytest.fixture
def runtime(box):
    """The simulated GPU."""
    return open_runtime("sim")


def loader(*, pin_memory=False, count=64, **options):
    """Batches of 4 MiB."""
    dataset = TensorDataset(torch.zeros(count, 1).expand(count, WIDTH))
    return DataLoader(dataset, batch_size=ROWS, pin_memory=pin_memory, **options)


def test_each_part_is_measured_as_the_model_has_it(runtime):
    """Three ways to copy, and a stand-in as long as the slowest part."""
    batch = next(iter(loader()))
    known = Loading(Samples((2 * MS,) * 3), 0)

    found = measure_feed(batch, runtime, 0, load=known, budget_s=1.0)

    pageable = found.copy(pinned=False, blocking=True)
    pinned = found.copy(pinned=True, blocking=False)
    assert len(found.copies) == 3
    assert pageable.host.median_s > 5 * pinned.device.median_s
    assert pinned.host.median_s < pinned.device.median_s
    assert found.step.synthetic
    assert found.step.samples.median_s == pytest.approx(2 * MS, rel=0.05)
