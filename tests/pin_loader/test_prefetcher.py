"""What a prefetcher is to its user, wherever batches go."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import traceback
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.errors import GpuMagicError
from gpumagic.pin_loader.prefetcher import (
    DevicePrefetcher,
    looking_ahead,
    why_no_stream,
)

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, IterableDataset, TensorDataset  # noqa: E402

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


def broken_after(count, error):
    """So many numbers, and then an error."""
    yield from range(count)
    raise error


@pytest.mark.parametrize("ahead", [0, 1, 2, 5])
def test_an_error_comes_after_the_items_before_it(ahead):
    """An error met ahead is raised in its turn, with the traceback of its own."""
    items = looking_ahead(broken_after(3, ValueError("third")), ahead)

    seen = [next(items) for _ in range(3)]
    with pytest.raises(ValueError, match="third") as caught:
        next(items)

    assert seen == [0, 1, 2]
    assert next(items, "the end") == "the end"
    functions = [each.name for each in traceback.extract_tb(caught.tb)]
    assert "broken_after" in functions


def test_an_interrupt_is_not_put_off():
    """Ctrl-C is raised at once, whatever has been taken ahead."""
    items = looking_ahead(broken_after(3, KeyboardInterrupt()), 5)

    with pytest.raises(KeyboardInterrupt):
        next(items)


def test_an_item_that_was_handed_out_belongs_to_the_caller():
    """Nothing keeps an item once it has been handed out."""

    class Item:
        """Something that can be referred to weakly."""

    items = looking_ahead((Item() for _ in range(3)), 1)
    item = next(items)
    alive = weakref.ref(item)

    del item

    assert alive() is None


# ------------------------------------------------------------------------ its loader


class Squares(IterableDataset):
    """A dataset without a length."""

    def __iter__(self):
        yield from (torch.tensor(float(number**2)) for number in range(4))


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


def test_without_streams_nothing_is_copied_ahead():
    """Apple's MPS has no streams, and says so; CUDA has."""
    assert why_no_stream(torch, "cuda") is None
    assert why_no_stream(torch, "mps") == (
        "mps has no streams that could copy beside the computation"
    )


def test_it_can_be_iterated_again_and_again():
    """Each epoch begins the loader anew; an empty loader gives nothing."""
    prefetcher = DevicePrefetcher(numbers(), "cpu")

    epochs = [[x.tolist() for (x,) in prefetcher] for _ in range(2)]

    assert epochs == [[[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]] * 2
    assert list(DevicePrefetcher([], "cpu")) == []


def test_it_has_the_length_of_its_loader():
    """`len` is the loader's, and so is the error where there is none."""
    assert len(DevicePrefetcher(numbers(), "cpu")) == 3
    with pytest.raises(TypeError):
        len(DevicePrefetcher(DataLoader(Squares()), "cpu"))
    assert len(list(DevicePrefetcher(DataLoader(Squares()), "cpu"))) == 4


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


@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))],  # noqa: S301
    ids=["copy", "deepcopy", "pickle"],
)
def test_copies_of_it_work(again):
    """A copied or pickled prefetcher is one of its own."""
    prefetcher = DevicePrefetcher(numbers(), "cpu", depth=2, several_streams=True)

    other = again(prefetcher)

    assert [x.tolist() for (x,) in other] == [x.tolist() for (x,) in prefetcher]
    assert (other.depth, other.several_streams, len(other)) == (2, True, 3)


def test_it_says_what_it_is():
    """The text names loader, dataset and device, and what is done."""
    assert repr(DevicePrefetcher(numbers(), "cpu")) == (
        "DevicePrefetcher(DataLoader of TensorDataset, cpu, passing through)"
    )
    assert repr(DevicePrefetcher([], "cpu")) == (
        "DevicePrefetcher(list, cpu, passing through)"
    )


@pytest.mark.parametrize("depth", [-1, 1.5, None, True])
def test_a_depth_that_is_none_is_refused(depth):
    """The message says what a depth is."""
    with pytest.raises(GpuMagicError, match="no depth of prefetching"):
        DevicePrefetcher([], "cpu", depth=depth)


@pytest.mark.parametrize("device", ["gpu0", "cuda", "cuda:1", [], "meta"])
def test_a_device_that_is_not_there_is_refused_at_once(device):
    """A wrong name, or a device that this machine lacks, is an error with a hint."""
    if torch.cuda.is_available() and "cuda" in str(device):
        pytest.skip("this machine has CUDA")
    with pytest.raises(GpuMagicError) as caught:
        DevicePrefetcher([], device)

    assert caught.value.hint


def test_random_numbers_are_drawn_as_by_the_loader():
    """Beginning an iteration draws the seed of an epoch where the loader draws it."""

    def after(make):
        torch.manual_seed(3)
        iterator = iter(make(DataLoader(TensorDataset(torch.arange(4)), shuffle=True)))
        drawn = torch.rand(1).item()
        return drawn, [x.item() for (x,) in iterator], torch.rand(1).item()

    assert after(lambda each: DevicePrefetcher(each, "cpu")) == after(lambda each: each)


def test_leaving_early_lets_the_loader_go():
    """After a break nothing keeps the loader's iterator."""
    ended = []

    class Loader:
        def __iter__(self):
            try:
                yield from range(5)
            finally:
                ended.append(True)

    for _ in DevicePrefetcher(Loader(), "cpu"):
        break

    assert ended == [True]


def test_it_can_be_imported_without_torch():
    """Importing the module needs no torch, and imports none."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import gpumagic.pin_loader.prefetcher as module\n"
        "print(module.DevicePrefetcher.__name__)"
    )

    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )

    assert run.stdout.strip() == "DevicePrefetcher", run.stderr
