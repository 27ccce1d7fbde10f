"""The wrapping of a batch on its way through the pinner, without any pinning."""

from __future__ import annotations

import pickle

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, default_collate  # noqa: E402

from gpumagic.pin_loader.pinner import Adapted, Pinnable, unwrapped  # noqa: E402
from gpumagic.pin_loader.same_batches import difference  # noqa: E402
from tests.pin_loader.kinds_of_batches import Plain, Sample  # noqa: E402


def as_sample(rows):
    """A batch that torch would not pin."""
    return Sample(torch.stack(rows), "word")


def test_only_what_needs_it_is_wrapped():
    """A batch that torch pins as it is, or that cannot be pinned, goes as it is."""
    rows = [torch.ones(2), torch.ones(2)]

    assert type(Adapted(as_sample)(rows)) is Pinnable
    assert type(Adapted(lambda rows: [Plain(rows)])(rows)) is Pinnable
    assert type(Adapted(default_collate)(rows)) is torch.Tensor
    assert type(Adapted(lambda _: Sample("no", 3))(rows)) is Sample


def test_an_unwrapped_batch_is_the_user_s():
    """The batch comes out as the collate_fn made it; others are left alone."""
    rows, bare = [torch.ones(2)], [torch.ones(2)]

    batch = unwrapped(Adapted(as_sample)(rows))

    assert difference(as_sample(rows), batch) is None
    assert unwrapped(bare) is bare
    assert unwrapped(None) is None


def test_what_travels_can_be_pickled():
    """Both the adapted function and its wrapped batches reach other processes."""
    adapted = pickle.loads(pickle.dumps(Adapted(as_sample)))  # noqa: S301
    wrapped = pickle.loads(pickle.dumps(adapted([torch.ones(2)])))  # noqa: S301

    assert adapted.collate_fn is as_sample
    assert difference(unwrapped(wrapped), as_sample([torch.ones(2)])) is None


def test_adapting_twice_is_adapting_once():
    """A rebuilt loader that is rebuilt again is not wrapped in two layers."""
    assert Adapted(Adapted(as_sample)).collate_fn is as_sample
    assert repr(Adapted(as_sample)) == "Adapted(as_sample)"


@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
def test_without_an_accelerator_batches_are_as_ever():
    """Where nothing can be pinned the wrapping is taken off all the same."""
    rows = [torch.full((2,), float(row)) for row in range(4)]
    loader = DataLoader(rows, 2, collate_fn=Adapted(as_sample), pin_memory=True)

    batches = [unwrapped(batch) for batch in loader]

    assert difference([as_sample(rows[:2]), as_sample(rows[2:])], batches) is None
