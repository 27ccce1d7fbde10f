"""What is said of loaders: each verdict, and what holds of all of them."""

from __future__ import annotations

import re
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from gpumagic.pin_loader.answer_loader import pageable_sentence, workers_clause
from gpumagic.pin_loader.records import (
    Loading,
    Pinned,
    Samples,
    State,
    Stopped,
    WhyPageable,
    WorkerSearch,
)
from gpumagic.report.robust import Comparison, Interval, Verdict
from tests.pin_loader import samples


def text_of(report):
    """All of it on one line."""
    return " ".join(report.drawing().whole().text().split())


@pytest.mark.parametrize("why", list(WhyPageable))
@pytest.mark.parametrize("state", list(State))
def test_every_reason_has_its_words_with_every_ending(why, state):
    """A tensor that is pageable for whatever reason is told as such."""
    leaf = replace(samples.IMAGE, why=why, holder="Sample", pinned=Pinned.PAGEABLE)
    report = replace(
        samples.DIAGNOSED,
        state=state,
        anatomy=replace(samples.PAIR, leaves=(leaf,)),
    )

    assert "pageable" in text_of(report)


@pytest.mark.parametrize("stopped", list(Stopped))
def test_what_was_not_tried_is_not_judged(stopped):
    """However a search ended: of numbers that it has not tried nothing is claimed."""
    search = replace(samples.OUT_OF_TIME, stopped=stopped)

    told = replace(samples.DIAGNOSED, workers=search)
    text = " ".join(told.drawing().text().split())

    assert "load no faster" not in text
    assert "would not help" not in text


batch_ms = st.floats(0.1, 100)


@given(st.dictionaries(st.integers(0, 64), batch_ms, min_size=1, max_size=5))
@settings(max_examples=100, deadline=None)
def test_of_workers_only_what_was_tried_is_said(table):
    """Each number in the clause is one of the trials."""
    trials = tuple(
        Loading(Samples((table[count] / 1e3,) * 5), count) for count in sorted(table)
    )
    best = min(trials, key=lambda each: each.batch_s)
    now = trials[0].workers
    search = WorkerSearch(trials, best.workers, Stopped.FOUND, now)

    said = workers_clause(search)

    numbers = {int(each) for each in re.findall(r"\b(\d+)\b(?![.x\d])", said)}
    assert numbers <= set(table)


@pytest.mark.parametrize(
    ("state", "said"), [(State.DIAGNOSED, True), (State.FASTER, False)]
)
def test_what_the_new_loader_pins_is_no_complaint(state, said):
    """A class that the pinner passes through is named until a loader pins it."""
    leaf = replace(
        samples.IMAGE,
        why=WhyPageable.PASSED_THROUGH,
        holder="Sample",
        pinned=Pinned.PAGEABLE,
    )
    report = replace(
        samples.FASTER,
        state=state,
        out=None if said else "new",
        anatomy=replace(samples.PAIR, leaves=(leaf,)),
    )

    hints = " ".join(note.hint for note in report.drawing().notes)

    assert ("give Sample a pin_memory() method" in hints) is said


def test_tensors_are_counted_by_where_they_lie():
    """How many are pageable; where they differ, bytes are told."""
    pinned = replace(samples.LABEL, pinned=Pinned.PINNED, why=None)
    mixed = replace(samples.PAIR, leaves=(samples.IMAGE, pinned))

    assert pageable_sentence(samples.PAIR) == "a batch (2 tensors, 147 MiB) is pageable"
    assert pageable_sentence(mixed) == "147 MiB of 147 MiB of a batch are pageable"


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        (Verdict.FASTER, "new feeds cuda:0 2.00x as fast as train_dl"),
        (Verdict.SLOWER, "new takes 2.00x as long a step as train_dl"),
        (Verdict.SAME, "no difference between new and train_dl, within 1 %"),
        (Verdict.CANNOT_TELL, "no measurable difference between new and train_dl"),
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_a_title_is_as_sure_as_its_proof(verdict, said, known):
    """Each verdict has its words; without an interval runs are too few for any."""
    ratio = {Verdict.FASTER: 0.5, Verdict.SLOWER: 2.0}.get(verdict, 1.0)
    interval = Interval(ratio, ratio, 0.95) if known else None
    result = Comparison(((1.0, ratio),) * 2, ratio, interval, verdict)
    proof = replace(samples.FASTER.end_to_end, result=result)

    title = replace(samples.FASTER, out="new", end_to_end=proof).headline

    few = "new is ready; the runs are too few to tell how much faster it is"
    assert title.lower() == (said if known else few).lower()
