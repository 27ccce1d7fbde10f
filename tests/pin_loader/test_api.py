"""The whole way from a loader to its report where there is no accelerator."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from gpumagic.devices.cpu import CpuRuntime  # noqa: E402
from gpumagic.pin_loader import (  # noqa: E402
    diagnose,
    improve,
    load,
    stages,
)
from gpumagic.pin_loader.records import (  # noqa: E402
    Bound,
    EndToEnd,
    Gain,
    LoaderFacts,
    Part,
    Pinned,
    Remedy,
    State,
    WhyPageable,
)
from gpumagic.pin_loader.trial import batches_of  # noqa: E402
from gpumagic.report.robust import (  # noqa: E402
    Comparison,
    Interval,
    Verdict,
)
from tests.pin_loader.sleepy import Opening  # noqa: E402

if torch.accelerator.is_available():
    pytest.skip("this machine has an accelerator", allow_module_level=True)


def numbers():
    """A loader of small batches."""
    return DataLoader(TensorDataset(torch.rand(128, 4)), 16, shuffle=True)


def test_pinning_is_impossible_and_nothing_is_changed():
    """Leaves and loading are told; no loader is made; random numbers go on."""
    loader, state = numbers(), torch.get_rng_state()

    made, report = improve(loader, name="numbers", budget_s=1.0)

    assert made is None
    assert (report.state, report.out) == (State.NO_ACCELERATOR, None)
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


def test_a_dataset_with_workers_is_never_asked_in_this_process():
    """What it opens there would be shared by all workers that come later."""
    loader = DataLoader(Opening(40), 4, num_workers=1, multiprocessing_context="fork")

    diagnose(loader, budget_s=0.5)
    improve(loader, workers=2, budget_s=1.0)

    assert not loader.dataset.opened


@pytest.mark.parametrize(("ratio", "state"), [(0.97, State.SAME), (0.8, State.FASTER)])
def test_less_than_five_percent_are_no_gain(ratio, state):
    """A verdict of faster is not enough: the gain has to be worth a change."""
    interval = Interval(ratio - 0.01, ratio + 0.01, 0.95)
    result = Comparison(((1.0, ratio),) * 6, ratio, interval, Verdict.FASTER)
    case = SimpleNamespace(
        feeding="the new loader", options=SimpleNamespace(force=False)
    )

    ending = stages._ended(case, EndToEnd(result))

    assert ending.state is state
    assert (case.feeding is None) is (state is State.SAME)


@pytest.mark.parametrize(
    ("ahead", "workers", "state"),
    [
        (1.5, 1.0, None),
        (1.5, 2.0, State.DIAGNOSED),
        (2.0, 1.5, None),
        (1.0, 1.02, State.NOTHING),
        (1.0, 1.2, State.DIAGNOSED),
    ],
)
def test_whether_it_goes_on_follows_from_what_can_be_won(
    monkeypatch, ahead, workers, state
):
    """Copying ahead is tried, more workers are the user's to say, or nothing pays."""
    gains = Gain(Remedy.PREFETCH, 1.0, ahead), Gain(Remedy.WORKERS, 1.0, workers)
    found = Bound(((Part.LOAD, 1.0),), 2.0, 1.0, Part.LOAD, gains)
    monkeypatch.setattr(stages.bounds, "bound_of", lambda *_, **__: found)
    case = SimpleNamespace(
        facts=LoaderFacts(),
        workers=0,
        is_pinned=False,
        options=stages.Options(),
        report=SimpleNamespace(rates=None, workers=None),
        note=lambda **_: None,
    )

    ending = stages.bound(case)

    assert (ending and ending.state) is state
