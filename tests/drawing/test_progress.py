"""Progress: drawn rarely, gone when all is done, and failures pass."""

from __future__ import annotations

import pytest

from gpumagic.drawing import Progress


class Clock:
    """A clock that goes when told to."""

    def __init__(self):
        self.now = 100.0

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

    def become(self, answer):
        """Nothing is put here."""

    def clear(self):
        """Note that nothing is."""
        self.append("gone")


@pytest.fixture
def published():
    """Somewhere on a screen."""
    return Place()


@pytest.fixture
def progress(clock, published):
    """Forty steps of something that is shown at once."""
    return Progress(40, "Timing", published, clock=clock, begins_after_s=0)


def test_what_is_done_is_gone(progress, published, clock):
    """The answer stands where the progress was."""
    with progress:
        progress.advance(40)
        clock.now += 0.1

    assert published == ["Timing: 0 %, 0 of 40", "gone"]


def test_at_most_four_drawings_a_second(progress, published, clock):
    """A thousand steps in two seconds make ten drawings, not a thousand."""
    with progress:
        for _ in range(1000):
            clock.now += 0.002
            progress.advance()

    assert len(published) in (9, 10)


def test_time_left_is_said_to_be_estimated(progress, published, clock):
    """After a quarter of the steps, three times as long is left."""
    with progress:
        clock.now += 2
        progress.advance(10, "matmul")

    assert published[1] == "Timing: 25.0 %, 10 of 40, an estimated 6.00 s left, matmul"


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_stopping_is_shown_and_the_exception_passes(progress, published, clock, error):
    """An interrupt reaches the user, with how far the work had come."""

    def work():
        with progress:
            clock.now += 1
            progress.advance(16)
            raise error

    with pytest.raises(error):
        work()

    assert published[-1] == (
        "Timing: stopped at 40.0 % after 1.00 s, 16 of 40, and stays"
    )


def test_failure_to_publish_does_not_hide_why_the_work_stopped(clock):
    """The user's own error is the one that is seen."""

    class Broken(Place):
        def show(self, drawing, *, is_last=False):  # noqa: ARG002
            if is_last:
                raise OSError

    progress = Progress(1, "x", Broken(), clock=clock, begins_after_s=0)
    with pytest.raises(ZeroDivisionError), progress:
        raise ZeroDivisionError


def test_nothing_to_do_is_all_done(clock, published):
    """A total of zero divides nothing."""
    with Progress(0, "Empty", published, clock=clock, begins_after_s=0):
        pass

    assert published[0] == "Empty: 100 %, 0 of 0"


def test_shares_are_not_counted(clock, published):
    """Where nobody knows of steps, the percent says it all, and so does the time."""
    with Progress(None, "Timing", published, clock=clock, begins_after_s=0) as it:
        clock.now += 1
        it.reach(0.125)

    assert published[:-1] == [
        "Timing: 0 %",
        "Timing: 12.5 %, an estimated 7.00 s left",
    ]


def test_a_share_never_falls(clock):
    """Who has come half the way is not told to be at the beginning again."""
    with Progress(None, "Timing", Place(), clock=clock) as it:
        it.reach(0.5)
        it.reach(0.25)

    assert it.share == 0.5


def test_what_is_soon_over_is_never_shown(clock, published):
    """Nothing flashes up for less than two seconds, not even where it is stopped."""

    def work(error):
        with Progress(None, "Timing", published, clock=clock) as it:
            clock.now += 1.9
            it.reach(0.9)
            raise error

    with pytest.raises(KeyboardInterrupt):
        work(KeyboardInterrupt)

    assert published == []


def test_what_is_long_is_shown_from_its_second_second_on(clock, published):
    """The time left counts from the beginning, not from the first drawing."""
    with Progress(None, "Timing", published, clock=clock) as it:
        clock.now += 2
        it.reach(0.5)

    assert published == ["Timing: 50.0 %, an estimated 2.00 s left", "gone"]
