"""A DataLoader beside the simulated GPU: its workers, its pinning thread."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

pytestmark = pytest.mark.usefixtures("one_thread")

RE_INITIALISE = "Cannot re-initialize CUDA in forked subprocess"


class Numbers(Dataset):
    """Eight rows on the CPU, each of its own number."""

    def __len__(self):
        return 8

    def __getitem__(self, row):
        return torch.full((3,), float(row))


class OnTheDevice(Numbers):
    """The mistake of many: a dataset that moves its rows to the GPU itself."""

    def __getitem__(self, row):
        return super().__getitem__(row).to("sim")


ROWS = torch.arange(8.0).repeat_interleave(3).tolist()


def rows_of(loader):
    """All numbers that a loader gives, by way of the device."""
    batches = iter(loader)
    try:
        return [x for batch in batches for x in batch.to("sim").flatten().tolist()]
    finally:  # the garbage collector would wait for its workers, in some later test
        getattr(batches, "_shutdown_workers", lambda: None)()


@pytest.mark.parametrize(
    ("method", "workers", "pin"),
    [("fork", 2, False), ("fork", 2, True), ("spawn", 1, True)],
)
@pytest.mark.usefixtures("box")
def test_workers_of_a_loader_bring_cpu_data(method, workers, pin):
    """Workers started either way bring their rows, with a pinning thread or not."""
    torch.ones(1, device="sim")
    loader = DataLoader(
        Numbers(),
        4,
        num_workers=workers,
        pin_memory=pin,
        multiprocessing_context=method,
    )

    assert rows_of(loader) == ROWS


@pytest.mark.usefixtures("box")
def test_a_worker_that_uses_the_device_says_what_is_wrong():
    """A forked worker whose dataset uses the device fails with CUDA's sentence."""
    torch.ones(1, device="sim")

    with pytest.raises(RuntimeError, match=RE_INITIALISE):
        rows_of(DataLoader(OnTheDevice(), 4, num_workers=1))
