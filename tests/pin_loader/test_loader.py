"""What is read of a loader, and that reading takes nothing from it."""

from __future__ import annotations

import io
import itertools
import multiprocessing
import random
import subprocess
import sys
import weakref

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import (  # noqa: E402
    BatchSampler,
    DataLoader,
    IterableDataset,
    SequentialSampler,
    Subset,
)

from gpumagic.pin_loader import diagnose  # noqa: E402
from gpumagic.pin_loader.loader import (  # noqa: E402
    NotALoader,
    facts_of,
    one_shot_reason,
    start_method_of,
)
from gpumagic.pin_loader.report import (  # noqa: E402
    LoaderKind,
    State,
)
from tests.pin_loader.loader_kinds import (  # noqa: E402
    KINDS,
    Gentle,
    InPairs,
    Numbers,
    SizedStream,
    Stream,
)
from tests.report.test_introspection import Odd, Refusing, dead_proxy  # noqa: E402

PLAIN = DataLoader(Numbers(), 2)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_reading_takes_nothing(kind):
    """No random number is drawn, and the loader holds what it held."""
    loader = kind.make()
    held = dict(vars(loader))
    numbers, of_python = torch.get_rng_state(), random.getstate()

    facts_of(loader)
    one_shot_reason(loader)

    assert vars(loader) == held
    assert torch.equal(torch.get_rng_state(), numbers)
    assert random.getstate() == of_python


def test_a_loader_is_told_as_it_is_set():
    """Every setting is read; the sampler is the one that was chosen."""
    loader = DataLoader(
        Numbers(),
        4,
        shuffle=True,
        num_workers=2,
        pin_memory=True,
        multiprocessing_context="spawn",
    )

    facts = facts_of(loader, "train_dl")

    assert facts.to_dict() == {
        "kind": LoaderKind.BATCHED.value,
        "class_name": "DataLoader",
        "name": "train_dl",
        "dataset": "Numbers",
        "sampler": "RandomSampler",
        "length": 6,
        "batch_size": 4,
        "workers": 2,
        "prefetch_factor": 2,
        "pin_memory": True,
        "persistent_workers": False,
        "start_method": "spawn",
        "live_iterator": False,
    }


@pytest.mark.parametrize(
    ("loader", "kind", "sampler", "size"),
    [
        (
            DataLoader(Numbers(), batch_sampler=InPairs()),
            LoaderKind.BATCH_SAMPLER,
            "InPairs",
            2,
        ),
        (DataLoader(Numbers(), None), LoaderKind.UNBATCHED, "SequentialSampler", None),
        (DataLoader(Stream(), 4), LoaderKind.ITERABLE, None, 4),
        (DataLoader(Stream(), None), LoaderKind.ITERABLE, None, None),
    ],
    ids=lambda each: each.name if isinstance(each, LoaderKind) else "",
)
def test_the_kinds_are_told_apart(loader, kind, sampler, size):
    """What chooses the batches is the user's batch sampler, or no sampler at all."""
    facts = facts_of(loader)

    assert (facts.kind, facts.sampler, facts.batch_size) == (kind, sampler, size)


def test_a_length_that_cannot_be_told_is_unknown():
    """A stream has none, and a `__len__` that fails is no failure of ours."""

    class Broken(Numbers):
        def __len__(self):
            raise RuntimeError("the files are gone")

    assert facts_of(DataLoader(Stream(), 4)).length is None
    assert facts_of(DataLoader(Broken(), 4)).length is None


def test_asking_for_a_length_leaves_no_note():
    """A sized stream would warn of too many batches, had its length been asked for."""
    loader = DataLoader(SizedStream(), 4)

    facts = facts_of(loader)

    assert facts.length == 6
    assert loader._IterableDataset_len_called is None


def test_a_length_that_is_drawn_leaves_the_numbers_as_they_were():
    """Some batch samplers draw their batches to count them."""

    class Drawn(InPairs):
        def __len__(self):
            return len(torch.randperm(7))

    loader = DataLoader(Numbers(), batch_sampler=Drawn())
    numbers = torch.get_rng_state()

    facts = facts_of(loader)

    assert facts.length == 7
    assert torch.equal(torch.get_rng_state(), numbers)


def test_the_start_method_is_the_loaders_own():
    """A context of the loader counts before any default."""
    loader = DataLoader(
        Numbers(),
        num_workers=1,
        multiprocessing_context=multiprocessing.get_context("spawn"),
    )

    assert start_method_of(loader) == "spawn"


