"""Which places indices reach, once, twice or in common, against every one listed."""

import itertools
from collections import Counter
from itertools import pairwise

import pytest

from gpumagic.tensor_info import offsets, overlap
from gpumagic.tensor_info.offsets import Walk, surely_meet
from gpumagic.tensor_info.overlap import (
    Shared,
    distinct_elements,
    holes_in_span,
    shared,
)
from tests.tensor_info.geometries import bytes_of, flipped, of, places, seeded, some

N = 2**15
DISTANCES = (0, 0, 0, 0, 4, 8, 16, -8, 3, -5, 100)


def _overlaps(g):
    found = places(g)
    return len(set(found)) < len(found)


def _random_walks(chance, *, most_walks, most_stops):
    steps = chance.sample(range(1, 40), k=chance.randint(0, most_walks))
    return tuple(Walk(step, chance.randint(2, most_stops)) for step in sorted(steps))


def _sums(walked):
    choices = (range(0, walk.reach + 1, walk.step) for walk in walked)
    return Counter(sum(each) for each in itertools.product(*choices))


def test_decided_exactly_for_small_tensors():
    """Every geometry of few elements gets the answer that listing its places gives."""
    chance = seeded(12)
    answers = {"yes": 0, "no": 0}
    for plain in some(15_000, 12):
        g = flipped(chance, plain)
        found = overlap.inside(g)
        assert found.verdict == ("yes" if _overlaps(g) else "no"), g
        assert found.why
        answers[found.verdict] += 1
    assert min(answers.values()) > 1000


@pytest.mark.parametrize(
    ("size", "stride", "verdict", "why"),
    [
        ((3, 5), (1, 0), "yes", "dim 1 has stride 0: its 5 indices are one"),
        (
            (4, 3),
            (1, 1),
            "yes",
            "1 step of dim 0 and 1 step of dim 1 end in the same place",
        ),
        (
            (9, 9),
            (4, 6),
            "yes",
            "3 steps of dim 0 and 2 steps of dim 1 end in the same place",
        ),
        ((3, 2), (4, 6), "no", "no two sums of the strides are equal"),
        (
            (2, 2, 2),
            (3, 5, 8),
            "yes",
            "steps along several dims together lead to one place",
        ),
        (
            (3, 3, 3),
            (7, 9, 8),
            "yes",
            "steps along several dims together lead to one place",
        ),
        ((6, 4), (1, 6), "no", "each stride is longer than all shorter ones can reach"),
        (
            (3, 1, 2),
            (1, 2, 3),
            "no",
            "each stride is longer than all shorter ones can reach",
        ),
        ((1, 1), (0, 0), "no", "there are no two elements"),
    ],
)
def test_the_reason_is_named(size, stride, verdict, why):
    """A verdict says which dims meet after how many steps, or why none can."""
    assert overlap.inside(of(size, stride)) == overlap.Overlap(verdict, why)


def test_more_indices_than_places_must_meet():
    """Where there are fewer places than indices, no search is needed."""
    big = of((10**5,) * 3, (100_003, 100_019, 1_000_003))
    found = overlap.inside(big)
    assert found.verdict == "yes"
    assert found.why.startswith("1000000000000000 indices have only")


def test_too_hard_is_said_to_be_so(monkeypatch):
    """What cannot be searched within bounds is not decided rather than guessed."""
    monkeypatch.setattr(offsets, "MOST_WORK", 0)
    monkeypatch.setattr(offsets, "MOST_BITS", 0)
    undecided = 0
    for g in some(4_000, 13):
        verdict = overlap.inside(g).verdict
        assert verdict in {"yes" if _overlaps(g) else "no", "not decided"}, g
        undecided += verdict == "not decided"
    assert undecided > 10


def test_meetings_are_counted_as_if_listed():
    """The closed forms count the same pairs that trying all of them does."""
    chance = seeded(14)
    met = 0
    for bounds in [{"most_walks": 1, "most_stops": 60}] * 2_000 + [
        {"most_walks": 2, "most_stops": 25},
        {"most_walks": 3, "most_stops": 7},
    ] * 200:
        first = _random_walks(chance, **bounds)
        second = _random_walks(chance, **bounds)
        distance = chance.randint(-200, 200)
        starts, ends = _sums(first), _sums(second)
        expected = sum(ways * ends[at - distance] for at, ways in starts.items())
        assert offsets.shared_offsets(first, second, distance) == expected
        met += expected > 0
        if surely_meet(first, second, distance):
            assert expected
    assert met > 300


