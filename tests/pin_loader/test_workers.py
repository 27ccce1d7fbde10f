"""What the search for workers tries, chooses and leaves; what they cannot be sent."""

from __future__ import annotations

import functools
import multiprocessing
import pickle
import sys
import threading
import warnings
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, Dataset  # noqa: E402

from gpumagic.pin_loader import timing  # noqa: E402
from gpumagic.pin_loader import workers as worker_search  # noqa: E402
from gpumagic.pin_loader.report import (  # noqa: E402
    Anatomy,
    Guard,
    Leaf,
    Limit,
    LimitKind,
    Loading,
    Remark,
    Samples,
    Severity,
    Stopped,
)
from gpumagic.pin_loader.timing import LoaderFailed  # noqa: E402
from gpumagic.pin_loader.trial import batches_of  # noqa: E402
from gpumagic.pin_loader.workers import search, unpicklable  # noqa: E402
from tests.pin_loader.clocks import Clock, paced  # noqa: E402
from tests.pin_loader.sleepy import (  # noqa: E402
    DiesAt,
    FailsAt,
    HangsInWorkers,
    Sleepy,
    children,
)

needs_fork = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="no fork here"
)


@pytest.fixture
def times(monkeypatch):
    """Loading takes what this table says: by workers, in seconds; errors are raised."""
    table = {}

    def measure(workers, **_):
        told = table[workers]
        if isinstance(told, Exception):
            raise told
        return Loading(Samples((told,)), workers)

    monkeypatch.setattr(worker_search, "measure_loading", measure)
    return table


def tried(found):
    """The numbers of workers that were tried."""
    return [trial.workers for trial in found.trials]


def test_it_doubles_up_to_the_most(times):
    """It tries powers of two and the most, as long as each is faster."""
    times.update({0: 1.0, 1: 1.0, 2: 0.5, 4: 0.25, 6: 0.17})

    found = search(lambda workers: workers, most=6)

    assert tried(found) == [0, 1, 2, 4, 6]
    assert (found.chosen, found.stopped, found.most) == (6, Stopped.MOST, 6)


def test_it_stops_where_more_gain_less_than_five_percent(times):
    """The first number that is hardly better is the last one tried."""
    times.update({0: 1.0, 1: 1.0, 2: 0.5, 4: 0.49})

    found = search(lambda workers: workers, most=64)

    assert tried(found) == [0, 1, 2, 4]
    assert (found.chosen, found.stopped) == (2, Stopped.SLOWER)


def test_one_worker_no_faster_than_none_is_no_reason_to_stop(times):
    """A single worker only loads beside the step: two may still be twice as fast."""
    times.update({0: 1.0, 1: 1.1, 2: 0.55, 4: 0.54})

    found = search(lambda workers: workers, most=4)

    assert found.chosen == 2


@pytest.mark.parametrize(("with_two_s", "chosen"), [(0.75, 1), (0.70, 2)])
def test_it_chooses_the_fewest_within_five_percent_of_the_best(
    times, with_two_s, chosen
):
    """A little time is not worth more processes."""
    times.update({0: 2.0, 1: 0.78, 2: with_two_s})

    found = search(lambda workers: workers, most=2)

    assert found.chosen == chosen


def test_it_stops_when_loading_hides_behind_the_step(times):
    """With loading below 80 % of the step more workers cannot help."""
    times.update({0: 1.0, 1: 1.0, 2: 0.5})

    found = search(lambda workers: workers, most=64, step_s=0.7)

    assert tried(found) == [0, 1, 2]
    assert (found.chosen, found.stopped) == (2, Stopped.FAST_ENOUGH)


def test_no_worker_is_chosen_where_loading_is_nothing(times):
    """Loading of 1 % of a step needs no process of its own."""
    times.update({0: 0.01})

    found = search(lambda workers: workers, most=64, step_s=1.0)

    assert tried(found) == [0]
    assert (found.chosen, found.stopped) == (0, Stopped.FAST_ENOUGH)


