"""What cannot be sent to workers, and what is said of it."""

from __future__ import annotations

import pickle
import sys
import threading
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, Dataset  # noqa: E402

from gpumagic.pin_loader import pickled as pickled_module  # noqa: E402
from gpumagic.pin_loader.pickled import unpicklable  # noqa: E402


class Plain(Dataset):
    """A dataset that holds what it is given."""

    def __init__(self, **held):
        vars(self).update(held)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.tensor(index)


@pytest.mark.parametrize(
    ("held", "path", "what"),
    [
        ({"transform": lambda item: item}, "dataset.transform", "lambda"),
        ({"steps": [len, lambda item: item]}, "dataset.steps", "lambda"),
        ({"lock": threading.Lock()}, "dataset.lock", "lock"),
    ],
)
def test_it_names_what_cannot_be_sent(held, path, what):
    """The attribute that cannot be pickled is named, with the reason."""
    found = unpicklable(DataLoader(Plain(**held)), "spawn")

    assert found.text.startswith(f"{path} cannot be sent to workers started by spawn")
    assert what in found.text
    assert "fork" in found.hint


def test_forked_workers_need_nothing_sent():
    """They have everything already, lambdas included."""
    assert unpicklable(DataLoader(Plain(transform=lambda item: item)), "fork") is None


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

    assert found.text.startswith("workers started by spawn cannot import what this")
    assert "%%writefile ds.py" in found.hint
    assert pickle.dumps(loader.dataset)
