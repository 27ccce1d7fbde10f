"""What a batch is made of: any container taken apart, and put together again.

Nothing is told apart by trying it out: a container says by its class what it is. One
that is put together again is a new object of the same class; the old one stays as it
is. Constructors are not called where a copy will do, as they may have side effects.
"""

from __future__ import annotations

import array
import copy
import enum
from collections import deque
from collections.abc import (
    Callable,
    Mapping,
    MutableMapping,
    MutableSequence,
    Sequence,
)
from typing import Any, NamedTuple

from gpumagic.errors import GpuMagicError
from gpumagic.pin_loader.batch import attributes
from gpumagic.pin_loader.batch.recognising import (
    field_names,
    is_plain_object,
    maps_itself,
    moves_itself,
)

DEEPEST = 100  # levels: what is nested deeper contains itself

# They look like containers, and hold numbers or characters only.
_ATOMS = (str, bytes, bytearray, memoryview, range, array.array, enum.Enum, type)
_COPIED_BY_PYTHON = (dict, list, deque)


class Opened(NamedTuple):
    """A container taken apart.

    Attributes:
        keys: What leads to each part.

        values: The parts.

        path: The way to a part as one would type it, from that to the container.

        close: Makes a container of the same class of new parts. If `begin` was
            called, it fills what that gave.

        begin: Makes the new container before its parts are known, where that can be
            done: its parts may then refer to it.
    """

    keys: Sequence[Any]
    values: Sequence[Any]
    path: Callable[[str, Any], str]
    close: Callable[[Sequence[Any], Any], Any]
    begin: Callable[[], Any] | None = None


def opened(thing: Any, *, objects: bool = False) -> Opened | None:
    """A container taken apart; None for everything that is none.

    Args:
        thing: Anything but a tensor.

        objects: Whether an object with attributes is taken for a container, even if
            nothing says that it is one.
    """
    if isinstance(thing, _ATOMS):
        return None
    if maps_itself(thing):
        return _opened_mapping_itself(thing)
    ways: tuple[tuple[Any, Callable[[Any], Opened]], ...] = (
        (Mapping, _opened_mapping),
        (tuple, _opened_tuple),
        (Sequence, _opened_sequence),
        (set | frozenset, _opened_set),
    )
    for kind, way in ways:
        if isinstance(thing, kind):
            return way(thing)
    return _opened_object(thing, objects=objects)


def too_deep(thing: Any) -> GpuMagicError:
    """The error for a batch without an end."""
    return GpuMagicError(
        f"the batch contains itself, or is nested more than {DEEPEST} levels deep: "
        f"the last of them is a {type(thing).__name__}",
        "let the collate_fn return tensors in tuples, dicts or dataclasses, each "
        "inside of one other",
    )


# --------------------------------------------------------- by what leads to parts


def _opened_mapping(thing: Mapping[Any, Any]) -> Opened:
    # By its items, and once: some make their values when they are asked for them.
    items = list(thing.items())
    keys = [key for key, _ in items]

    def close(values: Sequence[Any], _: Any) -> Any:
        return _mapping_like(thing, dict(zip(keys, values, strict=True)))

    return Opened(keys, [value for _, value in items], _by_key, close)


def _mapping_like(thing: Mapping[Any, Any], new: dict[Any, Any]) -> Any:
    if isinstance(thing, MutableMapping):
        try:
            clone = shallow_copy(thing)
            for key, value in new.items():
                clone[key] = value
        except TypeError:  # it says that it can be changed, and cannot
            pass
        else:
            return clone
    make: Any = type(thing)
    try:
        return make(new)
    except TypeError:
        return new


def _opened_tuple(thing: tuple[Any, ...]) -> Opened:
    fields = getattr(thing, "_fields", None)
    if fields is None:
        return Opened(
            range(len(thing)), thing, _by_key, lambda new, _: _tuple_like(thing, new)
        )
    return Opened(fields, thing, _by_name, lambda new, _: _fields_like(thing, new))


def _tuple_like(thing: tuple[Any, ...], new: Sequence[Any]) -> Any:
    make: Any = type(thing)
    try:
        return make(new)
    except TypeError:
        return _fields_like(thing, new)


def _fields_like(thing: tuple[Any, ...], new: Sequence[Any]) -> Any:
    """By position, whatever a constructor of its own would ask for."""
    made = tuple.__new__(type(thing), new)
    if hasattr(thing, "__dict__"):
        vars(made).update(vars(thing))
    return made


def _opened_sequence(thing: Sequence[Any]) -> Opened:
    def close(new: Sequence[Any], _: Any) -> Any:
        if isinstance(thing, MutableSequence):
            clone = shallow_copy(thing)
            for place, value in enumerate(new):
                clone[place] = value
            return clone
        make: Any = type(thing)
        try:
            return make(list(new))
        except TypeError:
            return list(new)

    return Opened(range(len(thing)), list(thing), _by_key, close)


def _opened_set(thing: set[Any] | frozenset[Any]) -> Opened:
    return Opened(
        range(len(thing)),
        list(thing),
        lambda path, place: f"list({path})[{place}]",
        lambda new, _: type(thing)(new),
    )


# ----------------------------------------------------------------- by attributes


def _opened_object(thing: Any, *, objects: bool) -> Opened | None:
    names = field_names(type(thing))
    is_container = (
        names is not None or moves_itself(thing) or (objects and is_plain_object(thing))
    )
    held = attributes.held_by(thing) if is_container else None
    if not held:
        return None
    keys = [name for name in (names or held) if name in held]

    def close(values: Sequence[Any], begun: Any) -> Any:
        clone = attributes.copy_of(thing) if begun is None else begun
        attributes.fill(clone, dict(zip(keys, values, strict=True)))
        return clone

    return Opened(
        keys,
        [held[name] for name in keys],
        _by_name,
        close,
        lambda: attributes.copy_of(thing),
    )


def _opened_mapping_itself(thing: Any) -> Opened:
    """Its parts as a dict of them; see `maps_itself` for why it is not put together."""
    items = dict(thing.to_dict())

    def close(_: Sequence[Any], __: Any) -> Any:
        raise NotImplementedError  # a walk hands its function to the container instead

    return Opened(list(items), list(items.values()), _by_key, close)


def shallow_copy(thing: Any) -> Any:
    """A copy that can be given other parts while the original keeps its own.

    A class of the user's usually keeps its parts in a dict or a list inside, which an
    ordinary shallow copy would share.
    """
    clone = attributes.copy_of(thing)
    if isinstance(thing, _COPIED_BY_PYTHON) or hasattr(type(thing), "__copy__"):
        return clone
    inside = {
        name: copy.copy(value)
        for name, value in attributes.held_by(thing).items()
        if isinstance(value, _COPIED_BY_PYTHON)
    }
    attributes.fill(clone, inside)
    return clone


# ------------------------------------------------------------------------ as typed


def _by_key(path: str, key: Any) -> str:
    plain = isinstance(key, str) and key.isprintable() and not set(key) & set('"\\')
    return f'{path}["{key}"]' if plain else f"{path}[{key!r}]"


def _by_name(path: str, name: str) -> str:
    return f"{path}.{name}"
