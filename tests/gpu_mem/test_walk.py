"""What a search from an object finds, and what it leaves as it was."""

from __future__ import annotations

import dataclasses
import functools
import types
import warnings
import weakref

import pytest

torch = pytest.importorskip("torch")

from gpumagic.gpu_mem.walk import Budget, Walk  # noqa: E402
from tests.gpu_mem.storages_held import reachable_storages  # noqa: E402


def bytes_of(value):
    """All memory on the CPU that is reached from a value."""
    return sum(reachable_storages(value, kind="cpu").values())


def tensor(nbytes):
    """A tensor of so many bytes."""
    return torch.zeros(nbytes, dtype=torch.uint8)


@dataclasses.dataclass
class Batch:
    """What users keep tensors in."""

    images: object
    labels: object


def default_of(held):
    """A function that has it as a default."""

    def function(argument=held):
        return argument

    return function


def error_with(held):
    """An exception whose frame has it."""
    try:
        return len(held) // 0
    except ZeroDivisionError as error:
        return error


def cache_with(held):
    """What `functools.cache` has made of a function keeps what that returned."""
    cached = functools.cache(lambda: held)
    cached()
    return cached


HOLDERS = {
    "list": lambda held: [1, [held]],
    "dict": lambda held: {"k": {"deep": held}},
    "key": lambda held: {held: 1},
    "dataclass": lambda held: Batch(held, None),
    "default": default_of,
    "cache": cache_with,
    "partial": lambda held: functools.partial(print, held),
    "bound method": lambda held: Batch(held, 1).__repr__,
    "storage": lambda held: held.untyped_storage(),
    "error": error_with,
}


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)
def test_memory_is_found_wherever_python_keeps_it(holder):
    """Whatever keeps a tensor alive, its memory is found, once."""
    holding = holder(tensor(1000))

    assert bytes_of(holding) == 1000


def test_a_gradient_is_found_though_python_has_never_seen_it():
    """The gradient of a leaf counts, also that of a tensor that retains its own."""
    leaf = torch.ones(100, requires_grad=True)
    middle = leaf * 2
    middle.retain_grad()
    middle.sum().backward()

    assert bytes_of(leaf) == 800
    assert bytes_of(middle.detach()) == 400
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bytes_of(middle) == 400 * 4  # two tensors and their gradients


def test_the_search_ends_at_modules_classes_and_namespaces():
    """What is reached only through a module, a class or a namespace is not ours."""
    module = types.ModuleType("somewhere")
    module.held = tensor(10)
    owner = type("Owner", (), {"held": tensor(20)})
    names = {"held": tensor(40)}
    exec("def function(): return held", names)  # noqa: S102 -- as a notebook does

    assert bytes_of([module, owner, owner(), names["function"]]) == 0


class Liar:
    """Says that it is a tensor, and fails whatever it is asked."""

    def __init__(self, held):
        object.__setattr__(self, "held", held)

    @property
    def __class__(self):
        return torch.Tensor

    def __getattribute__(self, name):
        raise RuntimeError(name)

    def __eq__(self, other):
        raise RuntimeError("==")

    __hash__ = None


class Jealous(type):
    """A metaclass that answers nothing."""

    def __getattribute__(cls, name):
        raise RuntimeError(name)

    def __hash__(cls):
        raise RuntimeError("hash")

    def __eq__(cls, other):
        raise RuntimeError("==")


def test_hostile_objects_are_asked_nothing():
    """Proxies, liars and objects that always raise are looked into all the same."""

    class Gone:
        pass

    gone = Gone()
    dead = weakref.proxy(gone)
    del gone
    jealous = Jealous("Owner", (), {})()
    object.__setattr__(jealous, "held", tensor(7))

    assert bytes_of([dead, Liar(tensor(5)), jealous]) == 12


def test_no_override_of_a_subclass_is_called():
    """A tensor subclass with `__torch_function__` does not notice that it is read."""
    seen = []

    class Watched(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, classes, args=(), kwargs=None):
            seen.append(function)
            return super().__torch_function__(function, classes, args, kwargs)

    watched = torch.zeros(10).as_subclass(Watched)
    seen.clear()

    assert bytes_of(watched) == 40
    assert seen == []


def test_what_is_huge_is_looked_into_last():
    """A list of very many things does not use up what was meant for all names."""
    walk = Walk(torch, Budget(objects=5000, seconds=60))
    walk.enter([[n] for n in range(50_000)])
    walk.enter([[[[[tensor(10)]]]]])

    walk.run()

    assert walk.partial
    assert len(walk.stored) == 1
