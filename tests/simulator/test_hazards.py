"""Races across streams, views, the host and reused memory are found, and no others."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.simulator import accesses, hazards, races
from gpumagic.simulator.accesses import Accesses
from gpumagic.simulator.hazards import Tracker
from gpumagic.simulator.races import HOST, Kind
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

    def wait_stream(self, waiting, other):
        """What `waiting.wait_stream(other)` does."""
        self.tracker.wait(waiting, self.tracker.record(other))


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


# -------------------------------------------------------------------- two streams


def test_a_side_stream_that_reads_without_waiting_is_a_race(bench, x):
    """The notes' wrong example: one stream fills, another sums at once."""
    assert not bench.write(bench.main, x, "fill")
    (race,) = bench.read(bench.side, x, "sum")
    assert race == races.Race(
        kind=Kind.READ_AFTER_WRITE,
        earlier_stream=bench.main,
        earlier_place="fill",
        earlier_writes=True,
        later_stream=bench.side,
        later_place="sum",
        later_writes=False,
        low=0,
        high=SIZE,
    )


# ------------------------------------------------------------------- reported once


def test_one_missing_wait_is_one_report(bench):
    """After the first of many tensors the stream counts as having waited."""
    storages = [Accesses(SIZE) for _ in range(10)]
    for storage in storages:
        bench.write(bench.main, storage)
    found = [bench.read(bench.side, storage) for storage in storages]
    assert [len(each) for each in found] == [1] + [0] * 9


def test_two_missing_waits_of_one_operation_are_two_reports(bench, x):
    """An operation that reads what two streams write is told of both, latest first."""
    third, y = bench.tracker.new_stream(), Accesses(SIZE)
    bench.write(bench.main, x, "one")
    bench.write(bench.side, y, "two")
    found = bench.tracker.operate(third, (whole(x), whole(y)), (), "sum")
    assert [race.earlier_place for race in found] == ["two", "one"]


# ----------------------------------------------------------------------- the host


@pytest.mark.parametrize("how", ["event", "stream", "device"])
def test_a_host_read_of_a_non_blocking_copy_must_wait(bench, x, how):
    """The host races with a copy in flight, and not after any way of waiting."""
    tracker = bench.tracker
    bench.write(bench.main, x, "copy")
    (race,) = bench.read(HOST, x, "print")
    assert (race.kind, race.later_stream) == (Kind.READ_AFTER_WRITE, HOST)
    bench.write(bench.main, x, "copy")
    if how == "event":
        tracker.host_waits_for_mark(tracker.record(bench.main))
    elif how == "stream":
        tracker.host_waits_for(bench.main)
    else:
        tracker.host_waits_for_device([bench.main, bench.side])
    assert not bench.read(HOST, x)


def test_every_way_of_waiting_is_told_to_those_who_ask(bench):
    """Whoever must act as soon as the host has waited hears of each wait."""
    tracker, heard = bench.tracker, []
    tracker.after_host_waits.append(lambda: heard.append(len(heard)))
    tracker.host_waits_for_mark(tracker.record(bench.main))
    tracker.host_waits_for(bench.main)
    tracker.host_waits_for_device([bench.main, bench.side])
    assert heard == [0, 1, 2]


def test_the_host_is_behind_a_mark_once_it_has_waited(bench, x):
    """A wait for the event, or for later work of its stream, brings the host there."""
    bench.write(bench.side, x)
    mark = bench.tracker.record(bench.side)
    bench.tracker.host_waits_for(bench.main)
    assert not bench.tracker.host_is_behind(bench.side, mark)
    bench.write(bench.side, x)
    bench.tracker.host_waits_for(bench.side)
    assert bench.tracker.host_is_behind(bench.side, mark)


# ------------------------------------------------------------------------- views


@pytest.mark.parametrize("part", [(0, 512, None), strided(0, (2,), (SIZE - 4,), 4)])
def test_a_write_of_a_part_leaves_the_rest_in_danger(bench, x, part):
    """Only a dense write of everything makes earlier accesses irrelevant."""
    third = bench.tracker.new_stream()
    bench.write(bench.main, x, "all")
    bench.wait_stream(bench.side, bench.main)
    bench.write(bench.side, x, "part", view=part)
    (race,) = bench.read(third, x, view=(512, 600, None))
    assert race.earlier_place == "all"


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
    assert races.overlap(one, other) == bool(bytes_of(*one) & bytes_of(*other))


