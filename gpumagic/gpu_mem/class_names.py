"""What the user's own classes hold: a cache that is an attribute of a class, mostly.

A search ends at classes, since they lead to whole libraries. Those of the user's are
small, and what is in them has a name of its own: `Cache.kept`.
"""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


def in_classes(
    names: Iterable[tuple[str, Any]], module: Any
) -> Iterator[tuple[str, Any]]:
    """The attributes of classes that were made in a module, as `Class.attribute`.

    No attribute is asked for by name, and no metaclass: both may be the user's code.

    Args:
        names: What may be classes, by name; each class is told once.

        module: The `__name__` of the module.
    """
    seen = set[int]()
    waiting = [pair for pair in names if issubclass(type(pair[1]), type)]
    while waiting:
        name, cls = waiting.pop(0)
        if id(cls) in seen:
            continue
        seen.add(id(cls))
        attributes = _attributes(cls)
        if attributes.get("__module__") != module:
            continue
        for attribute, value in list(attributes.items()):
            where = f"{name}.{attribute}"
            if issubclass(type(value), type):
                waiting.append((where, value))
            elif not _is_empty_function(value):
                yield where, value


def _attributes(cls: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = vars(type)["__dict__"].__get__(cls)
    return found


def _is_empty_function(value: Any) -> bool:
    """Whether a method keeps nothing: no default values, nothing of a closure."""
    return type(value) is FunctionType and not (
        value.__defaults__ or value.__kwdefaults__ or value.__closure__
    )
