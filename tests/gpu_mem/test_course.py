"""How much was in use from step to step: the figures of a curve."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpumagic.devices.memory_history import MemoryEvent, Spot
from gpumagic.gpu_mem.lines import course_of
from tests.gpu_mem.test_lines import CELL, programs


def followed(events, before=0, pieces=None):
    """The course of these events on one device."""
    return course_of(
        0,
        events,
        before_bytes=before,
        in_cell=lambda file: file == CELL,
        pieces=pieces or {},
    )


def rows(course):
    """Whose what was at the peak."""
    return {(each.name, each.number, each.from_before): each.nbytes for each in course}


@settings(deadline=None, max_examples=200)
@given(programs(), st.integers(0, 500))
def test_each_level_is_a_sum_of_what_went_before(events, start):
    """So many entries as there are steps; what was in use at the peak comes to it."""
    changes = [each.nbytes if each.taken else -each.nbytes for each in events]
    levels = [start + sum(changes[:count]) for count in range(len(events) + 1)]

    course = followed(events, start)

    assert list(course.highest_bytes) == levels
    assert course.lowest_bytes == course.highest_bytes
    assert course.peak_bytes == max(levels)
    assert sum(each.nbytes for each in course.at_peak) == course.peak_bytes


def test_many_steps_keep_their_extremes():
    """A hundred thousand steps are a few entries, with the least and most of each."""
    events = []
    for number in range(50_000):
        nbytes = 100 + number % 997
        events += [
            MemoryEvent(True, number, nbytes),
            MemoryEvent(False, number, nbytes),
        ]

    course = followed(events, 7)

    assert len(course.highest_bytes) < 300
    assert (min(course.lowest_bytes), max(course.highest_bytes)) == (7, 1103)
    assert course.steps == len(events)


def test_a_piece_has_its_name_if_it_is_still_the_same():
    """An address that was given back and taken again is no longer the name's."""
    spot = Spot(CELL, 2)
    events = [
        MemoryEvent(True, 1, 10, spot),
        MemoryEvent(True, 2, 20, spot),
        MemoryEvent(False, 2, 20, spot),
        MemoryEvent(True, 2, 5, Spot(CELL, 3)),
    ]

    course = followed(events, 100, {1: ("xs", 10), 2: ("y", 5)})

    assert rows(course.at_peak) == {
        ("xs", None, False): 10,
        ("", 2, False): 20,
        ("", None, True): 100,
    }
    assert course.peak_step == course.peak_number == 2