def test_large_views_are_told_apart_by_arithmetic():
    """Halves of a matrix of 10,000,000,000 rows are disjoint; shifted ones meet."""
    rows = 10**10
    left, right, middle = (
        strided(start, (rows, 100), (800, 4), 4) for start in (0, 400, 200)
    )
    assert not races.overlap(left, right)
    assert races.overlap(left, middle)


def test_a_question_that_takes_too_long_is_answered_with_yes(monkeypatch):
    """Views that cannot be told apart within reason count as overlapping."""
    one = strided(0, (30, 2), (1001, 500), 4)
    other = strided(8, (30, 2), (1001, 500), 4)
    assert not races.overlap(one, other)
    monkeypatch.setattr(races, "_STEPS", 10)
    assert races.overlap(one, other)


# ------------------------------------------------------------------- memory reused


def test_memory_given_back_while_another_stream_uses_it_is_a_race(bench, x):
    """The next owner of the memory writes under the side stream's read."""
    bench.write(bench.main, x, "fill")
    bench.wait_stream(bench.side, bench.main)
    bench.read(bench.side, x, "sum")
    bench.tracker.released(x, 4096, SIZE, bench.main)
    (race,) = bench.write(
        bench.main, bench.tracker.reused(4096, SIZE, bench.main), "fill the next"
    )
    assert (race.kind, race.earlier_place) == (Kind.MEMORY_REUSED, "sum")


REPAIRS = {
    "record_stream": lambda bench, free: free((bench.side,)),
    "a wait before": lambda bench, free: (
        bench.wait_stream(bench.main, bench.side),
        free(),
    ),
    "a wait after": lambda bench, free: (
        free(),
        bench.wait_stream(bench.main, bench.side),
    ),
    "a host wait": lambda bench, free: (
        free(),
        bench.tracker.host_waits_for(bench.side),
    ),
}


def test_danger_outlives_an_owner_that_touches_nothing(bench, x):
    """The third owner races with the first one's access if the second was idle."""
    bench.read(bench.side, x, "sum")
    bench.tracker.released(x, 0, SIZE, bench.main)
    second = bench.tracker.reused(0, SIZE, bench.main)
    bench.tracker.released(second, 0, SIZE, bench.main)
    third = bench.tracker.reused(0, SIZE, bench.main)
    (race,) = bench.write(bench.main, third)
    assert (race.kind, race.earlier_place) == (Kind.MEMORY_REUSED, "sum")


def test_the_latest_use_of_the_former_owner_is_named(bench, x):
    """Of several uses of the same memory the report tells the one to wait for."""
    for place, high in (("first", 1000), ("second", 900), ("third", 1000)):
        bench.read(bench.side, x, place, view=(0, high, None))
    bench.tracker.released(x, 0, SIZE, bench.main)
    following = bench.tracker.reused(0, 512, bench.main)
    (race,) = bench.write(bench.main, following)
    assert race.earlier_place == "third"


@pytest.mark.parametrize("when", ["before", "by the host before", "after"])
def test_nothing_is_left_to_look_through_where_all_is_done(bench, x, when):
    """Giving memory back costs later allocations nothing once nobody uses it."""
    bench.read(bench.side, x)
    if when == "before":
        bench.wait_stream(bench.main, bench.side)
    elif when == "by the host before":
        bench.tracker.host_waits_for(bench.side)
    bench.tracker.released(x, 0, SIZE, bench.main)
    assert not x.reads
    if when == "after":
        assert bench.tracker.former
        bench.tracker.host_waits_for(bench.side)
    assert not bench.tracker.former


