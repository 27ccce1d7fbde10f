"""Buffers that a loader fills again while they are being copied."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import gpumagic
from gpumagic.devices.opening import open_runtime
from gpumagic.pin_loader import buffer_overwrite

torch.set_num_threads(1)


@pytest.fixture
def runtime(box):
    """The simulated GPU."""
    return open_runtime("sim")


def loader(collate_fn=None, **options):
    """Batches of two, each different from the others."""
    dataset = TensorDataset(torch.arange(4096.0).view(16, 256))
    return DataLoader(dataset, batch_size=2, collate_fn=collate_fn, **options)


class Refilling:
    """Returns the same pinned buffer again and again; the labels are new ones."""

    def __init__(self):
        self.buffer = torch.zeros(2, 256).pin_memory()

    def __call__(self, samples):
        """Fill it, without a word to anybody."""
        torch.stack([sample[0] for sample in samples], out=self.buffer)
        return {"image": self.buffer, "label": torch.zeros(2).pin_memory()}


class Alternating:
    """Returns two pinned buffers in turn."""

    def __init__(self):
        self.buffers = [torch.zeros(2, 256).pin_memory() for _ in range(2)]

    def __call__(self, samples):
        """Fill the one that was returned two batches ago."""
        self.buffers.reverse()
        torch.stack([sample[0] for sample in samples], out=self.buffers[0])
        return self.buffers[0]


def test_a_buffer_that_is_filled_while_it_is_copied(runtime):
    """The address tells of it, and what the copy has yet to read is changed."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = buffer_overwrite.check(
            loader(Refilling()), runtime, device=0, batches=5
        )

    assert found.batches == 5
    assert found.reused == ('batch["image"]',)
    assert {each.path for each in found.damaged} == {'batch["image"]'}
    assert {each.batch for each in found.damaged} == {0, 1, 2, 3}
    assert found.problem is None


def test_a_buffer_that_is_filled_with_the_same_again_is_told_by_its_race(runtime):
    """No sum tells of it; the race is one of what came back, not of its neighbour."""
    alike = DataLoader(
        TensorDataset(torch.ones(16, 256)), batch_size=2, collate_fn=Refilling()
    )

    found = buffer_overwrite.check(alike, runtime, device=0, batches=4)

    assert found.reused == ('batch["image"]',)
    assert {each.path for each in found.damaged} == {'batch["image"]'}


@pytest.mark.parametrize("nbytes", [1, 7, 8, 9, 64, 1001])
@pytest.mark.parametrize("start", [0, 3, 8])
def test_any_byte_that_changes_changes_the_sum(nbytes, start):
    """Also one behind the last whole word, and wherever a tensor begins."""
    memory = torch.arange(start + nbytes, dtype=torch.uint8)
    tensor = memory[start:]
    before = buffer_overwrite._checksum(tensor)

    for place in (0, nbytes // 2, nbytes - 1):
        tensor[place] += 1
        assert buffer_overwrite._checksum(tensor) != before
        tensor[place] -= 1
    assert buffer_overwrite._checksum(tensor) == buffer_overwrite._checksum(
        tensor.clone().to("cpu")
    )


@pytest.mark.parametrize("workers", [0, 1])
def test_an_honest_loader_is_clean(runtime, workers):
    """The pinning of torch gives each batch memory of its own while it is copied."""
    found = buffer_overwrite.check(
        loader(pin_memory=True, num_workers=workers), runtime, device=0, batches=6
    )

    assert found.batches == 6
    assert (found.reused, found.damaged, found.problem) == ((), (), None)


def test_a_buffer_that_comes_back_later_is_not_taken_for_the_same(runtime):
    """Two buffers in turn have other addresses from batch to batch."""
    found = buffer_overwrite.check(loader(Alternating()), runtime, device=0, batches=5)

    assert found.reused == ()
    assert found.damaged == ()


def test_pageable_memory_cannot_be_overwritten_under_way(runtime):
    """Its copies are waited for; that nothing was looked at is said."""
    found = buffer_overwrite.check(loader(), runtime, device=0)

    assert found.damaged is None
    assert "no tensor of its batches is pinned" in found.problem
    assert found.batches == 8


def test_a_machine_that_does_not_look_for_races_is_judged_by_its_bytes():
    """With hazards="off" the bytes alone tell."""
    with gpumagic.simulate("h100", hazards="off"):
        runtime = open_runtime("sim")
        refilled = buffer_overwrite.check(loader(Refilling()), runtime, device=0)
        honest = buffer_overwrite.check(loader(pin_memory=True), runtime, device=0)

    assert refilled.damaged
    assert honest.damaged == ()


def test_a_loader_that_ends_early_and_one_that_is_empty(runtime):
    """What there is counts; of nothing nothing is known."""
    few = buffer_overwrite.check(loader(pin_memory=True), runtime, device=0, batches=99)
    empty = buffer_overwrite.check(
        DataLoader(TensorDataset(torch.zeros(0, 1)), sampler=[]), runtime, device=0
    )

    assert (few.batches, few.damaged) == (8, ())
    assert (empty.batches, empty.damaged) == (0, None)


def test_without_streams_nothing_can_be_delayed():
    """The CPU copies nothing, and is told as the reason."""
    found = buffer_overwrite.check(loader(), open_runtime("cpu"), device=0)

    assert found.damaged is None
    assert "no streams" in found.problem