def test_one_worker_is_chosen_where_loading_adds_to_the_step(times):
    """Without workers a step waits for its batch, however fast that comes."""
    times.update({0: 0.3, 1: 0.3})

    found = search(lambda workers: workers, most=64, step_s=1.0)

    assert tried(found) == [0, 1]
    assert found.chosen == 1


def refusal(workers):
    """A guard that lets two workers pass."""
    severity = Severity.REFUSE if workers > 2 else Severity.FINE
    limit = Limit(LimitKind.SHM, workers, 4, severity, hint="type --workers 2")
    return Guard(locked_bytes=0, batches=1, limits=(limit,))


def test_what_the_guard_refuses_is_not_tried(times):
    """The search ends before workers that would not fit, and says what is short."""
    times.update({0: 1.0, 1: 1.0, 2: 0.5})

    found = search(lambda workers: workers, most=8, guard_for=refusal)

    assert tried(found) == [0, 1, 2]
    assert (found.chosen, found.stopped) == (2, Stopped.GUARD)
    assert found.problem == "4 workers take too much: shared memory"
    assert found.hint == "type --workers 2"


def test_a_refused_search_tries_nothing():
    """What the caller knows against workers is handed on."""
    remark = Remark("workers would duplicate the stream", "shard it")

    found = search(pytest.fail, most=4, refuse=remark)

    assert (found.trials, found.chosen) == ((), None)
    assert found.stopped is Stopped.REFUSED
    assert (found.problem, found.hint) == (remark.text, remark.hint)


def test_the_first_trial_is_made_without_time_and_no_other(times):
    """A spent budget leaves one measurement, and chooses from that."""
    times.update({0: 1.0, 1: 1.0})

    found = search(lambda workers: workers, most=4, budget_s=0.0)

    assert tried(found) == [0]
    assert (found.chosen, found.stopped) == (0, Stopped.BUDGET)


@pytest.mark.parametrize(
    ("failing", "problem", "stopped"),
    [
        (0, "no batch", Stopped.REFUSED),
        (1, "the worker died", Stopped.REFUSED),
        (4, "Bus error", Stopped.GUARD),
        (4, "DataLoader timed out after 5 seconds", Stopped.BUDGET),
    ],
)
def test_a_failed_trial_ends_the_search(times, failing, problem, stopped):
    """It is among the trials with its problem; the best of those before is chosen."""
    times.update({0: 1.0, 1: 0.9, 2: 0.5, 4: 0.2})
    times[failing] = LoaderFailed(problem, "a hint")

    found = search(lambda workers: workers, most=8)

    last = found.trials[-1]
    assert (last.workers, last.loading, last.problem) == (failing, None, problem)
    assert (found.stopped, found.problem, found.hint) == (stopped, problem, "a hint")
    assert found.chosen == {0: None, 1: 0, 4: 2}[failing]


def test_the_most_is_what_this_process_may_use(times, monkeypatch):
    """Without a number of its own it goes by the processors of this process."""
    monkeypatch.setattr(worker_search, "usable", lambda: 1)
    times.update({0: 1.0, 1: 0.4})

    found = search(lambda workers: workers)

    assert tried(found) == [0, 1]
    assert found.most == 1


# --------------------------------------------------------- with real processes


@pytest.fixture
def clock(monkeypatch):
    """The time that searching takes, on which a machine that is busy takes none."""
    clock = Clock()
    monkeypatch.setattr(worker_search, "time", clock)
    return clock


