"""What is known of out-of-memory errors, also of those that the code has caught."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpumagic.gpu_mem.oom import LastOom
from gpumagic.gpu_mem.records import Counters

TEXT = "CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacity of"


@pytest.fixture
def ooms():
    """How many errors each device has counted."""
    return {0: 0, 1: 0}


@pytest.fixture
def shell():
    """A shell that holds nothing."""
    return SimpleNamespace(user_ns={}, user_ns_hidden={})


@pytest.fixture
def last(shell, ooms):
    """What is known, told by the counters above."""
    return LastOom(shell, lambda: [Counters(d, ooms=n) for d, n in ooms.items()])


def an_error(text=TEXT):
    """An error as torch words it."""
    return RuntimeError(text)


def test_nothing_is_known_of_nothing(last):
    """Counters that have not risen tell of no error."""
    assert last.seen(1) == (None, None)


def test_a_caught_one_is_known_by_its_number(last, ooms):
    """A count that has risen with no error to show for it is one that was caught."""
    last.seen(3)
    ooms[1] += 2

    facts, caught = last.seen(7)

    assert facts is None
    assert (caught.device, caught.times) == (1, 2)
    assert (caught.cell, caught.since_cell) == (None, 3)


def test_what_was_met_before_the_first_look_counts(last, ooms):
    """Counters begin at zero with the process, so that nobody need have looked."""
    ooms[0] = 1

    assert last.seen(5).caught.times == 1


def test_the_cell_is_known_where_it_was_watched(last, ooms):
    """What has risen round one cell was met in it."""
    ooms[0] += 1
    last.cell_ended(4)

    assert last.seen(6).caught.cell == 4


def test_asking_again_gives_the_same_answer(last, ooms):
    """An answer does not use up what it tells."""
    ooms[0] += 1

    assert last.seen(2) == last.seen(3)


def test_an_error_with_words_was_not_caught(last, ooms):
    """The error that ended a cell is one of those that were counted."""
    ooms[0] += 1
    last.cell_ended(2, an_error())

    facts, caught = last.seen(3)

    assert facts.requested_bytes == 3 << 30
    assert caught is None


def test_more_than_the_error_itself_were_caught(last, ooms):
    """Three counted and one let out are two caught beside it."""
    ooms[0] += 3
    last.cell_ended(2, an_error())

    facts, caught = last.seen(3)

    assert facts is not None
    assert caught.times == 2


def test_an_error_with_words_is_one_of_its_own_device(last, ooms):
    """What another device has counted was not this error."""
    ooms[0] += 1
    ooms[1] += 1
    last.cell_ended(2, an_error(TEXT.replace("GPU 0", "GPU 1")))

    facts, caught = last.seen(3)

    assert facts.device == 1
    assert (caught.device, caught.times) == (0, 1)


def test_the_cell_is_not_claimed_where_others_have_run_since(last, ooms):
    """An error has ended this cell; what else was counted may be of any before it."""
    last.seen(1)
    ooms[0] += 2
    last.cell_ended(4, an_error(), watched=False)

    caught = last.seen(5).caught

    assert (caught.times, caught.cell, caught.since_cell) == (1, None, 1)


def test_an_error_that_has_the_place_of_an_older_one_is_new(last, ooms):
    """Python gives a new error the place of one that is gone, and torch the words."""
    error = an_error()
    for cell in (2, 3):  # the very same stands for its double
        ooms[0] += 1
        last.cell_ended(cell, error)

    facts, caught = last.seen(4)

    assert facts is not None
    assert caught is None


def test_an_error_without_a_text_does_no_harm(last, shell):
    """An object of the user's whose words cannot be had is no error of memory."""

    class Odd(Exception):
        def __str__(self):
            raise ValueError

    shell.user_ns["kept"] = Odd()

    assert last.seen(2) == (None, None)


def test_words_of_an_older_error_are_not_taken_for_those_of_the_last(last, ooms):
    """What was caught after an error takes its place."""
    ooms[0] += 1
    last.cell_ended(2, an_error())
    ooms[0] += 1
    last.cell_ended(3)

    facts, caught = last.seen(4)

    assert facts is None
    assert caught.cell == 3


def test_an_error_that_a_variable_has_kept_still_has_its_words(last, shell, ooms):
    """`except ... as error: kept = error` leaves all that there is to know."""
    ooms[0] += 1
    shell.user_ns["kept"] = an_error()

    facts, caught = last.seen(2)

    assert facts.requested_bytes == 3 << 30
    assert caught is None
    assert last.seen(3).facts == facts


def test_a_list_of_kept_errors_explains_as_many(last, shell, ooms):
    """The last of a list is the one that is told, and none of them was lost."""
    ooms[0] += 2
    shell.user_ns["kept"] = [an_error(), an_error(TEXT.replace("3.00", "5.00"))]

    facts, caught = last.seen(2)

    assert facts.requested_bytes == 5 << 30
    assert caught is None


def test_a_reset_of_the_counters_loses_none_that_came_after(last, ooms):
    """Fewer than before is a count that began anew."""
    ooms[0] = 5
    last.seen(2)
    ooms[0] = 1

    assert last.seen(3).caught.times == 1


def test_no_error_is_kept_alive(last, ooms):
    """What is remembered are words and numbers."""
    import gc
    import weakref

    class Running(RuntimeError):
        pass

    ooms[0] += 1
    error = Running(TEXT)
    gone = weakref.ref(error)
    last.cell_ended(2, error)
    del error
    gc.collect()

    assert gone() is None
