"""Waits, transfers and blame, held to counting moment by moment."""

# ruff: noqa: S311 -- noise, no secrets

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.report.collectives import (
    Attendance,
    Part,
    clock_offsets,
    odd_ones,
    slowest_of,
    waits_of,
)
from gpumagic.report.events import bridged, length, merged, within

modest = settings(deadline=None, max_examples=100)


@st.composite
def schedules(draw, *, overlap=True, pieces=4):
    """Ranks that work and meet; all leave a collective at once, with what it moves.

    Without overlap the next collective begins after this one has ended. Ranks may work
    on beside them whenever they like, in several pieces.
    """
    count = draw(st.integers(2, 4))
    moves = draw(st.lists(st.integers(0, 6), min_size=1, max_size=5))
    parts = [[] for _ in range(count)]
    free, came_before = [0] * count, [0] * count
    for number, moving in enumerate(moves):
        work = [draw(st.integers(0, 12)) for _ in range(count)]
        since = came_before if overlap else free
        came = [since[rank] + work[rank] for rank in range(count)]
        end = max([*came, *free]) + moving if overlap else max(came) + moving
        for rank in range(count):
            parts[rank].append(Part("0", number, came[rank], end))
        free, came_before = [end] * count, came
    ended = max(free)
    span = st.tuples(st.integers(0, ended), st.integers(1, 8))
    found = {}
    for rank, its in enumerate(parts):
        spans = draw(st.lists(span, max_size=pieces))
        works = merged((at, at + took) for at, took in spans)
        found[rank] = Attendance(
            0,
            free[rank] + draw(st.integers(0, 5)),
            [
                part._replace(beside=within(works, part.arrived_ns, part.ended_ns))
                for part in its
            ],
        )
    return found


def _moments(spans):
    return {at for start, end in spans for at in range(start, end)}


@modest
@given(schedules())
def test_own_waits_moves_and_blame_are_those_of_counting(ranks):
    """At each moment a rank waits, else moves, else works by itself.

    Others have waited for the last one of a collective when the one did that waited
    longest.
    """
    found = waits_of(ranks)

    blamed = {rank: set() for rank in ranks}
    waited = {rank: set() for rank in ranks}
    for number in range(len(ranks[0].parts)):
        parts = {rank: each.parts[number] for rank, each in ranks.items()}
        took = {rank: part.ended_ns - part.arrived_ns for rank, part in parts.items()}
        least = min(took.values())
        waits = {
            rank: {
                at
                for at in range(part.arrived_ns, part.ended_ns - least)
                if at not in _moments(part.beside)
            }
            for rank, part in parts.items()
        }
        if max(took.values()) > least:
            last = min(took, key=lambda rank: (took[rank], rank))
            assert found.latest["0", number].rank == last
            blamed[last] |= max(waits.values(), key=len)
        for rank, moments in waits.items():
            waited[rank] |= moments
            assert _moments(found.waited[rank].get(("0", number), ())) == moments
    for rank, (began, ended, parts) in ranks.items():
        alone = set().union(
            *(
                {*range(part.arrived_ns, part.ended_ns)} - _moments(part.beside)
                for part in parts
            )
        )
        share = found.shares[rank]
        assert share.waits_ns == len(waited[rank])
        assert share.moves_ns == len(alone - waited[rank])
        assert share.own_ns == ended - began - len(alone)
        assert share.blamed_ns == len(blamed[rank])
        assert share.more_ns == 0


@modest
@given(schedules(overlap=False))
def test_without_overlap_it_is_the_truth_that_was_planned(ranks):
    """A wait is until the last one comes, who is named and blamed for the longest.

    A rank that works on beside the collective waits only when it does not, be that at
    the beginning, in the middle or at the end.
    """
    found = waits_of(ranks)

    blamed, waited = dict.fromkeys(ranks, 0), dict.fromkeys(ranks, 0)
    for number in range(len(ranks[0].parts)):
        came = {rank: each.parts[number].arrived_ns for rank, each in ranks.items()}
        last = max(came.values())
        waits = {
            rank: len({*range(at, last)} - _moments(ranks[rank].parts[number].beside))
            for rank, at in came.items()
        }
        named = found.latest["0", number]
        assert named.apart_ns == last - min(came.values())
        if named.rank is not None:
            assert came[named.rank] == last
            blamed[named.rank] += max(waits.values())
        for rank, took in waits.items():
            waited[rank] += took
    assert {rank: each.waits_ns for rank, each in found.shares.items()} == waited
    assert {rank: each.blamed_ns for rank, each in found.shares.items()} == blamed