@needs_fork
def test_a_sleeping_dataset_gains_from_every_worker(clock, monkeypatch):
    """Where loading is waiting, eight workers are chosen, and none of any trial stays.

    The processes are real, and as many as there are hand over in the time of one batch.
    """
    monkeypatch.setattr(timing, "time", clock)
    monkeypatch.setattr(timing, "batches_of", paced(clock, batch_s=0.08))
    batch = Anatomy("Tensor", (Leaf("batch", "torch.Tensor", nbytes=64),))
    before, shares = children(), []

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = search(
            lambda workers: DataLoader(Sleepy(4000), batch_size=4, num_workers=workers),
            anatomy=batch,
            budget_s=200,
            most=8,
            progress=shares.append,
        )

    assert tried(found) == [0, 1, 2, 4, 8]
    assert (found.chosen, found.stopped) == (8, Stopped.MOST)
    assert [trial.loading.batch_s for trial in found.trials] == pytest.approx(
        [0.08, 0.08, 0.04, 0.02, 0.01], rel=0.01
    )
    assert all(trial.loading.nbytes == 64 for trial in found.trials)
    assert found.trials[0].private_bytes is None
    assert all(trial.private_bytes for trial in found.trials[1:])
    assert 0 <= min(shares) <= max(shares) <= 1
    assert children() <= before


@needs_fork
@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("dataset", "tries", "words", "budget_s"),
    [
        (FailsAt(100, bad=5), [0], "item 5 is damaged", 60),
        (DiesAt(100, bad=5), [0, 1], "worker", 60),
        (HangsInWorkers(100), [0, 1], "timed out", 1.5),
    ],
    ids=["raises", "dies", "hangs"],
)
def test_a_bad_dataset_ends_the_search_and_leaves_nothing(
    monkeypatch, dataset, tries, words, budget_s
):
    """Whether it raises, kills its worker or hangs: the trial says so, and is gone."""
    monkeypatch.setattr(worker_search, "_SHORTEST_PATIENCE_S", 1.0)
    # One that hangs ends no sooner for being given longer.
    monkeypatch.setitem(batches_of.__kwdefaults__, "grace_s", 0.5)
    before = children()

    found = search(
        lambda workers: DataLoader(dataset, batch_size=2, num_workers=workers),
        most=4,
        budget_s=budget_s,
    )

    assert tried(found) == tries
    assert words in found.trials[-1].problem
    assert found.chosen == (None if tries == [0] else 0)
    assert children() <= before


# -------------------------------------------------------------- what they are sent


class Plain(Dataset):
    """A dataset that holds what it is given."""

    def __init__(self, **held):
        vars(self).update(held)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.tensor(index)


def collate(items):
    """A collate function that can be imported."""
    return torch.stack(items)


def test_what_can_be_imported_is_fine():
    """A dataset of a module with functions of modules can be sent."""
    loader = DataLoader(
        Plain(names=["a"], table={"x": 1}, scale=functools.partial(max, 3)),
        collate_fn=collate,
    )

    assert unpicklable(loader, "spawn") is None


def made_inside():
    """A function within a function."""

    def shift(value):
        return value + 1

    return shift


class Redefined:
    """A class that is going to be defined again."""


@pytest.mark.parametrize(
    ("held", "path", "what"),
    [
        ({"transform": lambda item: item}, "dataset.transform", "is a lambda"),
        ({"steps": [len, lambda item: item]}, "dataset.steps[1]", "is a lambda"),
        ({"by_name": {"flip": lambda item: item}}, "dataset.by_name['flip']", "lambda"),
        ({"part": functools.partial(lambda item: item)}, "dataset.part.func", "lambda"),
        ({"inner": Plain(shift=made_inside())}, "dataset.inner.shift", "made_inside()"),
        ({"lines": (line for line in "ab")}, "dataset.lines", "is a generator"),
        ({"lock": threading.Lock()}, "dataset.lock", "is a lock"),
    ],
)
def test_it_names_what_cannot_be_sent(held, path, what):
    """The smallest part that cannot be pickled is named by its path."""
    found = unpicklable(DataLoader(Plain(**held)), "spawn")

    assert found.text.startswith(f"{path} is ")
    assert what in found.text
    assert "spawn" in found.text
    assert "fork" in found.hint


def test_it_names_an_open_file(tmp_path):
    """An open file cannot be sent."""
    with (tmp_path / "data").open("w") as file:
        found = unpicklable(DataLoader(Plain(file=file)), "forkserver")

    assert found.text.startswith("dataset.file is an open file")


