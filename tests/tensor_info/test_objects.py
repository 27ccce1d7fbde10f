"""Objects that raise when they are looked at cost a line at most, and no traceback."""

from __future__ import annotations

import weakref
from unittest.mock import Mock

import pytest

from gpumagic.errors import GpuMagicError
from gpumagic.tensor_info import aliases, compare, describe
from tests.report.test_introspection import Odd, Refusing, dead_proxy

torch = pytest.importorskip("torch")


class ItemsRaise(dict):
    """A dict whose own `items` does not work."""

    def items(self):
        """Fail."""
        raise RuntimeError("no items")


class HalfMade(torch.nn.Module):
    """A module whose parameters cannot be asked for."""

    def __init__(self):
        """Leave out the base class, as is often forgotten."""


x = torch.arange(6.0)
ODD = {
    "dead proxy": (dead_proxy, "a weak reference", "that object itself"),
    "live proxy": (lambda: weakref.proxy(x), "a weak reference", "that object"),
    "raising proxy": (Refusing, "of type Refusing", "type the name"),
    "odd class": (Odd, "of type Odd", "type the name"),
    "odd class itself": (lambda: Odd, "of type Unhashable", "type the name"),
    "mock of a tensor": (lambda: Mock(spec=torch.Tensor), "of type Mock", "type the"),
    "mock of a dict": (lambda: Mock(spec=dict), "of type Mock", "type the name"),
    "dict": (lambda: ItemsRaise(x=x), "a dict of 1 tensor", "thing['x']"),
    "list": (
        lambda: [dead_proxy(), Refusing(), x],
        "a list with 1 tensor among 3 items",
        "thing[2]",
    ),
    "half-made module": (HalfMade, "(HalfMade) with no parameters", "name a tensor"),
}


@pytest.mark.parametrize("case", ODD)
def test_an_odd_object_is_refused_in_two_lines(case):
    """It is said what it is; none of its own errors comes through."""
    make, problem, hint = ODD[case]
    odd = make()

    with pytest.raises(GpuMagicError) as caught:
        describe(odd, expression="thing")

    assert caught.value.problem.startswith("thing is no tensor, but ")
    assert problem in caught.value.problem
    assert hint in caught.value.hint


def test_odd_objects_do_not_hide_the_tensors_beside_them():
    """Names that nobody asked about are passed over in silence."""
    names = {case.replace(" ", "_"): make() for case, (make, *_) in ODD.items()}
    found = aliases({**names, "x": x, Refusing(): x} | {"y": x})

    (group,) = found.groups
    assert [each.name for each in group.names][-2:] == ["x", "y"]
    assert "dict['x']" in [each.name for each in group.names]
    assert found.remarks == ()


def test_an_odd_object_that_is_asked_about_costs_one_remark():
    """Beside a tensor it is a line, in both kinds of report."""
    compared = compare(x, dead_proxy(), expressions=("x", "gone"))
    shared = aliases({"x": x, "y": x}, only=[x, Refusing()], expressions=("x", "odd"))

    (remark,) = compared.remarks
    assert "gone is no tensor, but a weak reference" in remark
    (remark,) = shared.remarks
    assert "odd is no tensor, but of type Refusing" in remark
    assert len(shared.groups) == 1


def test_only_odd_objects_are_an_error_of_aliases():
    """Where nothing that is asked about is a tensor, that is the answer."""
    with pytest.raises(GpuMagicError, match="gone is no tensor"):
        aliases({"x": x}, only=[dead_proxy()], expressions=("gone",))


def test_a_key_without_words_is_named_by_its_class():
    """A key that cannot be spelled does not end the search."""
    (group,) = aliases({"x": x, "d": {Refusing(): x}}).groups

    assert [each.name for each in group.names] == ["x", "d[<Refusing>]"]


def test_an_interrupt_goes_through():
    """Ctrl-C while a key spells itself is the user's."""

    class Slow:
        def __repr__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        aliases({"d": {Slow(): x}})


def inside_itself(*items):
    """A list that contains itself."""
    outer = list(items)
    outer.append(outer)
    return outer


CONTAINERS = {
    "beside itself": (lambda: inside_itself(x), "1 tensor among 2 items", "xs[0]"),
    "only itself": (inside_itself, "a list without a tensor in it or", "name one"),
    "deep": (lambda: [[], ({"w": [x]},)], "further down", "xs[1][0]['w'][0]"),
    "nearest first": (lambda: [[[x]], {"near": x}], "further down", "xs[1]['near']"),
    "too many": (lambda: [[0] * 20_000, [x]], "not all of it was searched", "name"),
}


@pytest.mark.parametrize("case", CONTAINERS)
def test_what_a_container_holds_is_said_truly(case):
    """A tensor is found on any level; where none was, it is said how far was looked."""
    make, problem, hint = CONTAINERS[case]

    with pytest.raises(GpuMagicError) as caught:
        describe(make(), expression="xs")

    assert problem in caught.value.problem
    assert hint in caught.value.hint
