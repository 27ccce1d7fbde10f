"""Which collective of one rank is which of another, where the truth is known."""

# ruff: noqa: S311 -- noise, no secrets

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

import pytest

from gpumagic.gpu_open.together import matches_of
from tests.gpu_open.ranks import training


def _kept(rank, places):
    """These collectives alone, numbered anew; `hidden_s` keeps which they truly are."""
    return replace(
        rank,
        collectives=tuple(
            replace(rank.collectives[at], number=number, numbered=False, hidden_s=at)
            for number, at in enumerate(places)
        ),
    )


def _same(ranks):
    """Which ranks have each collective that was found, and what it truly is on them."""
    found, _ = matches_of(dict(enumerate(ranks)), by_rank=True)
    same = defaultdict(dict)
    for label, keys in found.items():
        for place, key in keys.items():
            same[key][label] = ranks[label].collectives[place].hidden_s
    return list(same.values())


def _whole(ranks):
    """How many are rightly found on all ranks; none may be wrong."""
    same = [each for each in _same(ranks) if len(each) == len(ranks)]
    assert all(len(set(each.values())) == 1 for each in same)
    return len(same)


@pytest.mark.parametrize(("lacks", "drift"), [(0, 2e-4), (3, 1e-4)])
def test_clocks_may_drift_by_more_than_ends_vary(lacks, drift):
    """A tenth of a millisecond each second or two, over ten seconds."""
    first, second = training(2, steps=130, numbered=False)
    drifting = replace(
        second,
        collectives=tuple(
            replace(
                each,
                start_s=each.start_s * (1 + drift),
                end_s=each.end_s * (1 + drift),
            )
            for each in second.collectives
        ),
    )
    count = len(first.collectives)
    places = range(count)

    found = _whole([_kept(first, places), _kept(drifting, range(lacks, count))])

    assert found > 0.95 * count


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("clocks", ["shared", "apart", "unknown"])
def test_what_each_rank_lacks_at_random_is_found_out(seed, clocks):
    """Nothing is taken for something else, and on one clock little is not found."""
    draw = random.Random(seed)
    ranks = training(3, steps=9, numbered=False, clocks=clocks, seed=seed)
    kept = [[at for at in range(36) if draw.random() > 0.15] for _ in ranks]

    found = _whole([_kept(*each) for each in zip(ranks, kept, strict=True)])

    everywhere = len(set(kept[0]) & set(kept[1]) & set(kept[2]))
    assert found == (everywhere if clocks == "shared" else 0)