@modest
@given(schedules(), st.lists(st.integers(-(10**9), 10**9), min_size=4, max_size=4))
def test_clocks_that_are_apart_change_nothing(ranks, set_by):
    """Each rank may count from whenever it likes."""
    moved = {
        rank: Attendance(
            each.began_ns + set_by[rank],
            each.ended_ns + set_by[rank],
            [
                part._replace(
                    arrived_ns=part.arrived_ns + set_by[rank],
                    ended_ns=part.ended_ns + set_by[rank],
                    beside=_later(part.beside, set_by[rank]),
                )
                for part in each.parts
            ],
        )
        for rank, each in ranks.items()
    }

    found, plain = waits_of(moved), waits_of(ranks)
    assert (found.shares, found.latest) == (plain.shares, plain.latest)
    for rank, by_ns in enumerate(set_by):
        for of_moved, of_plain in (
            (found.waiting, plain.waiting),
            (found.moving, plain.moving),
        ):
            its = _later(of_plain.get(rank, ()), by_ns)
            assert of_moved.get(rank, []) == its


def _later(spans, by_ns):
    return [(start + by_ns, end + by_ns) for start, end in spans]


@modest
@given(schedules(), st.data())
def test_one_clock_is_the_truth_whenever_ranks_leave(ranks, data):
    """A rank may leave before the last one comes, or later than all others."""
    left = {
        rank: each._replace(
            parts=[
                part._replace(
                    ended_ns=part.arrived_ns + data.draw(st.integers(0, 30)),
                )
                for part in each.parts
            ]
        )
        for rank, each in ranks.items()
    }
    found = waits_of(left, common_clock=True)

    blamed = {rank: set() for rank in ranks}
    for number in range(len(ranks[0].parts)):
        parts = {rank: each.parts[number] for rank, each in left.items()}
        came = {rank: part.arrived_ns for rank, part in parts.items()}
        last = max(came.values())
        waits = {
            rank: {*range(part.arrived_ns, min(last, part.ended_ns))}
            - _moments(part.beside)
            for rank, part in parts.items()
        }
        for rank, moments in waits.items():
            spans = found.waited[rank].get(("0", number), ())
            assert _moments(spans) == moments
        if min(came.values()) < last:
            blamed[max(came, key=came.get)] |= max(waits.values(), key=len)
    assert {rank: each.blamed_ns for rank, each in found.shares.items()} == {
        rank: len(moments) for rank, moments in blamed.items()
    }


@modest
@given(schedules(pieces=8))
def test_gaps_that_count_as_part_are_told_with_a_bound(ranks):
    """Waits are told at least, and by how much they may be longer at most."""
    bounded = {}
    for rank, each in ranks.items():
        fewer = bridged([part.beside for part in each.parts], 1)
        assert sum(max(len(its) - 1, 0) for its in fewer) <= 1
        bounded[rank] = each._replace(
            parts=[
                part._replace(beside=()).with_work(its, length(part.beside))
                for part, its in zip(each.parts, fewer, strict=True)
            ]
        )
    _hold_bounds(waits_of(ranks).shares, waits_of(bounded).shares)


@modest
@given(schedules(overlap=False))
def test_a_length_alone_tells_the_least_wait(ranks):
    """It is taken to be the beginning; anywhere else there was more waiting."""
    bounded = {
        rank: each._replace(
            parts=[
                part._replace(beside=()).with_work((), length(part.beside))
                for part in each.parts
            ]
        )
        for rank, each in ranks.items()
    }
    exact, found = waits_of(ranks).shares, waits_of(bounded).shares
    _hold_bounds(exact, found)
    assert all(found[rank].own_ns == exact[rank].own_ns for rank in ranks)


def _hold_bounds(exact, found):
    for rank, share in found.items():
        true_ns = exact[rank].waits_ns
        assert share.waits_ns <= true_ns <= share.waits_ns + share.more_ns
        both = [share.own_ns + share.waits_ns + share.moves_ns]
        both += [exact[rank].own_ns + true_ns + exact[rank].moves_ns]
        assert both[0] == both[1]
        assert min(share.own_ns, share.waits_ns, share.moves_ns) >= 0


def _two(*parts_of_second):
    first = Attendance(0, 100, [Part("0", 0, 10, 50), Part("0", 1, 60, 90)])
    return {"a": first, "b": Attendance(0, 100, list(parts_of_second))}


