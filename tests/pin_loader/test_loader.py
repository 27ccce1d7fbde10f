"""What is read of a loader, what is rebuilt of it, and what workers could be sent."""

from __future__ import annotations

import io
import itertools
import random
import sys
import threading
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch.utils.data import (  # noqa: E402
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from gpumagic.errors import GpuMagicError  # noqa: E402
from gpumagic.pin_loader import loader as loader_module  # noqa: E402
from gpumagic.pin_loader import prove  # noqa: E402
from gpumagic.pin_loader.loader import (  # noqa: E402
    NotCopied,
    facts_of,
    one_shot_reason,
    rebuild,
    unpicklable,
)
from gpumagic.pin_loader.records import LoaderFacts  # noqa: E402
from gpumagic.pin_loader.trial import batches_of, kept  # noqa: E402
from tests.pin_loader.kinds import (  # noqa: E402
    KINDS,
    Noisy,
    Numbers,
    seeded,
)

ENOUGH = 30  # batches: more than any loader here has; an endless one stops there
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


@every_kind
def test_reading_takes_nothing(kind):
    """The loader holds what it held, and another one has what was asked for."""
    loader = kind.make()
    held = dict(vars(loader))
    numbers, of_python = torch.get_rng_state(), random.getstate()

    facts_of(loader)
    assert one_shot_reason(loader) == ""
    new, _ = rebuild(loader, pin_memory=True, workers=3, prefetch_factor=5)

    assert (new.pin_memory, new.num_workers, new.prefetch_factor) == (True, 3, 5)
    assert vars(loader) == held
    assert torch.equal(torch.get_rng_state(), numbers)
    assert random.getstate() == of_python


def test_a_loader_is_told_as_it_is_set():
    """Every setting is read."""
    loader = DataLoader(Numbers(), 4, num_workers=2, pin_memory=True)

    assert facts_of(loader, "train_dl") == LoaderFacts("train_dl", False, 6, 2, 2, True)


@pytest.mark.parametrize(
    ("thing", "word"),
    [
        (torch.ones(3), "of class Tensor"),
        (DataLoader, "of class type"),
        (Numbers(), "of class Numbers"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_gives_no_batches_is_refused(thing, word):
    """It is said what was found, and what to type instead."""
    with pytest.raises(GpuMagicError) as refused:
        facts_of(thing, "x")

    assert word in refused.value.problem
    assert refused.value.problem.startswith("x is ")
    assert "= DataLoader(dataset, batch_size=...)" in refused.value.hint


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
    assert word in one_shot_reason(loader)


def difference(was, now):
    """Between batches, by a digest of each."""
    return prove.difference(prove.digest_of(was), prove.digest_of(now))


def batches_in(loader, epochs=1):
    """The batches of some epochs; each epoch ends, or is cut off."""
    taken = []
    for _ in range(epochs):
        with batches_of(loader) as batches:
            taken.append(list(itertools.islice(batches, ENOUGH)))
    return taken


def test_the_workers_of_a_persistent_loader_are_not_shared():
    """A new loader has no iterator, and the old one goes on with its own."""
    old = DataLoader(Numbers(), 8, num_workers=1, persistent_workers=True)
    first = list(old)
    mine = old._iterator

    made, _ = rebuild(old, pin_memory=False, prefetch_factor=3)

    assert made._iterator is None
    assert old._iterator is mine
    assert difference(first, list(old)) == ""
    mine._shutdown_workers()


def test_a_loader_that_keeps_its_iterator_for_good_is_not_copied():
    """A copy would share it, and move it on."""

    class Endless(DataLoader):
        def __init__(self, *args):
            super().__init__(*args)
            self.iterator = DataLoader.__iter__(self)

    with pytest.raises(NotCopied, match="Endless keeps one iterator for good"):
        rebuild(Endless(Numbers(), 4))


SAMPLERS = {
    "none": lambda: None,
    "sequential": lambda: SequentialSampler(range(11)),
    "random": lambda: RandomSampler(range(11)),
    "random, own generator": lambda: RandomSampler(range(11), generator=seeded(1)),
    "weighted": lambda: WeightedRandomSampler([0.1, 0.7] * 5, 9),
}


@given(
    batch_size=st.one_of(st.none(), st.integers(1, 12)),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
    sampler=st.sampled_from(sorted(SAMPLERS)),
    seed=st.one_of(st.none(), st.integers(0, 5)),
    noisy=st.booleans(),
    workers=st.sampled_from([0] * 9 + [1]),
)
@settings(deadline=None, max_examples=60)
def test_any_arguments_are_rebuilt(**drawn):
    """Whatever a DataLoader was given, its clone gives the same two epochs."""
    old = loader_with(**drawn)
    new, _ = rebuild(old, pin_memory=drawn["noisy"])

    with kept(old):
        expected = batches_in(old, epochs=2)
        number_after = torch.rand(())

    assert difference(expected, batches_in(new, epochs=2)) == ""
    assert torch.equal(torch.rand(()), number_after)
    assert len(new) == len(old)


def loader_with(  # noqa: PLR0913 -- what was drawn
    *, batch_size, drop_last, shuffle, sampler, seed, noisy, workers
):
    """A DataLoader by arguments that fit together."""
    chosen = SAMPLERS[sampler]()
    return DataLoader(
        Noisy(11) if noisy else Numbers(11),
        batch_size,
        shuffle=shuffle if chosen is None else None,
        sampler=chosen,
        drop_last=drop_last if batch_size else False,
        generator=None if seed is None else seeded(seed),
        num_workers=workers,
    )


def test_a_loader_prepared_by_accelerate_stays_as_it_is():
    """It gives batches on the device already, and a new one would shard them again."""
    library = pytest.importorskip("accelerate.data_loader")
    state = pytest.importorskip("accelerate.state")
    state.PartialState(cpu=True)
    old = library.prepare_data_loader(
        DataLoader(Numbers(), 4), num_processes=1, process_index=0, put_on_device=False
    )

    with pytest.raises(NotCopied) as refused:
        rebuild(old, pin_memory=True, workers=1)

    assert "accelerate has prepared it" in refused.value.problem
    assert "non_blocking=True" in refused.value.hint


class Holding(Numbers):
    """A dataset that holds what it is given."""

    def __init__(self, **held):
        super().__init__()
        vars(self).update(held)


@pytest.mark.parametrize(
    ("held", "what"), [(lambda item: item, "lambda"), (threading.Lock(), "lock")]
)
def test_what_cannot_be_sent_is_told(held, what):
    """The error names it; forked workers have everything already."""
    loader = DataLoader(Holding(steps=[len, held]))

    (found,) = unpicklable(loader, "spawn")

    assert found.text.startswith("it cannot be sent to workers started by spawn")
    assert what in found.text
    assert "fork" in found.hint
    assert unpicklable(loader, "fork") == []


def test_millions_of_names_do_not_hold_it_up(monkeypatch):
    """Pickling is given up after a while, and nothing is said then."""
    monkeypatch.setattr(loader_module, "_LONGEST_PICKLING_S", -1)
    loader = DataLoader(Holding(names=[str(each) for each in range(100_000)]))

    assert unpicklable(loader, "spawn") == []


CELL = """
from torch.utils.data import Dataset

class Numbers(Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): return index
"""


def test_classes_of_a_notebook_cannot_be_imported(monkeypatch):
    """A pickle goes well here, and fails in the worker: that is foreseen."""
    notebook = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    exec(CELL, vars(notebook))  # noqa: S102

    (found,) = unpicklable(DataLoader(notebook.Numbers()), "spawn")

    assert found.text.startswith("workers started by spawn cannot import what this")
    assert "%%writefile ds.py" in found.hint
