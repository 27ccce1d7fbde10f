"""Rebuilt loaders: the same batches from every kind of loader, and no trace of it."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch.utils.data import (  # noqa: E402
    DataLoader,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from gpumagic.pin_loader import same  # noqa: E402
from gpumagic.pin_loader.loader import rebuild  # noqa: E402
from gpumagic.pin_loader.random_state import kept  # noqa: E402
from gpumagic.pin_loader.trial import batches_of  # noqa: E402
from tests.pin_loader.loader_kinds import (  # noqa: E402
    KINDS,
    Noisy,
    Numbers,
    seeded,
)

ENOUGH = 30  # batches: more than any loader here has; an endless one stops there
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def difference(was, now):
    """Between batches, by a digest of each."""
    return same.difference(same.digest_of(was), same.digest_of(now))


def batches_in(loader, epochs=1):
    """The batches of some epochs; each epoch ends, or is cut off."""
    taken = []
    for _ in range(epochs):
        with batches_of(loader) as batches:
            taken.append(list(itertools.islice(batches, ENOUGH)))
    return taken


@every_kind
def test_a_clone_gives_the_same_batches_for_two_epochs(kind):
    """Values, order, classes, length and the state of all generators are the same."""
    old = kind.make()
    new = rebuild(old).loader

    with kept(old):
        expected = batches_in(old, epochs=2)
        number_after = torch.rand(())
    got = batches_in(new, epochs=2)

    assert difference(expected, got) is None
    assert type(new) is type(old)
    assert torch.equal(torch.rand(()), number_after)
    assert 0 < len(got[0]) < ENOUGH


@every_kind
def test_the_settings_asked_for_are_those_of_the_new_loader(kind):
    """Whatever the class, the new loader pins and has as many workers as asked."""
    new = rebuild(kind.make(), pin_memory=True, workers=3, prefetch_factor=5).loader

    assert (new.pin_memory, new.num_workers, new.prefetch_factor) == (True, 3, 5)


def test_the_workers_of_a_persistent_loader_are_not_shared():
    """A new loader has no iterator, and the old one goes on with its own."""
    old = DataLoader(Numbers(), 8, num_workers=1, persistent_workers=True)
    first = list(old)
    mine = old._iterator

    made = rebuild(old, pin_memory=False, prefetch_factor=3)

    assert made.loader._iterator is None
    assert old._iterator is mine
    assert difference(first, list(old)) is None
    mine._shutdown_workers()


def test_a_loader_that_keeps_its_iterator_for_good_is_not_copied():
    """A copy would share it, and move it on."""

    class Endless(DataLoader):
        def __init__(self, *args):
            super().__init__(*args)
            self.iterator = DataLoader.__iter__(self)

    made = rebuild(Endless(Numbers(), 4))

    assert made.loader is None
    assert (
        made.why_not.text == "it cannot be copied: Endless keeps one iterator for good"
    )


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
    new = rebuild(old, pin_memory=drawn["noisy"]).loader

    with kept(old):
        expected = batches_in(old, epochs=2)
        number_after = torch.rand(())

    assert difference(expected, batches_in(new, epochs=2)) is None
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

    made = rebuild(old, pin_memory=True, workers=1)

    assert made.loader is None
    assert "accelerate has prepared it" in made.why_not.text
    assert "non_blocking=True" in made.why_not.hint