def test_what_one_rank_lacks_tells_nothing_of_waits():
    """Whoever is missing may have been the last, so the others' time is no waiting."""
    found = waits_of(_two(Part("0", 0, 40, 50)))

    assert list(found.latest) == [("0", 0)]
    assert found.untold == 1
    assert found.shares["a"].waits_ns == 30
    assert found.shares["a"].moves_ns == 10 + 30


def test_a_rank_that_took_part_in_nothing_is_missed_where_members_are_known():
    """Else the ranks that took part in anything of the group are all there are."""
    ranks = _two(Part("0", 0, 40, 50)) | {"c": Attendance(0, 100, [])}

    assert waits_of(ranks).untold == 1
    assert waits_of(ranks, members={"0": 3}).untold == 2


def test_what_is_point_to_point_only_moves():
    """A send has no rank that all others wait for."""
    found = waits_of(_two(Part("0", None, 10, 50)))

    assert found.untold == 2
    assert found.shares["b"].moves_ns == 40
    assert found.shares["b"].own_ns == 60


# ------------------------------------------------------------------------ clocks


def _ends(draw, offsets, *, drift=0.0, missing=0.0, wild=0.0):
    moments = [at * 10_000_000 + draw.randrange(10**6) for at in range(60)]
    ends = {}
    for rank, offset in enumerate(offsets):
        its = {}
        for number, at in enumerate(moments):
            if draw.random() >= missing:
                late = draw.randrange(10**9) if draw.random() < wild else 0
                own = at * (1 + drift * rank) - offset + draw.randrange(20_000)
                its["0", number] = round(own) + late
        ends[rank] = its
    return ends


@pytest.mark.parametrize("seed", range(5))
def test_clocks_come_together_in_spite_of_noise_and_what_is_far_out(seed):
    """Seconds apart, they are found to a few microseconds, and within the error."""
    draw = random.Random(seed)
    offsets = [0, 3_000_000_000, -2_500_000_000, 17]

    found = clock_offsets(_ends(draw, offsets, missing=0.1, wild=0.1))

    for rank, offset in enumerate(offsets):
        away = found[rank].ns - found[0].ns - offset
        assert abs(away) < 20_000
        assert abs(away) <= found[rank].error_ns + found[0].error_ns


def test_a_drift_lies_within_the_error():
    """A clock that goes wrong steadily is right in the middle of the time."""
    offsets = [0, 10**9, -(10**9)]
    found = clock_offsets(_ends(random.Random(0), offsets, drift=50e-6))

    assert found[0].ns == 0  # all are to one of them
    at_the_edge_ns = 50e-6 * 2 * 600_000_000 / 2
    away = found[2].ns - found[0].ns + 10**9 + at_the_edge_ns
    assert abs(away) < 30_000
    assert found[2].error_ns > at_the_edge_ns / 3


def test_clocks_are_led_from_group_to_group():
    """Ranks that never meet have a common clock by way of one that meets both."""
    ends = {
        "a": {("0", 0): 100, ("0", 1): 200},
        "b": {("0", 0): 1100, ("0", 1): 1200, ("1", 0): 1500},
        "c": {("1", 0): 500},
        "alone": {("2", 0): 7},
    }

    found = clock_offsets(ends)

    assert found["a"].ns - found["b"].ns == 1000
    assert found["c"].ns - found["b"].ns == 1000
    assert "alone" not in found
    assert clock_offsets({"a": ends["a"], "alone": ends["alone"]}) == {}


# --------------------------------------------------------------------- who is odd


@modest
@given(st.integers(2, 40), st.floats(0.1, 1e9))
def test_equal_ranks_are_never_odd(count, value):
    """Nobody is, where all have the same."""
    values = dict.fromkeys(range(count), value)

    assert odd_ones(values) == []
    assert slowest_of(values, dict.fromkeys(values, 0.0)) is None


def test_two_of_eight_that_are_slow_alike_are_both_odd():
    """One does not hide the other."""
    values = dict.fromkeys(range(8), 100.0) | {2: 130.0, 3: 131.0, 5: 101.0}

    assert odd_ones(values) == [3, 2]


def test_of_two_ranks_it_takes_both_more_work_and_blame():
    """There is no middle of two: the other must have waited for it, and it not."""
    work = {0: 100.0, 1: 130.0}

    assert slowest_of(work, {0: 1.0, 1: 30.0}) == 1
    assert slowest_of(work, {0: 20.0, 1: 30.0}) is None
    assert slowest_of({0: 100.0, 1: 105.0}, {0: 0.0, 1: 30.0}) is None


# ------------------------------------------------------------------------- scale
