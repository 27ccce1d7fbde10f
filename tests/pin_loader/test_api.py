"""What is said of loaders, and the whole way to it where there is no accelerator."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from gpumagic.devices.cpu import CpuRuntime  # noqa: E402
from gpumagic.pin_loader import diagnose, improve, load, stages  # noqa: E402
from gpumagic.pin_loader.answer_loader import workers_clause  # noqa: E402
from gpumagic.pin_loader.records import (  # noqa: E402
    EndToEnd,
    Loading,
    Pinned,
    Samples,
    State,
    Stopped,
    WhyPageable,
    WorkerSearch,
)
from gpumagic.pin_loader.trial import batches_of  # noqa: E402
from gpumagic.report.robust import Comparison, Interval, Verdict  # noqa: E402
from tests.pin_loader import samples  # noqa: E402
from tests.pin_loader.kinds import Opening  # noqa: E402

no_accelerator = pytest.mark.skipif(
    torch.accelerator.is_available(), reason="this machine has an accelerator"
)


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
        out="" if said else "new",
        anatomy=replace(samples.PAIR, leaves=(leaf,)),
    )

    hints = " ".join(note.hint for note in report.drawing().notes)

    assert ("give Sample a pin_memory() method" in hints) is said


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


@no_accelerator
def test_pinning_is_impossible_and_nothing_is_changed():
    """Leaves and loading are told; no loader is made; random numbers go on."""
    loader = DataLoader(TensorDataset(torch.rand(128, 4)), 16, shuffle=True)
    state = torch.get_rng_state()

    made, report = improve(loader, name="numbers", budget_s=1.0)

    assert made is None
    assert (report.state, report.out) == (State.NO_ACCELERATOR, "")
    assert "there is no accelerator to pin for" in report.drawing().title
    assert "nothing was changed" in str(report)
    assert [leaf.why for leaf in report.anatomy.leaves] == [WhyPageable.NO_ACCELERATOR]
    assert report.rates.load.batch_s > 0
    assert report.rates.copies == ()
    assert torch.equal(torch.get_rng_state(), state)


class NotUsed(CpuRuntime):
    """A GPU that nobody has used yet."""

    kind = "cuda"

    def started(self):
        """It is not in use."""
        return False


@pytest.fixture
def gpu(monkeypatch):
    """Such a GPU in the place of the CPU: the loaders that are iterated for it."""
    iterated = []

    def noting(loader, **options):
        iterated.append(loader)
        return batches_of(loader, **options)

    monkeypatch.setattr(stages, "open_runtime", lambda _: NotUsed())
    monkeypatch.setattr(stages, "batches_of", noting)
    monkeypatch.setattr(load.trial, "batches_of", noting)
    return iterated


@no_accelerator
@pytest.mark.parametrize("workers", [0, 1])
def test_looking_at_a_loader_that_pins_starts_no_device(gpu, workers):
    """Pinning a batch makes a context: for a mere look it is left out, and said."""
    loader = DataLoader(
        TensorDataset(torch.rand(128, 4)),
        16,
        pin_memory=True,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
    )

    report = diagnose(loader, budget_s=0.5)

    assert len(gpu) >= 2
    assert not any(each.pin_memory for each in gpu)
    assert loader.pin_memory
    assert report.loader.pin_memory
    (leaf,) = report.anatomy.leaves
    assert (leaf.pinned, leaf.why) == (Pinned.UNKNOWN, None)
    remark, *_ = report.remarks  # a busy machine may need more than the budget
    assert "pinning or copying would start it" in remark.text
    assert "leave --diagnose off" in remark.hint


@no_accelerator
def test_a_dataset_with_workers_is_never_asked_in_this_process():
    """What it opens there would be shared by all workers that come later."""
    loader = DataLoader(Opening(40), 4, num_workers=1, multiprocessing_context="fork")

    diagnose(loader, budget_s=0.5)
    improve(loader, workers=2, budget_s=1.0)

    assert not loader.dataset.opened


@pytest.mark.parametrize(("ratio", "kept"), [(0.97, False), (0.8, True)])
def test_less_than_five_percent_are_no_gain(ratio, kept):
    """A verdict of faster is not enough: the gain has to be worth a change."""
    interval = Interval(ratio - 0.01, ratio + 0.01, 0.95)
    result = Comparison(((1.0, ratio),) * 6, ratio, interval, Verdict.FASTER)
    case = stages._open(DataLoader([1]), stages.Options())
    case.feeding = "the new loader"

    with contextlib.suppress(stages.Ended):
        stages._judge(case, EndToEnd(result))

    assert (case.feeding is not None) is kept
