"""Progress: drawn rarely, gone when all is done, and failures pass."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from gpumagic.drawing import Progress


class Clock:
    """A clock that goes when told to."""

    now = 100.0

    def __call__(self):
        """Seconds that go only when set."""
        return self.now


@pytest.fixture
def clock():
    """Time in the hands of the test."""
    return Clock()


class Place(list):
    """The titles of all drawings that were shown, and what became of the last."""

    def show(self, drawing, *, is_last=False):
        """Note what is shown."""
        self.append(f"{drawing.title}{', and stays' if is_last else ''}")

    def clear(self):
        """Note that nothing is."""
        self.append("gone")


def run(clock, *steps, total=40, begins_after_s=0, error=None):
    """What is published where each step takes so long and is so many, or a share."""
    place = Place()
    with (
        pytest.raises(type(error)) if error else nullcontext(),
        Progress(
            total, "Timing", place, clock=clock, begins_after_s=begins_after_s
        ) as it,
    ):
        for took_s, done, *note in steps:
            clock.now += took_s
            it.reach(done) if total is None else it.advance(done, *note)
        if error:
            raise error
    return place


@pytest.mark.parametrize(
    ("options", "steps", "shown"),
    [
        (
            {},
            [(2, 10, "matmul")],
            [
                "Timing: 0 %, 0 of 40",
                "Timing: 25.0 %, 10 of 40, an estimated 6.00 s left, matmul",
                "gone",
            ],
        ),
        ({"total": 0}, [], ["Timing: 100 %, 0 of 0", "gone"]),
        # Where nobody knows of steps; a share never falls.
        (
            {"total": None},
            [(1, 0.125), (1, 0.0)],
            [
                "Timing: 0 %",
                "Timing: 12.5 %, an estimated 7.00 s left",
                "Timing: 12.5 %, an estimated 14.0 s left",
                "gone",
            ],
        ),
        # What is soon over is never shown, nor what is stopped soon.
        (
            {"begins_after_s": 2},
            [(1.9, 10), (0.1, 10)],
            ["Timing: 50.0 %, 20 of 40, an estimated 2.00 s left", "gone"],
        ),
        (
            {"error": KeyboardInterrupt()},
            [(1, 16)],
            [
                "Timing: 0 %, 0 of 40",
                "Timing: 40.0 %, 16 of 40, an estimated 1.50 s left",
                "Timing: stopped at 40.0 % after 1.00 s, 16 of 40, and stays",
            ],
        ),
        ({"error": ValueError(), "begins_after_s": 2}, [(1.9, 1)], []),
    ],
)
def test_what_is_shown_of_how_far_it_has_come(clock, options, steps, shown):
    """Counted or estimated, gone when all is done; an exception leaves a line."""
    assert run(clock, *steps, **options) == shown


def test_at_most_four_drawings_a_second(clock):
    """A thousand steps in two seconds make ten drawings, not a thousand."""
    assert len(run(clock, *[(0.002, 1)] * 1000)) in (9, 10)


def test_failure_to_publish_does_not_hide_why_the_work_stopped(clock):
    """The user's own error is the one that is seen."""

    class Broken(Place):
        def show(self, drawing, *, is_last=False):  # noqa: ARG002
            if is_last:
                raise OSError

    progress = Progress(1, "x", Broken(), clock=clock, begins_after_s=0)
    with pytest.raises(ZeroDivisionError), progress:
        raise ZeroDivisionError