def test_the_memory_of_given_back_memory_is_bounded(bench):
    """A program that never waits does not grow without end; the last are known."""
    for address in range(3000):
        x = Accesses(1)
        bench.read(bench.side, x)
        bench.tracker.released(x, address, 1, bench.main)
    assert sum(map(len, bench.tracker.former.values())) <= 1024
    assert bench.write(bench.main, bench.tracker.reused(2999, 1, bench.main))


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
        patch.setattr(hazards, "KEPT", 2)
        patch.setattr(accesses, "_MOST", 2)
        patch.setattr(accesses, "_LEFT", 1)
        quick, slow = Play(Tracker()), Play(SlowTracker(cures=False))
        for place, step in enumerate(random_program(chance)):
            found, real = quick.step(place, *step), slow.step(place, *step)
            assert {race.earlier_place for race in found} <= {each for each, _ in real}


def test_the_next_owner_waits_for_the_last_if_it_runs_elsewhere(bench, x):
    """Memory used on its own stream, then first used on another, needs a wait."""
    bench.write(bench.main, x, "use it")
    bench.tracker.vacated(x, 4096, bench.main)
    owner = bench.tracker.reused(4096, SIZE, bench.main)

    (race,) = bench.write(bench.side, owner, "use what lies there now")

    assert (race.earlier_place, race.later_stream) == ("use it", bench.side)


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


@pytest.mark.parametrize("dense", [True, False])
def test_what_a_newer_write_covers_makes_room_first(bench, dense):
    """When room is short, an old access that still matters outlives newer ones."""
    x, third = Accesses(40_000), bench.tracker.new_stream()
    bench.write(bench.main, x, "old", view=(20_000, 20_004, None))
    for start in range(64, 191):
        bench.write(bench.main, x, start, view=(start, start + 1, None))
    cover = (0, 10_000, None) if dense else strided(0, (2,), (9_999,), 1)
    bench.write(bench.main, x, "cover", view=cover)
    found = bench.read(bench.side, x, view=(20_000, 30_000, None))
    assert [race.earlier_place for race in found] == (["old"] if dense else [])
    (race,) = bench.read(third, x, view=(190, 191, None))
    assert race.earlier_place == ("cover" if dense else 190)


def test_what_the_host_has_waited_for_makes_room_first(bench):
    """When room is short, accesses that can disturb nobody go before older ones."""
    x = Accesses(SIZE)
    bench.read(bench.side, x, "old", view=(SIZE - 1, SIZE, None))
    for start in range(127):
        bench.read(bench.main, x, view=(start, start + 1, None))
    bench.tracker.host_waits_for(bench.main)
    bench.read(bench.main, x, view=(500, 501, None))
    (race,) = bench.write(bench.main, x, view=(600, SIZE, None))
    assert race.earlier_place == "old"


# ---------------------------------------------------------------------- sentences


def told(bench, race):
    """Problem and hint, with names as a user would type them."""
    names = {bench.main: "torch.cuda.default_stream()", bench.side: "side"}
    words = race, names.__getitem__, "In [3], {}".format
    return races.problem(*words), races.hint(*words)


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


def test_a_host_race_says_how_the_host_waits(bench, x):
    """Reading a copy needs a synchronise, refilling a buffer an event or a second."""
    bench.write(bench.side, x, "line 1")
    problem, hint = told(bench, *bench.read(HOST, x, "line 2"))
    assert "on the host that In [3], line 1 writes on side" in problem
    assert hint.startswith("side.synchronize() before In [3], line 2")
    bench.read(bench.side, x, "line 3")
    problem, hint = told(bench, *bench.write(HOST, x, "line 4"))
    assert "In [3], line 4 writes 1.00 KiB on the host" in problem
    assert "event = side.record_event() after In [3], line 3" in hint
    assert "event.synchronize() before In [3], line 4" in hint


def test_a_change_that_nobody_has_seen_says_where_it_was_found(bench):
    """Not the line that changed it, which is not known."""
    race = races.Race(
        kind=Kind.CHANGED_UNSEEN,
        earlier_stream=bench.side,
        earlier_place="line 1",
        earlier_writes=False,
        later_stream=HOST,
        later_place="line 5",
        later_writes=True,
        low=0,
        high=SIZE,
    )
    problem, hint = told(bench, race)
    assert problem == (
        "In [3], line 5 finds that the host changed some of the 1.00 KiB of pinned "
        "memory of In [3], line 1 before they were read on side"
    )
    assert "event.synchronize() before anything fills the buffer again" in hint


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
