"""The attributes of an object, read and set past everything that its class does there.

Properties are not computed, `__setattr__` and `__init__` are not called: so a frozen
class can be filled, and nothing happens a second time.
"""

from __future__ import annotations

import copy
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def held_by(thing: Any) -> dict[str, Any]:
    """All that an object has in its `__dict__` and in its slots."""
    held = dict(getattr(thing, "__dict__", {}))
    for name, slot in _slots(type(thing)).items():
        try:
            held[name] = slot.__get__(thing)
        except AttributeError:  # nothing has been put there
            continue
    return held


def copy_of(thing: Any) -> Any:
    """A shallow copy: by the class's own way where it has one, else by attributes."""
    if hasattr(type(thing), "__copy__"):
        return copy.copy(thing)
    try:
        clone = object.__new__(type(thing))
    except TypeError:  # it is built on a class that is written in C
        return copy.copy(thing)
    fill(clone, held_by(thing))
    return clone


def fill(thing: Any, values: Mapping[str, Any]) -> None:
    """Set attributes where they are kept."""
    slots = _slots(type(thing))
    for name, value in values.items():
        if name in slots:
            slots[name].__set__(thing, value)
        else:
            vars(thing)[name] = value


def _slots(kind: type) -> dict[str, MemberDescriptorType]:
    return {
        name: slot
        for each in kind.__mro__
        if "__slots__" in each.__dict__
        for name, slot in each.__dict__.items()
        if isinstance(slot, MemberDescriptorType)
    }
