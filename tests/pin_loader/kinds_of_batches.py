"""Batches of every kind that people's collate functions return."""

# ruff: noqa: D102 -- the methods are those that libraries look for

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch


class Pair(NamedTuple):
    """What a namedtuple looks like; a constructor of its own is the exception."""

    image: Any
    label: Any


class Picky(tuple):
    """A tuple whose constructor asks for its parts one by one."""

    __slots__ = ()

    def __new__(cls, first, second):
        """Two parts, and no sequence of them."""
        return super().__new__(cls, (first, second))


@dataclass
class Sample:
    """The most usual batch of a class of one's own."""

    image: Any
    more: Any = None


@dataclass(frozen=True, slots=True)
class Frozen:
    """Nothing may be assigned to it."""

    image: Any
    more: Any = None


class Plain:
    """An object that nothing says to be a container."""

    def __init__(self, image):
        self.image = image


class Box(MutableMapping):
    """A mapping of the user's, which an ordinary copy would share the items of."""

    def __init__(self, items):
        self._items = dict(items)

    def __getitem__(self, key):
        return self._items[key]

    def __setitem__(self, key, value):
        self._items[key] = value

    def __delitem__(self, key):
        del self._items[key]

    def __iter__(self):
        return iter(self._items)

    def __len__(self):
        return len(self._items)


class Sealed(Mapping):
    """A mapping that cannot be changed."""

    def __init__(self, items):
        self._items = dict(items)

    def __getitem__(self, key):
        return self._items[key]

    def __iter__(self):
        return iter(self._items)

    def __len__(self):
        return len(self._items)


class PinsItself(dict):
    """A dict that pins itself."""

    def pin_memory(self):
        return PinsItself({key: ("pinned", part) for key, part in self.items()})


class Graph:
    """As the data of PyG: maps itself, in place, and has parts that refer back."""

    def __init__(self, **parts):
        self._parts = parts
        self._back = [self]

    def __copy__(self):
        return Graph(**copy.copy(self._parts))

    def to_dict(self):
        return dict(self._parts)

    def apply(self, function):
        self._parts = {key: function(part) for key, part in self._parts.items()}
        return self

    def to(self, device, *, non_blocking=False):
        return self.apply(
            lambda x: x.to(device, non_blocking=non_blocking) if _is_tensor(x) else x
        )

    def pin_memory(self):
        return copy.copy(self).apply(lambda x: x.pin_memory() if _is_tensor(x) else x)


def _is_tensor(thing):
    return isinstance(thing, torch.Tensor)
