"""Objects that raise when they are looked at cost a line at most, and no traceback."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from gpumagic.errors import GpuMagicError
from gpumagic.tensor_info import aliases, compare, describe, overview
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
    "number": (lambda: 5, "of type int", "type the name"),
    "dead proxy": (dead_proxy, "a weak reference", "type the name"),
    "raising proxy": (Refusing, "of type Refusing", "type the name"),
    "odd class": (lambda: Odd, "of type Unhashable", "type the name"),
    "mock of a tensor": (lambda: Mock(spec=torch.Tensor), "of type Mock", "type the"),
    "dict": (lambda: ItemsRaise(x=x), "a dict", "thing['x']"),
    "list": (lambda: [dead_proxy(), x], "a list", "thing[1]"),
    "empty list": (list, "a list", "type the name"),
    "module": (lambda: torch.nn.Linear(2, 3), "(Linear)", "thing.weight, thing.bias"),
    "half-made module": (HalfMade, "a module (HalfMade)", "type the name"),
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
    (group,) = aliases({"x": x, "d": {Refusing(): x}}).groups
    assert [each.name for each in group.names] == ["x", "d[<Refusing>]"]
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


class Loud:
    """Says of whom a look has run code."""

    def __init__(self):
        self.heard = []

    def __call__(self, name):
        """A method that says so."""

        def method(*_args, **_options):
            self.heard.append(name)
            raise AssertionError(f"looking has called {name}")

        return method


loud = Loud()


class Metaclass(type):
    """Its classes do not want to be compared."""

    __eq__ = loud("a metaclass's __eq__")
    __hash__ = type.__hash__


class HostileTensor(torch.Tensor):
    """A tensor that has its own answer to all it is asked."""

    untyped_storage = stride = size = numel = storage_offset = loud("a method")
    shape = dtype = device = layout = requires_grad = property(loud("a property"))
    __torch_function__ = classmethod(loud("__torch_function__"))


class HostileModule(torch.nn.Module):
    """A module that has its own lists of what it holds."""

    named_parameters = named_buffers = named_modules = loud("named_parameters")
    __getattr__ = loud("__getattr__")


class HostileOptimizer(torch.optim.SGD):
    """An optimizer whose state is a property."""

    def __init__(self):
        """No base class is asked."""
        self.__dict__.update(param_groups=[{"params": [x]}], state={x: {"sum": x}})

    state = property(loud("state"), loud("state"))


class HostileKey(str):
    """A key with methods of its own."""

    __slots__ = ()
    __repr__ = __str__ = __format__ = split = loud("a key's method")


class HostileValue(metaclass=Metaclass):
    """Of that metaclass."""


def test_no_code_of_a_class_is_run_by_looking():
    """Hostile tensors, modules, optimizers, keys and metaclasses are read as ever."""
    module = HostileModule.__new__(HostileModule)
    torch.nn.Module.__init__(module)
    module.__dict__["_parameters"]["weight"] = torch.nn.Parameter(x)
    tensor = x.as_subclass(HostileTensor)
    things = [tensor, module, {HostileKey("k"): x}, HostileValue(), HostileOptimizer()]

    found = describe(tensor)
    model = overview(things)
    optimizer = overview(things[-1])
    names = aliases({f"n{number}": each for number, each in enumerate(things)})
    compare(tensor, x, warp=True)

    assert (found.size, found.stride, found.kind) == (
        (6,),
        (1,),
        "tensor (HostileTensor)",
    )
    assert model.root.parameters == 6
    assert [each.name for each in optimizer.root.children] == ["group 0", "sum"]
    assert [each.name for each in names.groups[0].names] == [
        "n0",
        "n1.weight",
        "n2['k']",
    ]
    assert loud.heard == []