def test_rows_of_two_walks_at_once_are_counted():
    """Where both tensors take both steps many times, the pairs are still exact."""
    both = (Walk(2, 300), Walk(3, 200))
    ways = _sums(both)
    expected = sum(count * ways[at - 7] for at, count in ways.items())
    assert offsets.shared_offsets(both, both, 7) == expected


def test_splitting_into_rows_keeps_the_places():
    """A long walk is split where the other tensor's rows end, if that fits."""
    assert offsets.split_at((Walk(2, 12),), [6]) == (Walk(2, 3), Walk(6, 4))
    assert offsets.split_at((Walk(2, 11),), [6]) == (Walk(2, 11),)
    assert offsets.split_at((Walk(1, 6), Walk(3, 2)), [3]) == (Walk(1, 6), Walk(3, 2))


@pytest.mark.parametrize("stops", [10**9, 5_000])
def test_too_many_choices_are_not_tried(stops):
    """Where too many choices are left, or too many closed forms, there is no count."""
    wide = (Walk(7, 10**9),)
    assert offsets.shared_offsets(wide, (Walk(11, 10**9), Walk(13, stops)), 0) is None


def test_both_orders_of_trying_count_the_same(monkeypatch):
    """If trying the long steps first is too much, the wide ones are kept for last."""
    first = (Walk(1, 2), Walk(6, 5_000))
    second = (Walk(2, 20_000),)
    plain = offsets.shared_offsets(first, second, 0)
    monkeypatch.setattr(offsets, "MOST_WORK", 100)
    assert offsets.shared_offsets(first, second, 0) == plain == 5_000


def _listed(first, second, distance_bytes):
    """What is shared by two tensors, byte by byte."""
    one, other = bytes_of(first), bytes_of(second, distance_bytes)
    common = len(one & other)
    relation = "partial"
    if not one or not other or max(one) < min(other) or max(other) < min(one):
        relation = "disjoint"
    elif one == other:
        relation = "identical"
    elif common == 0:
        relation = "interleaved"
    elif common == len(other):
        relation = "contains"
    elif common == len(one):
        relation = "contained"
    return Shared("yes" if common else "no", common, relation)


def _pairs(count, seed):
    chance = seeded(seed)
    turned = (flipped(chance, g) for g in some(count, seed))
    for first, second in pairwise(turned):
        yield first, second, chance.choice(DISTANCES)


def test_distinct_elements_and_holes():
    """A place that many indices reach counts once; what none reaches is a hole."""
    chance = seeded(15)
    for plain in some(10_000, 15):
        g = flipped(chance, plain)
        found = set(places(g))
        span = max(found) - min(found) + 1 if found else 0
        assert distinct_elements(g) == len(found), g
        assert holes_in_span(g) == span - len(found), g


def test_what_two_tensors_share():
    """Bytes in common and the relation are those that listing all bytes gives."""
    relations = set()
    for first, second, distance_bytes in _pairs(4_000, 16):
        found = shared(first, second, distance_bytes)
        assert found == _listed(first, second, distance_bytes), (
            first,
            second,
            distance_bytes,
        )
        relations.add(found.relation)
    assert len(relations) == 6


def test_views_of_one_matrix():
    """Rows, columns, crops and steps of one matrix share what they have in common."""
    chance = seeded(17)
    for _ in range(1_500):
        cuts = [_cut(chance) for _ in range(2)]
        assert shared(*cuts, 0) == _listed(*cuts, 0), cuts


