"""A loader at a modelled pace: arrivals worked out by hand, a clock that is told."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.pin_loader.bound import Pace, Queue
from gpumagic.pin_loader.loops import PacedLoader


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self):
        self.now = 100.0

    def now_s(self):
        """What it shows."""
        return self.now

    def pass_time(self, seconds):
        """Move it on."""
        self.now += seconds


def fetched(pace, asked):
    """When each batch is in hand, if it is asked for so long after the one before."""
    arrivals, now_s, found = Queue(pace), 0.0, []
    for wait_s in asked:
        now_s = arrivals.fetch(now_s + wait_s)
        found.append(now_s)
    return found


def test_without_workers_each_fetch_loads_and_pins():
    """Loading begins when somebody asks: 2 s and 1 s after each question."""
    assert fetched(Pace(2.0, 1.0), [0, 5, 0]) == [3.0, 11.0, 14.0]


def test_a_worker_loads_while_nobody_asks():
    """Asked late, a batch is there; asked at once, it takes what is left."""
    assert fetched(Pace(2.0, workers=1), [0, 1, 5, 0]) == [2.0, 4.0, 9.0, 9.0]


def test_a_thread_pins_beside_the_workers():
    """The slower of both sets the pace."""
    assert fetched(Pace(2.0, 3.0, workers=1), [0, 0, 0]) == [3.0, 6.0, 9.0]


def test_full_slots_stop_the_workers():
    """Of two slots both are full by 2 s; taking at 10 s lets the next one begin."""
    pace = Pace(1.0, workers=1, prefetch_factor=2)

    # Batch 1 waits since 2 s. Batch 2 has had its slot since 1 s, batch 3 since 10 s.
    assert fetched(pace, [0, 9, 0, 0, 0]) == [1.0, 10.0, 10.0, 11.0, 12.0]


@given(st.floats(0.01, 1.0), st.integers(1, 4), st.integers(2, 4), st.floats(0.01, 3.0))
@settings(max_examples=60, deadline=None)
def test_in_the_long_run_the_slower_one_sets_the_pace(load_s, workers, factor, use_s):
    """A loop that uses each batch for a while takes the longer of using and loading."""
    pace = Pace(load_s, workers=workers, prefetch_factor=factor)

    found = fetched(pace, [use_s] * 200)

    steps = [after - before for before, after in pairwise(found[100:])]
    assert sum(steps) / len(steps) == pytest.approx(max(load_s, use_s), rel=0.02)
    assert all(step >= use_s * (1 - 1e-9) for step in steps)


def test_the_loader_lets_time_pass_and_gives_its_batches_in_turn():
    """Two real batches make an epoch of five, on a clock that only it moves."""
    clock = Clock()
    loader = PacedLoader(
        "ab", Pace(2.0), now_s=clock.now_s, pass_time=clock.pass_time, length=5
    )

    given = list(loader)

    assert given == ["a", "b", "a", "b", "a"]
    assert len(loader) == 5
    assert clock.now == 110.0


def test_two_epochs_begin_anew_each():
    """Workers of a new epoch have prepared nothing."""
    clock = Clock()
    loader = PacedLoader(
        "a",
        Pace(2.0, workers=1),
        now_s=clock.now_s,
        pass_time=clock.pass_time,
        length=1,
    )

    list(loader)
    clock.pass_time(50)
    list(loader)

    assert clock.now == 154.0
