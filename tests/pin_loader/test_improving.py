"""The whole way from a loader to its report where there is no accelerator."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from gpumagic.comparison import Comparison, Verdict  # noqa: E402
from gpumagic.pin_loader import diagnose, improve, pin  # noqa: E402
from gpumagic.pin_loader.mending import say_how_it_ended  # noqa: E402
from gpumagic.pin_loader.records.batch import WhyPageable  # noqa: E402
from gpumagic.pin_loader.records.rebuilding import Way  # noqa: E402
from gpumagic.pin_loader.report import State  # noqa: E402
from gpumagic.ranks import Interval  # noqa: E402
from tests.pin_loader.sleepy import Sleepy  # noqa: E402

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
    assert "nothing was changed" in report.drawing().title
    assert [leaf.why for leaf in report.anatomy.leaves] == [WhyPageable.NO_ACCELERATOR]
    assert report.rates.load.batch_s > 0
    assert report.rates.copies == ()
    assert torch.equal(torch.get_rng_state(), state)


def test_looking_says_the_same():
    """`diagnose` tells leaves and loading, and nothing of copies."""
    report = diagnose(numbers(), budget_s=1.0)

    assert report.state is State.NO_ACCELERATOR
    assert report.bound is None


def test_workers_still_help_a_slow_dataset():
    """A dataset that sleeps is loaded faster, and that is measured and proved."""
    loader = DataLoader(Sleepy(400, 0.004), 4)

    made, report = improve(loader, workers=4, budget_s=8.0)

    assert report.state is State.NO_ACCELERATOR
    assert report.sameness.same
    assert made.num_workers == 4
    assert "num_workers" in {each.argument for each in report.rebuilding.changes}
    assert report.end_to_end.result.ratio < 0.7


class Opening(Sleepy):
    """Opens something when it is first asked, as readers of files do."""

    opened = False

    def __getitem__(self, row):
        self.opened = True
        return super().__getitem__(row)


def test_a_dataset_with_workers_is_never_asked_in_this_process():
    """What it opens there would be shared by all workers that come later."""
    loader = DataLoader(Opening(40), 4, num_workers=1, multiprocessing_context="fork")

    diagnose(loader, budget_s=0.5)
    improve(loader, workers="auto", budget_s=1.0)

    assert not loader.dataset.opened


@pytest.mark.parametrize(
    ("ratio", "state"), [(0.97, State.NO_GAIN), (0.8, State.FIXED)]
)
def test_less_than_five_percent_are_no_gain(ratio, state):
    """A verdict of faster is not enough: the gain has to be worth a change."""
    interval = Interval(ratio - 0.01, ratio + 0.01, 0.95)
    result = Comparison(((1.0, ratio),) * 6, ratio, interval, Verdict.FASTER)
    case = SimpleNamespace(
        pins=True,
        feeding="the new loader",
        wish=SimpleNamespace(force=False),
        rebuilding=SimpleNamespace(way=Way.REBUILT, reason=None),
        end_to_end=SimpleNamespace(result=result),
    )

    ending = say_how_it_ended(case)

    assert ending.state is state
    assert (case.feeding is None) is (state is State.NO_GAIN)


def test_a_pinned_loader_passes_through_on_the_cpu():
    """Code that says `pin` runs on a laptop as well, with the same batches."""
    loader = numbers()
    torch.manual_seed(1)
    expected = [rows.tolist() for (rows,) in loader]

    torch.manual_seed(1)
    given = [rows.tolist() for (rows,) in pin(loader)]

    assert given == expected
