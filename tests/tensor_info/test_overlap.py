"""Whether indices of one tensor meet, against every place listed one by one."""

import itertools
from collections import Counter

import pytest

from gpumagic.tensor_info import offsets, overlap
from gpumagic.tensor_info.offsets import Walk, surely_meet
from tests.tensor_info.geometries import flipped, of, places, seeded, some


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
    for plain in some(25_000, 12):
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
