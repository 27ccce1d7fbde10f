"""Random numbers and samplers: after a block they go on as if it had not been."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, SubsetRandomSampler  # noqa: E402

from gpumagic.pin_loader.trial import kept  # noqa: E402
from tests.pin_loader.loader_kinds import (  # noqa: E402
    Numbers,
    ShufflingInPlace,
    seeded,
)


def next_numbers():
    """What Python, numpy and torch draw next."""
    return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: S311


DRAWS = (
    random.random,
    np.random.rand,
    lambda: torch.rand(3),
    lambda: torch.rand(2**12),
)


@given(st.lists(st.sampled_from(DRAWS), max_size=6), st.integers(0, 9))
@settings(deadline=None, max_examples=40)
def test_numbers_go_on_as_without_the_block(draws, seed):
    """Whatever is drawn or seeded within, what comes afterwards is the same."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    with kept():
        expected = next_numbers()

    with kept():
        for draw in draws:
            draw()
        torch.manual_seed(99)

    assert next_numbers() == expected


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_an_error_goes_through_after_all_is_put_back(kind):
    """An error and Ctrl-C are raised as they were, and cost no random number."""
    with kept():
        expected = next_numbers()

    def fail():
        with kept():
            next_numbers()
            raise kind("in the middle")

    with pytest.raises(kind, match="in the middle"):
        fail()

    assert next_numbers() == expected


class Jittered(Numbers):
    """A dataset with transforms that draw from generators of their own."""

    def __init__(self):
        super().__init__()
        self.transforms = [{"noise": np.random.default_rng(0)}]
        self.old = np.random.RandomState(0)
        self.of_python = random.Random(0)  # noqa: S311 -- of an example
        self.of_torch = seeded()

    def __getitem__(self, row):
        noise = self.transforms[0]["noise"].random() + self.old.rand()
        return (
            row
            + noise
            + self.of_python.random()
            + torch.rand(1, generator=self.of_torch)
        )


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(Numbers(), 4, shuffle=True, generator=seeded()),
        lambda: DataLoader(
            Numbers(), sampler=SubsetRandomSampler(range(9), generator=seeded())
        ),
        lambda: DataLoader(Numbers(), sampler=ShufflingInPlace()),
        lambda: DataLoader(Jittered()),
    ],
    ids=["loader's generator", "sampler's generator", "in place", "dataset's"],
)
def test_a_loader_gives_the_same_epoch_again(make):
    """An epoch within the block is not one that is missing afterwards."""
    loader = make()

    with kept(loader):
        expected = [str(batch) for batch in loader]
        other = [str(batch) for batch in loader]
    again = [str(batch) for batch in loader]

    assert again == expected
    assert other != expected


def test_ctrl_c_while_putting_back_hinders_nothing(monkeypatch):
    """What was being put back is put back once more, and Ctrl-C comes through."""
    put_back, calls = random.setstate, []

    def interrupted(state):
        calls.append(state)
        if len(calls) == 1:
            raise KeyboardInterrupt
        put_back(state)

    with kept():
        expected = next_numbers()
    monkeypatch.setattr(random, "setstate", interrupted)

    with pytest.raises(KeyboardInterrupt), kept():
        next_numbers()

    monkeypatch.undo()
    assert next_numbers() == expected
