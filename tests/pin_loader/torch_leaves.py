"""Batches of real loaders beside a simulated GPU: what is pinned, and by whom."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from gpumagic.devices.opening import open_runtime
from gpumagic.pin_loader.anatomy import anatomy_of
from gpumagic.pin_loader.batch import tensors_in
from gpumagic.pin_loader.prefetcher import DevicePrefetcher, Pinning
from gpumagic.pin_loader.prove import difference, digest_of
from gpumagic.pin_loader.records import LoaderFacts, Pinned
from tests.pin_loader.kinds_of_batches import Plain, Sample

ON = LoaderFacts(pin_memory=True)
ROWS = 4


@pytest.fixture
def runtime(box):
    """The simulated GPU, in use."""
    torch.ones(1, device="sim")
    return open_runtime("sim")


class Rows(Dataset):
    """Four rows, each of its own number."""

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        return torch.full((3,), float(row))


def stacked(rows):
    """The tensor of a batch, whether the loader put rows together or not."""
    return torch.stack(rows) if isinstance(rows, list) else rows


def as_sample(rows):
    """A dataclass."""
    return Sample(stacked(rows), {"twice": [stacked(rows) * 2, "word"]})


def as_object(rows):
    """A plain object inside of a dict."""
    return {"inside": Plain(stacked(rows))}


CUSTOM = [as_sample, as_object]


def batches_of(loader):
    """All batches of a loader, whose workers are gone afterwards."""
    batches = iter(loader)
    try:
        return list(batches)
    finally:
        getattr(batches, "_shutdown_workers", lambda: None)()


def pins_of(batch):
    """Whether each tensor of a batch is pinned."""
    return [tensor.is_pinned() for tensor in tensors_in(batch)]


# -------------------------------------------------------------------------- looking


def test_a_leaf_is_pinned_if_its_memory_is(runtime):
    """Pinned, pageable and moved leaves are told apart by asking each of them."""
    x = torch.ones(4)
    batch = {"pinned": x.pin_memory(), "pageable": x, "there": x.to("sim")}

    found = anatomy_of(batch, runtime, ON)

    assert [leaf.pinned for leaf in found.leaves] == [
        Pinned.PINNED,
        Pinned.PAGEABLE,
        Pinned.ON_DEVICE,
    ]
    assert found.locked_bytes == 32
    assert found.bytes_that_are(Pinned.PINNED) == 16


# ---------------------------------------------------- pinned by the prefetcher


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collate", CUSTOM, ids=lambda each: each.__name__)
def test_what_the_loader_passes_through_is_pinned(runtime, collate, workers):
    """Whatever the class of a batch, its tensors are sent from pinned memory."""
    plain = batches_of(DataLoader(Rows(), 2, collate_fn=collate))
    loader = DataLoader(
        Rows(), 2, collate_fn=collate, pin_memory=True, num_workers=workers
    )
    pins = Pinning(loader)

    sent = [pins(batch) for batch in batches_of(loader)]
    there = list(DevicePrefetcher(loader, "sim"))

    assert all(all(pins_of(batch)) for batch in sent)
    assert difference(digest_of(plain), digest_of(sent)) is None
    assert difference(digest_of(plain), digest_of(there)) is None
    assert not any(any(pins_of(batch)) for batch in plain)


def test_pinning_keeps_aliases_and_what_cannot_be_pinned(runtime):
    """The same tensor twice is pinned once; one on the device stays there."""
    x, there = torch.ones(3), torch.ones(3, device="sim")
    loader = DataLoader(Rows(), 2, pin_memory=True)

    pinned = Pinning(loader)(Sample(x, [x, there, "word"]))

    assert pinned.image is pinned.more[0]
    assert pinned.image.is_pinned()
    assert pinned.more[1] is there
