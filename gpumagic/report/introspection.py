"""What an object is by its class alone, so that no code of the object's own is run.

`isinstance` and `hasattr` ask the object as well. One that stands for another may raise
there: a weak reference whose object is gone, a proxy outside of its request. Or it
passes for a tensor, and torch's functions in C then read memory that is none.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def is_truly(thing: Any, kinds: type | tuple[type, ...]) -> bool:
    """Whether an object is of one of these classes, whatever its `__class__` says."""
    try:
        return issubclass(type(thing), kinds)
    except Exception:  # noqa: BLE001 - a metaclass may refuse to be hashed or compared
        return False


def is_array(thing: Any) -> bool:
    """Whether something is a numpy array; numpy is not imported to find out."""
    kind = getattr(sys.modules.get("numpy"), "ndarray", None)
    return kind is not None and is_truly(thing, kind)


def is_weak_proxy(thing: Any) -> bool:
    """Whether it stands for another object by a weak reference."""
    return is_truly(thing, weakref.ProxyTypes)


def class_has(thing: Any, name: str) -> bool:
    """Whether the class of an object, or a base of it, defines a name."""
    bases = type.__getattribute__(type(thing), "__mro__")
    return any(name in type.__getattribute__(base, "__dict__") for base in bases)


def attributes_of(thing: Any) -> dict[str, Any] | None:
    """What an object itself holds, by name; None where it holds nothing so."""
    try:
        held = object.__getattribute__(thing, "__dict__")
    except Exception:  # noqa: BLE001 - a proxy may offer that of another object
        return None
    return held if type(held) is dict else None


def class_name(thing: Any) -> str:
    """The name of the class as it is written in its module."""
    return str(type.__getattribute__(type(thing), "__qualname__"))


def spelled(thing: Any) -> str:
    """An object as code, or its class in angle brackets where it cannot say so."""
    try:
        return repr(thing)
    except Exception:  # noqa: BLE001 - the user's own __repr__ may raise anything
        return f"<{class_name(thing)}>"


@contextlib.contextmanager
def without_collecting() -> Iterator[None]:
    """Make very many objects that stay: to look for garbage among them takes longer."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