@pytest.mark.parametrize("name", ["collate_fn", "worker_init_fn"])
def test_functions_of_the_loader_are_sent_as_well(name):
    """It is not the dataset alone that workers need."""
    loader = DataLoader(Plain(), **{name: lambda items: items})

    assert unpicklable(loader, "spawn").text.startswith(f"{name} is a lambda")


def test_forked_workers_need_nothing_sent():
    """They have everything already, lambdas included."""
    assert unpicklable(DataLoader(Plain(transform=lambda item: item)), "fork") is None


def test_tensors_are_left_where_they_are(monkeypatch):
    """They are not pickled: that copies them, or moves them into shared memory."""
    tensor, before = torch.zeros(8), children()
    address = tensor.data_ptr()
    monkeypatch.setattr(torch.Tensor, "__reduce_ex__", None)

    assert unpicklable(DataLoader(Plain(tensor=tensor)), "spawn") is None
    assert not tensor.is_shared()
    assert tensor.data_ptr() == address
    assert children() == before


def test_what_is_given_at_the_start_is_fine():
    """Locks and queues of multiprocessing are handed over when a process starts."""
    context = multiprocessing.get_context("spawn")
    held = {"lock": context.Lock(), "count": context.Value("i", 0)}

    assert unpicklable(DataLoader(Plain(**held)), "spawn") is None


def test_millions_of_names_do_not_hold_it_up(monkeypatch):
    """Pickling is given up after a while, and nothing is said then."""
    monkeypatch.setattr(worker_search, "_LONGEST_PICKLING_S", -1)
    loader = DataLoader(Plain(names=[str(each) for each in range(100_000)]))

    assert unpicklable(loader, "spawn") is None


@pytest.fixture
def notebook(monkeypatch):
    """A main module without a file, as a notebook has it."""
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    return main


CELL = """
from torch.utils.data import Dataset  # noqa: E402

class Numbers(Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): return index

def glue(items): return items
"""


def test_classes_of_a_notebook_cannot_be_imported(notebook):
    """A pickle goes well here, and fails in the worker: that is foreseen."""
    exec(CELL, vars(notebook))  # noqa: S102
    loader = DataLoader(notebook.Numbers(), collate_fn=notebook.glue)

    found = unpicklable(loader, "spawn")

    assert found.text.startswith(
        "class Numbers and function glue are defined in this notebook"
    )
    assert "%%writefile ds.py" in found.hint
    assert pickle.dumps(loader.dataset)


def test_classes_of_a_script_can_be_imported(notebook):
    """Spawned workers run the script again."""
    exec(CELL, vars(notebook))  # noqa: S102
    notebook.__file__ = "train.py"

    assert unpicklable(DataLoader(notebook.Numbers()), "spawn") is None


def test_an_object_of_a_class_defined_again_is_seen(notebook):
    """After its cell has run twice, an old object can no longer be sent."""
    exec(CELL, vars(notebook))  # noqa: S102
    loader = DataLoader(notebook.Numbers())
    exec(CELL, vars(notebook))  # noqa: S102

    found = unpicklable(loader, "spawn")

    assert "an older class Numbers, which has been defined again" in found.text


def test_tensors_on_a_device_are_not_for_forked_workers():
    """A dataset that holds memory of a device is foreseen to fail under fork."""

    class OnDevice(torch.Tensor):
        device = torch.device("cuda:0")

    dataset = Plain(inner=Plain(tables=[torch.zeros(1), OnDevice()]))

    found = unpicklable(DataLoader(dataset), "fork")

    assert found.text.startswith("dataset.inner.tables[1] lies on a device")
    assert ".cpu()" in found.hint


def test_what_refers_to_itself_is_looked_at_once():
    """A dataset that holds itself does not keep the search from ending."""
    dataset = Plain()
    dataset.itself = [dataset]

    assert unpicklable(DataLoader(dataset), "fork") is None
    assert unpicklable(DataLoader(dataset), "spawn") is None
