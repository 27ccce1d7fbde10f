"""The proof that a rebuilt loader gives the same, and how both loops are run."""

from __future__ import annotations

import copy
import itertools
import os
from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, IterableDataset  # noqa: E402

from gpumagic.pin_loader.loader import clone  # noqa: E402
from gpumagic.pin_loader.prove import (  # noqa: E402
    _affordable,
    _pairs,
    compare,
    digest_of,
    given_by_all_workers,
    is_given_twice,
)
from tests.pin_loader.kinds import (  # noqa: E402
    KINDS,
    Noisy,
    Numbers,
    Stream,
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_what_was_rebuilt_is_the_same(kind):
    """Every kind of loader is the same when rebuilt, and is not moved on itself."""
    old = kind.make()
    numbers, held = torch.get_rng_state(), dict(vars(old))

    found = compare(old, clone(old, pin_memory=True), batches=30)

    assert (found.same, found.difference, found.problem) == (True, "", "")
    assert found.batches > 1
    assert torch.equal(torch.get_rng_state(), numbers)
    assert vars(old) == held


def test_another_value_is_found():
    """The batch and the place in it are told."""
    old = DataLoader(Numbers(), 4)
    new = copy.copy(old)
    new.collate_fn = collate_with_a_slip

    found = compare(old, new, batches=30)

    assert (found.same, found.batches) == (False, 1)
    assert found.difference == 'batch 1: batch["number"]: other values'


def collate_with_a_slip(rows):
    """Loses one of the numbers."""
    batch = torch.utils.data.default_collate(rows)
    batch["number"][batch["number"] == 5] = -1
    return batch


def test_other_seeds_of_more_workers_are_no_difference():
    """With as many workers as before all values are the same: that is the proof."""
    old = DataLoader(Noisy(), 8, shuffle=True)

    found = compare(old, clone(old, workers=2), batches=30)

    assert found.same is True
    assert "with 2 workers instead of 0" in found.problem


class Unrepeatable(Numbers):
    """Draws from a source that nobody can put back."""

    def __getitem__(self, row):
        return row, int.from_bytes(os.urandom(6), "big")


def test_values_that_never_repeat_cannot_be_compared():
    """Only the order can, and that is what is said."""
    old = DataLoader(Unrepeatable(), 4, shuffle=True)

    found = compare(old, clone(old), batches=30)

    assert not found.same
    assert not found.difference
    assert "gives other values each time" in found.problem


class Whole(IterableDataset):
    """Each worker goes through all of it, in its own order or in the same."""

    def __init__(self, rows=40, *, shuffled=False, alike=False):
        self.rows, self.shuffled, self.alike = rows, shuffled, alike

    def __iter__(self):
        order = list(range(self.rows))
        if self.shuffled:
            torch.manual_seed(torch.utils.data.get_worker_info().id)
            order = torch.randperm(self.rows).tolist()
        return (torch.tensor(0 if self.alike else row) for row in order)


@pytest.mark.parametrize(
    ("dataset", "twice"),
    [
        (Whole(shuffled=True), True),
        (Whole(alike=True), None),
        (Stream(40), False),
    ],
    ids=["shuffled", "alike", "shared"],
)
def test_workers_that_each_give_everything_are_found(dataset, twice):
    """By the records of an epoch's beginning; where these tell nothing, nothing is."""
    loader = DataLoader(dataset, 4, num_workers=2)
    numbers = torch.get_rng_state()

    assert given_by_all_workers(loader, enough_s=10.0) is twice
    assert torch.equal(torch.get_rng_state(), numbers)


@given(st.integers(2, 5), st.integers(6, 60), st.integers(1, 100), st.booleans())
@settings(max_examples=100, deadline=None)
def test_records_tell_who_shares_out(workers, rows, taken, shares):
    """Whatever the number of workers, in the order in which loaders hand over."""
    given_by = [
        range(at, rows, workers) if shares else range(rows) for at in range(workers)
    ]
    rounds = itertools.zip_longest(*given_by)
    every = [row for turn in rounds for row in turn if row is not None]
    digests = [digest_of(row) for row in every[:taken]]
    fewest = len(digests) // workers

    found = is_given_twice(digests, workers, ended=taken >= len(every))

    if fewest >= 3:
        assert found is not shares
    else:
        assert found in (None, not shares)


@pytest.mark.parametrize(
    ("budget_s", "workers", "steps"),
    [
        (1.32, 1, 10),  # twelve runs of 10 steps of 10 ms, and one that is dropped
        (1.68, 1, 13),
        (60.0, 1, 20),  # more than so many tell nothing more
        (1.32, 4, 12),  # whole rounds of four workers
    ],
)
def test_six_pairs_of_runs_fit_into_the_budget(budget_s, workers, steps):
    """As many steps as there is time for, in whole rounds of the workers."""
    loop = SimpleNamespace(round=workers, ahead=3)

    assert _affordable([loop, loop], 0.010, budget_s + 1e-6) == steps


def test_the_order_of_runs_is_a_b_b_a():
    """What drifts is shared out among both, and each pair tells how far it has come."""
    ran, told = [], []

    def loop(name):
        return SimpleNamespace(run=lambda steps: ran.append(name) or steps)

    loops = [loop("A"), loop("B")]
    pairs = _pairs(loops, 4, 1000.0, told.append)

    assert "".join(ran[2:10]) == "ABBAABBA"
    assert set(pairs) == {(4, 4)}
    assert told == [(each + 1) / len(pairs) for each in range(len(pairs))]
    assert len(_pairs(loops, 4, 0.0, told.append)) == 1