def test_asking_settles_no_default():
    """A default of multiprocessing can still be chosen after it was asked for."""
    code = (
        "import multiprocessing as m\n"
        "from gpumagic.pin_loader.loader import start_method_of\n"
        "first = start_method_of(object())\n"
        "assert first == m.get_all_start_methods()[0]\n"
        "m.set_start_method('spawn')\n"
        "assert start_method_of(object()) == 'spawn'\n"
        "import sys\n"
        "assert 'torch' not in sys.modules\n"
    )

    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_the_start_method_stays_open(monkeypatch):
    """Where nobody has chosen one, asking does not choose for the whole process."""
    asked = []

    def undecided(allow_none=False):  # noqa: FBT002 -- Python's own signature
        asked.append(allow_none)
        return None if allow_none else "spawn"

    monkeypatch.setattr(multiprocessing, "get_start_method", undecided)

    facts = facts_of(DataLoader(Numbers()))

    assert asked == [True]
    assert facts.start_method == multiprocessing.get_all_start_methods()[0]


def test_workers_that_wait_for_the_next_epoch_are_told():
    """They have the settings of the time when they were started."""
    loader = DataLoader(Numbers(), 8, num_workers=1, persistent_workers=True)
    before = facts_of(loader).live_iterator
    list(loader)

    after = facts_of(loader).live_iterator

    loader._iterator._shutdown_workers()
    assert (before, after) == (False, True)
    assert not facts_of(loader).live_iterator


def test_a_class_of_the_users_is_named_with_its_package():
    """Only torch's own classes, and those of the notebook, need no package."""
    loader = Gentle(Numbers(), 1)

    assert facts_of(loader).class_name == "tests.Gentle"


