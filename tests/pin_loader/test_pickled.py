"""What cannot be sent to workers, and what is said of it."""

from __future__ import annotations

import functools
import multiprocessing
import pickle
import sys
import threading
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, Dataset  # noqa: E402

from gpumagic.pin_loader import pickled as pickled_module  # noqa: E402
from gpumagic.pin_loader.pickled import unpicklable  # noqa: E402
from tests.pin_loader.sleepy import children  # noqa: E402


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


@pytest.mark.parametrize(
    ("held", "path", "what"),
    [
        ({"transform": lambda item: item}, "dataset.transform", "lambda"),
        ({"steps": [len, lambda item: item]}, "dataset.steps", "lambda"),
        ({"part": functools.partial(lambda item: item)}, "dataset.part", "lambda"),
        ({"lines": (line for line in "ab")}, "dataset.lines", "generator"),
        ({"lock": threading.Lock()}, "dataset.lock", "lock"),
    ],
)
def test_it_names_what_cannot_be_sent(held, path, what):
    """The attribute that cannot be pickled is named, with the reason."""
    found = unpicklable(DataLoader(Plain(**held)), "spawn")

    assert found.text.startswith(f"{path} cannot be sent to workers started by spawn")
    assert what in found.text
    assert "fork" in found.hint


@pytest.mark.parametrize("name", ["collate_fn", "worker_init_fn"])
def test_functions_of_the_loader_are_sent_as_well(name):
    """It is not the dataset alone that workers need."""
    loader = DataLoader(Plain(), **{name: lambda items: items})

    assert unpicklable(loader, "spawn").text.startswith(f"{name} cannot be sent")


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
    monkeypatch.setattr(pickled_module, "_LONGEST_PICKLING_S", -1)
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

    assert found.text.startswith("Numbers and glue are defined in this notebook")
    assert "%%writefile ds.py" in found.hint
    assert pickle.dumps(loader.dataset)


def test_classes_of_a_script_can_be_imported(notebook):
    """Spawned workers run the script again."""
    exec(CELL, vars(notebook))  # noqa: S102
    notebook.__file__ = "train.py"

    assert unpicklable(DataLoader(notebook.Numbers()), "spawn") is None


def test_what_refers_to_itself_is_looked_at_once():
    """A dataset that holds itself does not keep the search from ending."""
    dataset = Plain()
    dataset.itself = [dataset]

    assert unpicklable(DataLoader(dataset), "fork") is None
    assert unpicklable(DataLoader(dataset), "spawn") is None
