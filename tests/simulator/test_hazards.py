"""Races across streams, views, the host and reused memory are found, and no others."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.simulator import hazards
from gpumagic.simulator.hazards import HOST, Accesses, Tracker
from tests.simulator.brute_force_order import (
    Play,
    SlowTracker,
    bytes_of,
    random_program,
    strided,
)

SIZE = 1024


class Bench:
    """A tracker with two streams, and storages that are used as a whole."""

    def __init__(self):
        self.tracker = Tracker()
        self.main, self.side = self.tracker.new_stream(), self.tracker.new_stream()

    def write(self, stream, storage, place="later", view=None):
        """The races of writing a storage, or a view of it."""
        return self.tracker.operate(stream, (), (whole(storage, view),), place)

    def read(self, stream, storage, place="later", view=None):
        """The races of reading a storage, or a view of it."""
        return self.tracker.operate(stream, (whole(storage, view),), (), place)


def whole(storage, view=None):
    """A storage, or a view of it, as an operand."""
    return (storage, *(view or (0, storage.size_bytes, None)))


@pytest.fixture
def bench():
    """Two streams of one device."""
    return Bench()


@pytest.fixture
def x():
    """A storage that nobody has used."""
    return Accesses(SIZE)


# ------------------------------------------------------------------------- views


VIEWS = st.one_of(
    st.tuples(st.integers(0, 40), st.integers(1, 40)).map(
        lambda pair: (pair[0], sum(pair), None)
    ),
    st.integers(1, 4).flatmap(
        lambda itemsize: st.builds(
            lambda offset, teeth: strided(
                offset, [n for n, _ in teeth], [step for _, step in teeth], itemsize
            ),
            st.integers(0, 60),
            st.lists(st.tuples(st.integers(1, 4), st.integers(-4, 20)), max_size=3),
        )
    ),
)


@settings(max_examples=500, deadline=None)
@given(VIEWS, VIEWS)
def test_overlap_is_having_a_byte_in_common(one, other):
    """The answer for two views is that of comparing them byte by byte."""
    assert hazards.overlap(one, other) == bool(bytes_of(*one) & bytes_of(*other))


def test_large_views_are_told_apart_by_arithmetic():
    """Halves of a matrix of 10,000,000,000 rows are disjoint; shifted ones meet."""
    rows = 10**10
    left, right, middle = (
        strided(start, (rows, 100), (800, 4), 4) for start in (0, 400, 200)
    )
    assert not hazards.overlap(left, right)
    assert hazards.overlap(left, middle)


# ---------------------------------------------------------------------- any program


@settings(max_examples=600, deadline=None)
@given(st.randoms(use_true_random=True))
def test_any_program_races_exactly_where_the_graph_says_so(chance):
    """Each report names the pair that a search through all operations finds."""
    quick, slow = Play(Tracker()), Play(SlowTracker())
    for place, step in enumerate(random_program(chance)):
        found, expected = quick.step(place, *step), slow.step(place, *step)
        assert [race.earlier_place for race in found] == [each for each, _ in expected]
        for race, (_, kinds) in zip(found, expected, strict=True):
            assert race.kind in kinds
            assert race.later_place == place


@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=True))
def test_forgetting_never_makes_up_a_race(chance):
    """With room for hardly anything, what is reported is still a race."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hazards, "_KEPT", 2)
        patch.setattr(hazards, "_FORMER", 2)
        patch.setattr(hazards, "_LEFT", 1)
        quick, slow = Play(Tracker()), Play(SlowTracker(cures=False))
        for place, step in enumerate(random_program(chance)):
            found, real = quick.step(place, *step), slow.step(place, *step)
            assert {race.earlier_place for race in found} <= {each for each, _ in real}


# ------------------------------------------------------------------------- bounds


def test_a_storage_in_many_pieces_keeps_its_latest_accesses(bench):
    """Ten thousand slices need no more room than a hundred; the last are known."""
    x = Accesses(40_000)
    for start in range(0, 40_000, 4):
        bench.read(bench.main, x, view=(start, start + 4, None))
        bench.write(bench.main, x, view=(start, start + 4, None))
    assert max(len(x.reads), len(x.writes)) <= 128
    written = {low for _, low, _, _ in x.writes}
    assert written >= set(range(40_000 - 64 * 4, 40_000, 4))


# ---------------------------------------------------------------------- sentences


def told(bench, race):
    """Problem and hint, with names as a user would type them."""
    names = {bench.main: "torch.cuda.default_stream()", bench.side: "side"}
    return hazards.problem_and_hint(race, names.__getitem__, "In [3], {}".format)


def test_a_race_between_streams_says_what_to_wait_for(bench, x):
    """Both places, both streams, and the wait to type before the later one."""
    bench.write(bench.main, x, "line 1")
    problem, hint = told(bench, *bench.read(bench.side, x, "line 3"))
    assert problem == (
        "In [3], line 3 reads 1.00 KiB on side that In [3], line 1 writes on "
        "torch.cuda.default_stream(), and nothing makes it wait"
    )
    assert hint == (
        "side.wait_stream(torch.cuda.default_stream()) before In [3], line 3"
    )


@pytest.mark.parametrize("pool", ["main", "host"])
def test_reused_memory_says_how_to_keep_it(bench, x, pool):
    """`record_stream` for device memory, a wait for memory of the host."""
    stream = bench.main if pool == "main" else HOST
    bench.read(bench.side, x, "line 1")
    bench.tracker.released(x, 0, SIZE, stream)
    following = bench.tracker.reused(0, SIZE, stream)
    problem, hint = told(bench, *bench.write(stream, following, "line 2"))
    assert "given back while another stream still used them" in problem
    expected = "x.record_stream(side)" if pool == "main" else "side.synchronize()"
    assert hint.startswith(expected)
