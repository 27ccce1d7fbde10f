"""The known mistakes of prefetchers are seen by the programs that ours has to stand."""

from __future__ import annotations

import random
import warnings

import pytest

import gpumagic
from gpumagic.pin_loader.prefetcher import DevicePrefetcher
from gpumagic.simulator.backend.simulation import DataRace
from tests.pin_loader.known_wrong import WRONG
from tests.pin_loader.prefetch_programs import (
    Consumer,
    Fresh,
    Pooled,
    Program,
    Step,
)

PROGRAMS = 12


def some_programs():
    """The same made-up programs every time."""
    dice = random.Random(1)  # noqa: S311 -- no secret
    for _ in range(PROGRAMS):
        size = dice.choice((64, 4096))
        yield Program(
            tuple(
                Step(
                    numbers=size,
                    stream=dice.randrange(3),
                    before=dice.randrange(3),
                    after=dice.randrange(3),
                    keep=dice.choice((0, 0, 2)),
                    drop_soon=dice.random() < 0.5,
                )
                for _ in range(8)
            )
        )


def is_faulty(make, programs, loader):
    """Whether a prefetcher gives wrong values or leaves a race in a program."""
    with gpumagic.simulate("h100", hazards="poison") as box, warnings.catch_warnings():
        warnings.simplefilter("ignore", DataRace)
        return any(Consumer(box, each).run(make(loader(each))) for each in programs)


@pytest.mark.parametrize("loader", [Fresh, Pooled])
@pytest.mark.parametrize("wrong", WRONG, ids=lambda kind: kind.__name__)
def test_a_known_mistake_is_seen(wrong, loader):
    """A prefetcher with the mistake races or hands out wrong numbers."""
    assert is_faulty(wrong, some_programs(), loader)


@pytest.mark.parametrize("loader", [Fresh, Pooled])
def test_ours_has_none_of_them(loader):
    """The same programs find nothing in ours."""
    assert not is_faulty(DevicePrefetcher, some_programs(), loader)
