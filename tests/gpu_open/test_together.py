"""Ranks put together: which collectives are the same, who is slow, and who waits."""

# ruff: noqa: S311 -- noise, no secrets

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

import pytest

from gpumagic.gpu_open.records import Collective, FileRead, RankTrace
from gpumagic.gpu_open.together import matches_of, together
from tests.gpu_open.ranks import training

PLACES = ["forward", "backward", "input", "collective"]


def _of(rank, collectives):
    return replace(rank, collectives=tuple(collectives))


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("clocks", ["shared", "apart", "unknown"])
def test_a_straggler_is_named_with_where_it_lies(count, where, clocks):
    """Also within backward, where all_reduce makes all wall times equal."""
    by_s = 0.2 if where == "collective" else 0.04
    ranks = training(
        count, steps=6, slow=1, where=where, by_s=by_s, clocks=clocks, seed=count
    )

    found = together(ranks)

    assert found.slowest == 1
    # The first input lies before the first work of the device.
    times = {"collective": 1, "input": 5}.get(where, 6)
    first = found.differences[0]
    assert first.what == {"collective": "backward"}.get(where, where)
    assert first.slow_s - first.median_s == pytest.approx(times * by_s, rel=0.15)
    if where in {"input", "collective"}:
        assert "host late" in {each.what for each in found.differences}
    assert max(found.ranks, key=lambda each: each.blamed_s).rank == 1


def test_equal_ranks_are_never_blamed():
    """Over many draws of noise, with few steps and many, few ranks and many."""
    named = [
        (seed, found.slowest, found.ratio)
        for seed in range(200)
        if (
            found := together(
                training(
                    (2, 3, 4, 5, 8, 16)[seed % 6],
                    steps=2 + seed % 4,
                    noise=0.03,
                    clocks=("shared", "apart", "unknown")[seed % 3],
                    numbered=bool(seed % 2),
                    seed=seed,
                )
            )
        ).slowest
        is not None
    ]

    assert named == []


def test_a_recording_that_begins_sooner_is_not_slow():
    """What lies before the first moment that all share says nothing of a rank."""
    ranks = training(4, steps=4)
    early, its = ranks[2], ranks[2].collectives
    moved = (replace(e, start_s=e.start_s + 0.3, end_s=e.end_s + 0.3) for e in its)
    began = {"length_s": early.length_s + 0.3, "zero_ns": early.zero_ns - 300_000_000}
    ranks[2] = replace(_of(early, moved), **began)

    found = together(ranks)

    assert found.ranks[2].own_s > found.ranks[1].own_s + 0.25
    assert found.slowest is None


def _made(number, rows, **more):
    """A rank by rows of names, beginnings and ends."""
    its = tuple(
        Collective(name, "", at, False, start_s, end_s)
        for at, (name, start_s, end_s) in enumerate(rows)
    )
    file = FileRead(f"rank{number}.json", 1, 1)
    return RankTrace(file, rank=number, collectives=its, **more)


def test_little_work_makes_nobody_slow():
    """A third more of what is one percent of the time is nothing to look into."""
    ends_s = [0.1 * (at + 1) for at in range(10)]
    own_s = [0.001, 0.001, 0.0013, 0.001]
    ranks = [
        _made(n, [("all_reduce", e - 0.1 + own, e) for e in ends_s], length_s=1.0)
        for n, own in enumerate(own_s)
    ]

    found = together(ranks)

    assert found.slowest is None
    assert max(found.ranks, key=lambda each: each.blamed_s).rank == 2


@pytest.mark.parametrize("clocks", ["shared", "apart", "unknown"])
def test_own_waits_and_moves_add_up_to_the_length(clocks):
    """For each rank, whoever is slow; clocks that are seconds apart are not one."""
    for seed, where in enumerate(PLACES):
        found = together(training(4, slow=seed, where=where, clocks=clocks, seed=seed))
        assert found.one_clock == (clocks == "shared")
        for each in found.ranks:
            whole_s = each.own_s + each.waits_s + each.moves_s
            assert whole_s == pytest.approx(each.length_s, abs=1e-8)


