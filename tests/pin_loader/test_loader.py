"""What is read of a loader, and that reading takes nothing from it."""

from __future__ import annotations

import io
import itertools
import random

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import (  # noqa: E402
    DataLoader,
    IterableDataset,
)

from gpumagic.pin_loader.loader import (  # noqa: E402
    NotALoader,
    facts_of,
    one_shot_reason,
)
from gpumagic.pin_loader.records import LoaderFacts  # noqa: E402
from tests.pin_loader.loader_kinds import (  # noqa: E402
    KINDS,
    Numbers,
    Stream,
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_reading_takes_nothing(kind):
    """No random number is drawn, and the loader holds what it held."""
    loader = kind.make()
    held = dict(vars(loader))
    numbers, of_python = torch.get_rng_state(), random.getstate()

    facts_of(loader)
    one_shot_reason(loader)

    assert vars(loader) == held
    assert torch.equal(torch.get_rng_state(), numbers)
    assert random.getstate() == of_python


def test_a_loader_is_told_as_it_is_set():
    """Every setting is read."""
    loader = DataLoader(Numbers(), 4, num_workers=2, pin_memory=True)

    assert facts_of(loader, "train_dl") == LoaderFacts("train_dl", False, 6, 2, 2, True)


@pytest.mark.parametrize(
    ("thing", "word", "hint"),
    [
        (torch.ones(3), "a Tensor", "name a DataLoader"),
        (DataLoader, "a class", "name a DataLoader"),
        (Numbers(), "Numbers", "DataLoader(x, batch_size=...)"),
        (Stream(), "Stream", "DataLoader(x, batch_size=...)"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_gives_no_batches_is_refused(thing, word, hint):
    """It is said what was found, and what to type instead."""
    with pytest.raises(NotALoader) as refused:
        facts_of(thing, "x")

    assert word in refused.value.problem
    assert "`x`" in refused.value.problem
    assert hint in refused.value.hint


# ------------------------------------------------------------------------- one shot


class Consumed(IterableDataset):
    """Gives what an iterator gives, and holds that."""

    def __init__(self, source):
        self.source = source

    def __iter__(self):
        yield from self.source


class ItsOwnIterator(IterableDataset):
    """Goes on where it stopped."""

    def __iter__(self):
        return self

    def __next__(self):
        raise AssertionError  # never called by us


@pytest.mark.parametrize(
    ("loader", "word"),
    [
        (DataLoader(ItsOwnIterator()), "its own iterator"),
        (DataLoader(Consumed(n for n in range(3))), "`self.source`"),
        (DataLoader(Consumed(io.StringIO("1\n2"))), "`self.source`"),
        (DataLoader(Numbers(), sampler=iter([1, 2])), "its sampler"),
        (DataLoader(Numbers(), batch_sampler=iter([[1, 2]])), "its batch_sampler"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_is_used_up_by_looking_is_told(loader, word):
    """Generators, files and the like have only one pass, and nothing is taken."""
    reason = one_shot_reason(loader)

    assert reason is not None
    assert word in reason


@pytest.mark.parametrize(
    "dataset",
    [
        Stream(),
        Numbers(),
        Consumed([1, 2, 3]),
        Consumed(itertools.cycle([1])),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_begins_anew_is_not_refused(dataset):
    """A dataset that can be gone through again is none of them."""
    assert one_shot_reason(DataLoader(dataset)) is None
