"""What a prefetcher is to its user, wherever batches go."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.errors import GpuMagicError
from gpumagic.pin_loader.prefetcher import (
    DevicePrefetcher,
    looking_ahead,
)

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

# ------------------------------------------------------------------- looking ahead


@settings(deadline=None, max_examples=50)
@given(count=st.integers(0, 8), ahead=st.integers(0, 4))
def test_each_item_is_taken_so_many_items_ahead(count, ahead):
    """All come in order, and before each so many of the next have been taken."""
    taken = []

    def items():
        for number in range(count):
            taken.append(number)
            yield number

    seen = [(number, len(taken)) for number in looking_ahead(items(), ahead)]

    assert seen == [(each, min(count, each + 1 + ahead)) for each in range(count)]


# ------------------------------------------------------------------------ its loader


def numbers(count=6):
    """A loader of numbers, two at a time."""
    return DataLoader(TensorDataset(torch.arange(float(count))), 2)


def test_on_the_cpu_batches_pass_through():
    """Each batch is the loader's own object, fetched when it is asked for."""
    batches = [torch.ones(2), {"a": torch.zeros(1)}, "text"]
    fetched = []

    def load():
        for batch in batches:
            fetched.append(batch)
            yield batch

    prefetcher = DevicePrefetcher(load(), "cpu", depth=3)
    first = next(iter(prefetcher))

    assert prefetcher.passes_through == "batches are on the CPU already"
    assert first is batches[0]
    assert len(fetched) == 1


def test_what_else_is_asked_or_set_is_the_loaders():
    """Attributes are read from the loader and set there, but none of Python's own."""
    loader = numbers()
    prefetcher = DevicePrefetcher(loader, "cpu")

    prefetcher.pin_memory = True

    assert prefetcher.dataset is loader.dataset
    assert (prefetcher.batch_size, prefetcher.num_workers) == (2, 0)
    assert prefetcher.sampler is loader.sampler
    assert loader.pin_memory is True
    assert not hasattr(prefetcher, "state_dict")
    with pytest.raises(AttributeError, match="__array__"):
        prefetcher.__array__  # noqa: B018
    with pytest.raises(AttributeError, match="no_such_word"):
        prefetcher.no_such_word  # noqa: B018
    with pytest.raises(AttributeError):
        prefetcher.device = "cpu"


@pytest.mark.parametrize("device", ["gpu0", "cuda", "cuda:1", [], "meta"])
def test_a_device_that_is_not_there_is_refused_at_once(device):
    """A wrong name, or a device that this machine lacks, is an error with a hint."""
    if torch.cuda.is_available() and "cuda" in str(device):
        pytest.skip("this machine has CUDA")
    with pytest.raises(GpuMagicError) as caught:
        DevicePrefetcher([], device)

    assert caught.value.hint