@pytest.mark.parametrize("told", [True, False])
def test_groups_of_one_name_are_told_apart(told):
    """By their members, as the file has them; else by when they end."""
    pairs = [training(2, steps=4, slow=1, by_s=0.1), training(2, steps=4, seed=9)]
    ranks = []
    for number, rank in enumerate([*pairs[0], *pairs[1]]):
        members = "[0, 1]" if number < 2 else "[2, 3]"
        group = {"group": "tp", "members": members * told}
        its = (replace(each, **group) for each in rank.collectives)
        ranks.append(replace(_of(rank, its), rank=number))

    found = together(ranks)

    assert (found.matched, found.unmatched) == (32, 0)
    assert found.ranks[2].waits_s < 0.05


@pytest.mark.parametrize(
    ("names", "clocks", "matched"),
    [
        (("send", "send_recv", "recv"), "shared", 6),
        (("reduce",) * 3, "shared", 12),
        (("reduce",) * 3, "apart", 6),
    ],
)
def test_what_tells_nothing_of_waits_is_not_matched(names, clocks, matched):
    """What two do counts as moved; the last to a reduce is told by one clock alone."""
    ranks = [
        _of(
            rank,
            (
                replace(each, name=name if at % 2 else each.name)
                for at, each in enumerate(rank.collectives)
            ),
        )
        for rank, name in zip(training(3, steps=3, clocks=clocks), names, strict=True)
    ]

    found = together(ranks)

    assert (found.matched, found.unmatched) == (matched, 0)
    hosts = [replace(e, length_s=0.0, host_length_s=e.length_s) for e in ranks]
    assert {(e.idle_s, e.host_late_s) for e in together(hosts).ranks} == {(None, None)}


def test_a_broadcast_is_matched_though_its_ends_differ():
    """Its root leaves early: these ends are none to set clocks by."""
    told = []
    for rank in training(3, steps=4, clocks="apart"):
        its = []
        for each in rank.collectives:
            for sooner_s in (0.010, 0.020):
                start_s = each.start_s - sooner_s
                end_s = start_s + (0.001 if rank.rank == 0 else 0.005)
                its.append(
                    replace(each, name="broadcast", start_s=start_s, end_s=end_s)
                )
            its.append(each)
        told.append(_of(rank, (replace(c, number=at) for at, c in enumerate(its))))

    assert together(told).matched == 48


# Two of 128 ranks, their events sampled, so that each lacks others: what NCCL did, in
# microseconds since a common moment (test data of HolisticTraceAnalysis, trace_filter).
_RANK_0 = [
    ("all_to_all", 15085, 30669), ("all_to_all", 45760, 62783),
    ("all_reduce", 216370, 11727), ("all_reduce", 269204, 47652),
    ("all_gather", 506029, 42496), ("all_to_all", 661804, 67827),
    ("all_to_all", 775392, 21124), ("all_reduce", 1051774, 12119),
    ("all_reduce", 1067035, 36158), ("all_gather", 1106598, 63644),
]  # fmt: skip
_RANK_1 = [
    ("all_to_all", 50619, 57924), ("all_to_all", 155050, 41375),
    ("all_reduce", 219672, 8370), ("all_reduce", 433395, 17614),
    ("all_gather", 506113, 42744), ("all_to_all", 622159, 39630),
    ("all_reduce", 820700, 4624), ("all_to_all", 959253, 90771),
    ("all_reduce", 1089363, 13838), ("all_gather", 1107890, 62163),
]  # fmt: skip


def test_two_recorded_ranks_of_which_each_lacks_some():
    """Five are on both: those whose ends fall together; rank 1 came later to each."""
    told = {"world_size": 128, "length_s": 1.23, "zero_ns": 1}
    ranks = [
        _made(
            n, [(name, us / 1e6, (us + took) / 1e6) for name, us, took in rows], **told
        )
        for n, rows in enumerate((_RANK_0, _RANK_1))
    ]

    found = together(ranks)

    assert (found.matched, found.unmatched) == (5, 10)
    # 4,859 + 3,302 + 84 + 22,328 + 1,292 us, by arrival; by duration about as much.
    assert found.ranks[0].waits_s == pytest.approx(31.865e-3, rel=0.02)
    assert found.ranks[1].waits_s < 0.5e-3
    assert found.slowest is None
    assert found.one_clock


# ---------------------------------------------------- which is which, where it is known


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
    its, by = second.collectives, 1 + drift
    moved = (replace(e, start_s=e.start_s * by, end_s=e.end_s * by) for e in its)
    drifting = _of(second, moved)
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