def _cut(chance):
    """A rectangle out of a matrix of 24 by 36, with a step along each dim."""
    size, stride, offset = [], [], 0
    for whole, step in ((24, 36), (36, 1)):
        start, by = chance.randrange(whole - 12), chance.choice((1, 1, 2, 3))
        offset += start * step
        size.append(chance.randint(1, (whole - start) // by))
        stride.append(step * by)
    g = of(size, stride, offset)
    return g.permuted((1, 0)) if chance.random() < 0.5 else g


def test_nothing_is_guessed_beyond_the_bounds(monkeypatch):
    """With no work allowed, what is said is still true and the rest is unknown."""
    monkeypatch.setattr(offsets, "MOST_WORK", 0)
    monkeypatch.setattr(offsets, "MOST_BITS", 0)
    monkeypatch.setattr(overlap, "MOST_BITS", 0)
    unknown = 0
    for first, second, distance_bytes in _pairs(2_500, 18):
        found = shared(first, second, distance_bytes)
        listed = _listed(first, second, distance_bytes)
        assert found.elements_overlap in {listed.elements_overlap, "not decided"}
        assert found.shared_bytes in {listed.shared_bytes, None}
        assert found.relation in {listed.relation, "unknown"}
        unknown += found.relation == "unknown"
    assert unknown > 100


def test_bits_and_closed_forms_agree(monkeypatch):
    """Small tensors are told apart bit by bit where the closed forms give up."""
    monkeypatch.setattr(offsets, "MOST_WORK", 0)
    for first, second, distance_bytes in _pairs(3_000, 19):
        listed = _listed(first, second, distance_bytes)
        assert shared(first, second, distance_bytes) == listed


def test_large_views_of_one_large_matrix():
    """A million million bytes are compared by closed forms, exactly."""
    whole = of((N, N))
    even, odd = of((N, N // 2), (N, 2)), of((N, N // 2), (N, 2), 1)
    third = of((N, N // 3), (N, 3), 1)
    assert shared(whole, whole.permuted((1, 0)), 0).relation == "identical"
    assert shared(even, odd, 0) == Shared("no", 0, "interleaved")
    assert shared(whole, odd, 0) == Shared("yes", 4 * N * N // 2, "contains")
    both = len(set(range(0, N, 2)) & set(range(1, 1 + 3 * (N // 3), 3)))
    assert shared(even, third, 0) == Shared("yes", 4 * N * both, "partial")


def test_large_windows_are_counted_once():
    """Overlapping windows over a million million elements touch each of them once."""
    windows = of((10**12, 1024), (1, 1))
    assert distinct_elements(windows) == 10**12 + 1023
    assert holes_in_span(windows) == 0
    assert distinct_elements(of((10**6, 10**6), (6, 4))) == 5 * 10**6 - 6


def test_large_groups_of_dims_that_cannot_meet_are_counted_apart():
    """Two dims that overlap and two far longer ones that do multiply."""
    lone = of((10**5, 10**5), (4, 6))
    both = of((10**5,) * 4, (4, 6, 4 * 10**7, 6 * 10**7))
    assert distinct_elements(lone) == 5 * 10**5 - 6
    assert distinct_elements(both) == (5 * 10**5 - 6) ** 2


def test_an_interlocked_giant_is_left_open():
    """What no closed form covers and no table holds is unknown, not wrong."""
    giant = of((10**5,) * 3, (100_003, 100_019, 1_000_003))
    assert distinct_elements(giant) is None
    assert holes_in_span(giant) is None
    assert shared(giant, giant, 0) == Shared("yes", None, "identical")


def test_that_two_giants_meet_is_said_even_if_not_how_often():
    """A few tries may show that elements are shared although not how many."""
    tangled = of((10**4,) * 3, (1001, 1003, 7))
    crop = of((64, 3, 1000, 1000), (3 * 2**20, 2**20, 1024, 1), offset=5)
    assert shared(tangled, crop, 0) == Shared("yes", None, "unknown")


def test_another_dtype_over_the_same_bytes():
    """Halves of elements are shared where one dtype is wider than the other."""
    floats = of((8,), (2,), itemsize=4)
    halves = of((16,), (2,), itemsize=2)
    assert shared(floats, halves, 0) == Shared("yes", 16, "partial")
    assert shared(floats, halves, 2) == Shared("yes", 16, "partial")
    assert shared(of((16,), itemsize=4), halves, 0) == Shared("yes", 32, "contains")


def test_nothing_is_shared_with_an_empty_tensor():
    """A tensor without elements touches nothing."""
    assert shared(of((0, 3)), of((4,)), 0) == Shared("no", 0, "disjoint")
    assert distinct_elements(of((0, 3))) == holes_in_span(of((0, 3))) == 0
