"""What operations take on the host is noted when it is taken and given back."""

from __future__ import annotations

import sys

import pytest

from gpumagic.devices import torch_private
from gpumagic.devices.host_allocations import HostAllocations

torch = pytest.importorskip("torch")

MIB = 1 << 20


def recorded(code):
    """What was taken (above zero) and given back (below) while some code ran."""
    recorder = HostAllocations(torch, None)
    recorder.start()
    try:
        code()
    finally:
        trace = recorder.stop()
    return [each.nbytes if each.taken else -each.nbytes for each in trace.events[0]]


def test_what_is_made_is_taken_and_what_dies_is_given_back():
    """A result is taken when it is there; the one before goes with its last name."""

    def code():
        x = torch.zeros(MIB, dtype=torch.uint8)
        x = torch.cat([x, x])
        del x

    assert recorded(code) == [MIB, 2 * MIB, -MIB, -2 * MIB]


def test_views_and_tensors_elsewhere_take_nothing_of_the_host():
    """Another look at the same bytes, and bytes that are not there, are no memory."""
    x = torch.zeros(MIB, dtype=torch.uint8)

    def code():
        views = [x[1:], x.view(1024, 1024), *x.split(1024)]
        nowhere = torch.empty(MIB, device="meta")
        del views, nowhere

    assert recorded(code) == []


def test_results_in_lists_are_taken_one_by_one():
    """An operation that makes several tensors takes what they take together."""
    x = torch.ones(2, MIB, dtype=torch.float32)
    found = []

    def code():
        found.extend(torch.sort(x))

    assert recorded(code) == [8 * MIB, 16 * MIB]


def test_what_was_there_before_is_given_back_where_it_dies():
    """Memory of before counts when it goes: the peak is what was there, not less."""
    held = [torch.zeros(MIB, dtype=torch.uint8)]

    assert recorded(held.clear) == [-MIB]


@pytest.mark.parametrize("kind", ["function", "model", "plain"])
def test_of_compiled_code_it_is_said_what_becomes_of_it(monkeypatch, kind):
    """A name of the notebook is enough, as it may be called in this cell."""

    def fast():
        """A function that torch.compile has handed out, if it is marked so."""

    class OptimizedModule:
        """A model that it has."""

    if kind == "function":
        fast._torchdynamo_orig_callable = fast
    mine = OptimizedModule() if kind == "model" else fast
    monkeypatch.setattr(sys.modules["__main__"], "mine", mine, raising=False)
    monkeypatch.setattr(torch_private, "compilations", lambda _: 0)
    recorder = HostAllocations(torch, None)
    recorder.start()

    remarks = recorder.stop().remarks

    assert ["torch.compile has been used" in each for each in remarks] == (
        [] if kind == "plain" else [True]
    )
