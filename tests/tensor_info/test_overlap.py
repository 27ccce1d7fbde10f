"""Which places indices reach, once, twice or in common, against every one listed."""

from itertools import pairwise

import pytest

from gpumagic.tensor_info import overlap
from gpumagic.tensor_info.overlap import Shared, clusters, distinct_elements, shared
from tests.tensor_info.geometries import bytes_of, flipped, of, places, seeded, some

N = 2**15
DISTANCES = (0, 0, 0, 0, 4, 8, 16, -8, 3, -5, 100)


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
    return Shared(bool(common), common, relation)


def _pairs(count, seed):
    chance = seeded(seed)
    turned = (flipped(chance, g) for g in some(count, seed))
    for first, second in pairwise(turned):
        yield first, second, chance.choice(DISTANCES)


def test_distinct_elements():
    """A place that many indices reach counts once."""
    chance, several = seeded(15), 0
    for plain in some(20_000, 15):
        g = flipped(chance, plain)
        assert distinct_elements(g) == len(set(places(g))), g
        several += distinct_elements(g) < g.numel
    assert several > 1000


def test_what_two_tensors_share():
    """Bytes in common and the relation are those that listing all bytes gives."""
    relations = set()
    for case in _pairs(4_000, 16):
        found = shared(*case)
        assert found == _listed(*case), case
        relations.add(found.relation)
    assert len(relations) == 6


@pytest.mark.parametrize("most", [1, 7, 40])
def test_nothing_is_guessed_beyond_the_bounds(monkeypatch, most):
    """With few places marked, what is said is still true; the rest is "at least"."""
    monkeypatch.setattr(overlap, "MOST_PLACES", most)
    undecided = 0
    for first, second, distance_bytes in _pairs(2_500, 18):
        listed = _listed(first, second, distance_bytes)
        found = shared(first, second, distance_bytes)
        undecided += found.elements_overlap is None
        assert found.elements_overlap in {listed.elements_overlap, None}
        assert found.relation in {listed.relation, "unknown"}
        if found.at_least:
            assert 0 < found.shared_bytes <= listed.shared_bytes
        else:
            assert found.shared_bytes in {listed.shared_bytes, None}
        assert distinct_elements(first) in {len(set(places(first))), None}
    assert undecided or most > 1


def test_large_views_of_one_large_matrix():
    """A million million bytes are compared row by row, exactly."""
    whole = of((N, N))
    even, odd = of((N, N // 2), (N, 2)), of((N, N // 2), (N, 2), 1)
    third = of((N, N // 3), (N, 3), 1)
    assert shared(whole, whole.permuted((1, 0)), 0).relation == "identical"
    assert shared(even, odd, 0) == Shared(False, 0, "interleaved")
    assert shared(whole, odd, 0) == Shared(True, 4 * N * N // 2, "contains")
    both = len(set(range(0, N, 2)) & set(range(1, 1 + 3 * (N // 3), 3)))
    assert shared(even, third, 0) == Shared(True, 4 * N * both, "partial")


def test_an_interlocked_giant_is_left_open():
    """What no closed form covers and no mask holds is unknown, not wrong."""
    giant = of((10**5,) * 3, (100_003, 100_019, 1_000_003))
    assert distinct_elements(giant) is None
    assert shared(giant, giant, 0) == Shared(True, None, "identical")


def test_that_two_giants_meet_is_said_with_at_least_how_much():
    """The first ten million places show that elements are shared, and how many."""
    tangled = of((10**4,) * 3, (1001, 1003, 7))
    crop = of((64, 3, 1000, 1000), (3 * 2**20, 2**20, 1024, 1), offset=5)
    found = shared(tangled, crop, 0)
    assert found.elements_overlap
    assert found.at_least
    assert found.shared_bytes > 4_000_000


def test_what_meets_is_one_cluster_and_each_device_counts_for_itself():
    """Directly or by way of others; equal addresses on two devices share nothing."""
    spans = [("cuda:1", 0, 9), ("cuda:0", 5, 12), ("cuda:0", 0, 6), ("cuda:0", 12, 20)]

    found = list(clusters(spans, lambda span: span))

    assert found == [[spans[2], spans[1]], [spans[3]], [spans[0]]]
