"""Names with what they hold, on the CPU: what counts for whom, and that it adds up."""

from __future__ import annotations

import gc
import sys
import traceback
import types

import pytest

torch = pytest.importorskip("torch")

from gpumagic.gpu_mem.balance import (  # noqa: E402
    compared,
    find_holdings,
    sizes,
)
from gpumagic.gpu_mem.names import (  # noqa: E402
    Sources,
)
from gpumagic.gpu_mem.walk import Budget  # noqa: E402

PATIENT = Budget(objects=10_000_000, seconds=60)


def tensor(nbytes):
    """A tensor of so many bytes."""
    return torch.zeros(nbytes, dtype=torch.uint8)


def find(namespace, allocated=None, *, budget=PATIENT, snapshot=(), **sources):
    """Who holds the memory of the CPU; modules are left out unless asked for."""
    sources = {"modules": False, **sources}
    where = Sources(namespace, "cpu", **sources)
    return find_holdings(where, {0: allocated}, budget=budget, snapshot=snapshot)


def rows(holdings):
    """The figures by name: alone, and altogether."""
    return {
        each.name: (each.own_bytes, each.reachable_bytes) for each in holdings.holders
    }


def in_notebook(code):
    """The names that a cell with this code leaves behind."""
    names = {"__name__": "__main__", "tensor": tensor}
    exec(code, names)  # noqa: S102 -- as a notebook does
    return names


def test_a_metaclass_of_the_users_is_not_asked():
    """Looking into a class runs nothing of its own."""
    names = in_notebook("""
class Meta(type):
    def __getattribute__(cls, name): raise RuntimeError("asked")
    def __hash__(cls): raise RuntimeError("asked")
    def __eq__(cls, other): raise RuntimeError("asked")
class Cache(metaclass=Meta):
    kept = tensor(1000)
""")

    assert rows(find(names)) == {"Cache.kept": (1000, 1000)}


def sums(holdings):
    """What each kind comes to."""
    return {kind: nbytes for _, kind, nbytes in holdings.sums}


def test_names_that_hold_more_than_is_allocated_are_no_negative_rest():
    """A surplus is shown as it is, with a remark, and nothing is below zero."""
    found = find({"x": tensor(100)}, 30)

    assert rows(found) == {"x": (100, 100)}
    assert found.allocated_bytes == ((0, 100),)
    assert "70 B" in found.remarks[0]


def test_the_users_modules_are_searched_and_no_others(monkeypatch, tmp_path):
    """A global of the user's own module is a holder; one of a library's is not."""
    mine, installed = types.ModuleType("mine"), types.ModuleType("installed")
    mine.__file__ = str(tmp_path / "mine.py")
    installed.__file__ = torch.__file__
    mine.cache, installed.cache = {"k": tensor(70)}, tensor(90)
    monkeypatch.setitem(sys.modules, "mine", mine)
    monkeypatch.setitem(sys.modules, "installed", installed)

    found = find({}, modules=True)

    assert rows(found)["mine.cache"] == (70, 70)
    assert "installed.cache" not in rows(found)


def test_the_change_since_an_earlier_look_is_told_by_name():
    """Each name is compared with what it reached before; a new one with nothing."""
    names = {"x": tensor(100), "y": tensor(30)}
    before = sizes(find(names, 200))
    names |= {"x": tensor(150), "new": tensor(5)}

    found = compared(before, find(names, 200), (0,))

    changes = {each.name: each.delta_bytes for each in found.holders}
    assert changes == {"x": 50, "y": 0, "new": 5, "no name found": -55}
    assert all(type(each) is int for each in before.values())


def test_nothing_is_collected_while_names_are_looked_for():
    """No look sets off a collection, however many names there are."""
    names = {f"n{number}": [{number: [number]}] for number in range(3000)}
    met = set()

    def note(*_):
        met.update(frame.name for frame in traceback.extract_stack())

    gc.callbacks.append(note)
    try:
        find(names | {"x": tensor(100)}, 100)
    finally:
        gc.callbacks.remove(note)

    assert "search" not in met
    assert gc.isenabled()
