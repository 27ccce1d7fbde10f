"""What an object is, told without running any code of its own."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable

import pytest

from gpumagic.report.introspection import (
    attributes_of,
    class_has,
    class_name,
    is_array,
    is_truly,
    is_weak_proxy,
    spelled,
)


class Pretending:
    """Says that it is a dict."""

    @property
    def __class__(self):
        return dict


class Refusing:
    """Raises at whatever it is asked."""

    @property
    def __class__(self):
        raise RuntimeError("outside of a request")

    def __getattr__(self, name):
        raise RuntimeError(name)

    def __repr__(self):
        raise RuntimeError("no words")


class Unhashable(type):
    """A metaclass whose classes cannot be asked for much."""

    def __getattr__(cls, name):
        raise RuntimeError(name)

    def __hash__(cls):
        raise RuntimeError("no hash")


class Odd(metaclass=Unhashable):
    """Of that metaclass."""


class Living:
    """Can be referred to weakly."""


def dead_proxy():
    """A weak reference whose object is gone."""
    return weakref.proxy(Living())


@pytest.mark.parametrize("make", [Pretending, Refusing, Odd, dead_proxy])
def test_nothing_raises_and_nothing_is_believed(make):
    """An object is what its class is, whatever it says or raises."""
    thing = make()

    assert not is_truly(thing, dict)
    assert not is_truly(thing, (list, str))
    assert not is_truly(thing, Iterable) or make is dead_proxy
    assert not class_has(thing, "shape")
    assert class_has(thing, "__repr__")
    assert attributes_of(thing) in ({}, None)
    assert class_name(thing)
    assert is_weak_proxy(thing) is (make is dead_proxy)


def test_what_is_one_is_one():
    """Subclasses count, and so do the abstract classes of collections."""
    assert is_truly(True, int)
    assert is_truly([], (dict, list))
    assert is_truly([], Iterable)
    assert class_has([], "append")
    assert attributes_of(Living()) == {}
    assert class_name(Living()) == "Living"


def test_what_cannot_be_spelled_is_named_by_its_class():
    """A failing `repr` costs the words, no more."""
    assert spelled("w") == "'w'"
    assert spelled(Refusing()) == "<Refusing>"


def test_an_interrupt_goes_through():
    """Ctrl-C while an object spells itself is the user's."""

    class Slow:
        def __repr__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        spelled(Slow())


def test_an_array_is_one_by_its_class(monkeypatch):
    """What only says so is none, and numpy is not imported to find out."""
    numpy = pytest.importorskip("numpy")

    class Posing:
        __class__ = numpy.ndarray

    assert is_array(numpy.zeros(2))
    assert is_array(numpy.ma.zeros(2))
    assert not is_array(Posing())
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert not is_array(numpy.zeros(2))
