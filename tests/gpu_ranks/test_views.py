"""What the first screen says of many ranks, and that what was measured is drawn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumagic.gpu_ranks.answer_seats import Misplaced, SeatFinding, SeatsReport
from gpumagic.gpu_ranks.answer_times import RanksReport
from gpumagic.gpu_ranks.answers import Unfinished
from gpumagic.gpu_ranks.unfinished import Names
from tests.gpu_ranks.samples import SAMPLES, STRAGGLER, seats

REPORTS = dict(SAMPLES)


def text(report, width=80):
    """What is in sight, on one line."""
    return " ".join(report.drawing().text(width).split())


# --------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ([3], "rank 3"),
        ([3, 1], "ranks 1 and 3"),
        ([0, 1, 3], "ranks 0, 1, 3"),
        ([0, 1, 2, 3, 5], "ranks 0 to 3, 5"),
        (range(1024), "ranks 0 to 1023"),
        ([*range(20), 40], "21 ranks"),
        ([0, 2, 4, 6, 8, 9], "ranks 0, 2, 4, 6 and 2 more"),
    ],
)
def test_ranks_are_named_in_few_words(names, told):
    """One by one where they are few, as a row or by their number where many."""
    assert Names().several(names) == told


# ----------------------------------------------------------------------- who sits where


@pytest.mark.parametrize("kind", Misplaced)
def test_whatever_is_wrong_stands_first_with_what_to_type(kind):
    """The title names the ranks or versions, and a note has a next step."""
    finding = SeatFinding(kind, (1, 3), "share one GPU")
    drawing = SeatsReport(seats(4), (finding,)).drawing()

    assert "each on a GPU of its own" not in drawing.title
    assert [bool(note.hint) for note in drawing.notes] == [True]


def test_who_shares_a_gpu_is_told_to_restart_only_where_cuda_has_started():
    """Before that, `select` alone is enough."""
    finding = SeatFinding(Misplaced.SHARED_GPU, (0, 1), "share one GPU")
    late = SeatsReport(seats(2), (finding,))
    early = SeatsReport(seats(2, confirmed=False), (finding,))

    assert "restart the engines, then `%gpu_ranks select`" in text(late)
    assert "restart" not in text(early)


# ------------------------------------------------------------------------------- times


def test_outside_a_notebook_the_line_that_helps_there():
    """A job that a launcher has started has no magic to type."""
    died = Unfinished(1, "died", "it was killed")
    told = text(RanksReport((), unfinished=(died,), told_by="flight recorder"))

    assert "torchrun --max-restarts" in told
    assert "%gpu_ranks group" not in told


def test_a_thousand_ranks_are_one_screen():
    """The odd one is in words, and all others are one row of the table."""
    told = REPORTS["times-1024"].drawing().text(88)

    assert "rank 123 took" in told
    assert "1023 others" in told
    assert len(told.splitlines()) <= 25


def test_memory_that_no_rank_tells_hides_no_times():
    """Who asked for memory where none is told sees the times, and why."""
    asked = replace(STRAGGLER, memory=(), with_memory=True)

    assert text(asked).startswith(text(STRAGGLER).split(";")[0])
    assert "no rank has used a GPU" in text(asked)