@pytest.mark.parametrize(
    ("thing", "word", "hint"),
    [
        (torch.ones(3), "a Tensor", "name a DataLoader"),
        (3, "an int", "name a DataLoader"),
        ([1, 2], "a list", "name a DataLoader"),
        ({"a": 1}, "a dict", "name a DataLoader"),
        (DataLoader, "a class", "name what it makes: loader = x(...)"),
        (lambda: (), "a function", "name what it makes: loader = x(...)"),
        (torch.nn.Sequential(torch.nn.Identity()), "a Sequential", "is given"),
        (torch.nn.ModuleDict(), "a ModuleDict", "is given"),
        (torch.nn.ParameterList(), "a ParameterList", "is given"),
        (range(3), "a range", "name a DataLoader"),
        (SequentialSampler(range(3)), "a SequentialSampler", "sampler=x)"),
        (
            BatchSampler(range(3), 2, drop_last=False),
            "a BatchSampler",
            "(dataset, batch_sampler",
        ),
        (Numbers(), "Numbers", "DataLoader(x, batch_size=...)"),
        (Subset(Numbers(), [1]), "a Subset", "DataLoader(x, batch_size=...)"),
        (Stream(), "Stream", "DataLoader(x, batch_size=...)"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_gives_no_batches_is_refused(thing, word, hint):
    """It is said what was found, and what to type instead."""
    with pytest.raises(NotALoader) as refused:
        facts_of(thing, "x")

    assert word in refused.value.problem
    assert "`x`" in refused.value.problem
    assert hint in refused.value.hint


@pytest.mark.parametrize(
    ("make", "said", "hint"),
    [
        (dead_proxy, "a weak reference to another object", "that object itself"),
        (lambda: weakref.proxy(PLAIN), "a weak reference", "that object itself"),
        (Refusing, "Refusing, which is no loader", "name a DataLoader"),
        (Odd, "Odd, which is no loader", "name a DataLoader"),
    ],
)
def test_what_raises_when_it_is_looked_at_is_refused_all_the_same(make, said, hint):
    """None of an object's own errors comes through."""
    thing = make()

    with pytest.raises(NotALoader) as refused:
        facts_of(thing, "x")
    with pytest.raises(NotALoader):
        diagnose(thing, name="x")

    assert said in refused.value.problem
    assert hint in refused.value.hint


def test_a_loader_of_ones_own_may_raise_for_all_that_it_has_not():
    """What iterates is a loader, whatever its `__getattr__` does."""

    class Own(Refusing):
        def __iter__(self):
            return iter([torch.ones(2)])

    facts = facts_of(Own(), "x")

    assert (facts.kind, facts.length) == (LoaderKind.FOREIGN, None)
    assert one_shot_reason(Own()) is None


def test_a_dataset_may_hold_what_raises_when_it_is_looked_at():
    """A loader is looked into for generators and iterators, and none of it is asked."""
    dataset = Numbers()
    dataset.odd = [dead_proxy(), Refusing(), {"odd": Odd()}]
    dataset.gone, dataset.refusing = dead_proxy(), Refusing()
    loader = DataLoader(dataset, 2)
    loader.odd = Refusing()

    report = diagnose(loader, name="x", budget_s=0.2)

    assert report.state is State.NO_ACCELERATOR
    assert one_shot_reason(loader) is None


def test_what_holds_a_loader_is_asked_for_it():
    """A module of Lightning, or a Trainer, has a method that gives it."""

    class Module:
        def train_dataloader(self):
            """Never called by us."""
            raise AssertionError

    with pytest.raises(NotALoader, match=r"m\.train_dataloader\(\)"):
        facts_of(Module(), "m")


def test_what_gives_batches_in_its_own_way_is_foreign():
    """Its length is known if it has one; nothing else is."""

    class Own:
        def __iter__(self):
            raise AssertionError  # never called by us

        def __len__(self):
            return 5

    facts = facts_of(Own())

    assert (facts.kind, facts.length) == (LoaderKind.FOREIGN, 5)
    assert (facts.workers, facts.pin_memory) == (None, None)


# ------------------------------------------------------------------------- one shot


class Consumed(IterableDataset):
    """Gives what an iterator gives, and holds that."""

    def __init__(self, source):
        self.source = source

    def __iter__(self):
        yield from self.source


class ItsOwnIterator(IterableDataset):
    """Goes on where it stopped."""

    def __iter__(self):
        return self

    def __next__(self):
        raise AssertionError  # never called by us


class MadeAnew(IterableDataset):
    """Has an iterator left from the last time, and makes another one each time."""

    def __init__(self):
        self.rows = iter(range(3))

    def __iter__(self):
        self.rows = iter(range(3))
        yield from self.rows


class Rewound(Consumed):
    """Begins its file again."""

    def __iter__(self):
        self.source.seek(0)
        yield from self.source


@pytest.mark.parametrize(
    ("loader", "word"),
    [
        ((number for number in range(3)), "an iterator"),
        (iter(DataLoader(Numbers())), "an iterator"),
        (DataLoader(ItsOwnIterator()), "its own iterator"),
        (DataLoader(Consumed(n for n in range(3))), "`self.source`"),
        (DataLoader(Consumed(map(int, "123"))), "`self.source`"),
        (DataLoader(Consumed(io.StringIO("1\n2"))), "`self.source`"),
        (DataLoader(Numbers(), sampler=iter([1, 2])), "its sampler"),
        (DataLoader(Numbers(), batch_sampler=iter([[1, 2]])), "its batch_sampler"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_is_used_up_by_looking_is_told(loader, word):
    """Generators, files and the like have only one pass, and nothing is taken."""
    reason = one_shot_reason(loader)

    assert reason is not None
    assert word in reason


def test_asking_takes_nothing_from_an_iterator():
    """All that it had, it still has."""
    numbers = iter(range(3))

    one_shot_reason(DataLoader(Consumed(numbers)))
    one_shot_reason(numbers)

    assert list(numbers) == [0, 1, 2]


@pytest.mark.parametrize(
    "dataset",
    [
        Stream(),
        Numbers(),
        MadeAnew(),
        Rewound(io.StringIO("1\n2")),
        Consumed([1, 2, 3]),
        Consumed(itertools.cycle([1])),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_begins_anew_is_not_refused(dataset):
    """A dataset that can be gone through again is none of them."""
    assert one_shot_reason(DataLoader(dataset)) is None


@pytest.mark.filterwarnings("ignore")
def test_data_pipes_begin_anew_unless_their_source_does_not():
    """They are their own iterators by class, and not by nature."""
    pipes = pytest.importorskip("torch.utils.data.datapipes.iter")
    again = pipes.IterableWrapper([1, 2]).shuffle()
    once = pipes.IterableWrapper(n for n in range(3)).shuffle()

    assert one_shot_reason(DataLoader(again)) is None
    assert "datapipe.iterable" in (one_shot_reason(DataLoader(once)) or "")
