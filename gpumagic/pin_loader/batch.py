"""Takes batches apart and puts them together: finds tensors, changes them, moves them.

The way of most batches, tensors in tuples, lists and dicts, is kept short, since every
step of a training goes it. Whatever else may be a container says so by its class:
nothing is tried out. What is put together again is a new object of the same class, and
the old one stays as it is. Properties are not computed, and neither constructors nor
`__setattr__` are called where a copy will do: a frozen class can be filled, and nothing
happens a second time.
"""

from __future__ import annotations

import array
import copy
import dataclasses
import enum
import sys
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from operator import is_
from types import MemberDescriptorType, NoneType, SimpleNamespace
from typing import Any, NamedTuple

from gpumagic.errors import GpuMagicError
from gpumagic.report.introspection import is_truly

_NOTHING_INSIDE = frozenset({str, int, float, bool, complex, bytes, NoneType})
DEEPEST = 100  # levels: what is nested deeper contains itself
# They look like containers, and hold numbers or characters only.
_ATOMS = (str, bytes, bytearray, memoryview, range, array.array, enum.Enum, type)
_COPIED_BY_PYTHON = (dict, list, deque)


def tensors_in(batch: Any, *, objects: bool = False) -> list[Any]:
    """All tensors of a batch, each object once, in the order of walking.

    `objects` is: look into objects of any class as well. A tuple, a list or a mapping
    that contains itself raises.
    """
    import torch

    search = _Search(torch.Tensor, objects=objects)
    search.look(batch, 0)
    return search.found


def mapped(
    batch: Any,
    change: Callable[[Any], Any],
    *,
    objects: bool = False,
    whole: Callable[[Any], Any | None] | None = None,
) -> Any:
    """The batch with every tensor changed, in new containers of the same classes.

    What is in a batch twice is in the new one twice: the same tensor, the same list.
    Two views of one memory are two tensors, and are changed each on its own. What
    holds no tensors is handed on as it is; the old batch is not touched. `whole` is
    asked for a container of any but Python's own classes; what it gives takes its
    place, and None is: look into it.
    """
    import torch

    return _Change(torch.Tensor, change, whole, objects=objects).of(batch, 0)


def to_device(
    batch: Any, device: Any, *, non_blocking: bool = True, objects: bool = False
) -> Any:
    """The batch on a device, in containers of the same classes.

    Containers with a `.to` of their own move themselves: they know what has to stay.
    The batch itself stays as it is, and where it is.
    """

    def moved(tensor: Any) -> Any:
        return tensor.to(device, non_blocking=non_blocking)

    def moved_by_itself(thing: Any) -> Any | None:
        if not moves_itself(thing) or not tensors_in(thing):
            return None
        return _moved_by_itself(thing, device, non_blocking=non_blocking)

    return mapped(batch, moved, objects=objects, whole=moved_by_itself)


def _moved_by_itself(thing: Any, device: Any, *, non_blocking: bool) -> Any:
    """Those of PyG and of transformers move themselves in place: so a copy does it."""
    clone: Any = thing if isinstance(thing, tuple) else shallow_copy(thing)
    try:
        moved = clone.to(device, non_blocking=non_blocking)
    except TypeError:  # it takes the device only, or else says so again
        moved = clone.to(device)
    if moved is not None:
        return moved
    if not all(map(is_, tensors_in(clone), tensors_in(thing))):
        return clone
    name = type(thing).__name__
    raise GpuMagicError(
        f"{name}.to(device) returned nothing, so there is no batch to hand on",
        f"let {name}.to return the batch that it has moved",
    )


class _Change:
    """One way through a batch that makes a new one."""

    def __init__(
        self,
        tensor_class: type,
        change: Callable[[Any], Any],
        whole: Callable[[Any], Any | None] | None,
        *,
        objects: bool,
    ) -> None:
        self._tensor_class = tensor_class
        self._change = change
        self._whole = whole
        self._objects = objects
        # By id, with the object itself: no other can get the id of one that is kept.
        self._known: dict[int, tuple[Any, Any]] = {}

    def of(self, thing: Any, depth: int) -> Any:
        """What takes the place of something."""
        kind = type(thing)
        if kind in _NOTHING_INSIDE:
            return thing
        known = self._known.get(id(thing))
        if known is not None:
            return known[1]
        if kind is self._tensor_class:
            made = self._change(thing)
        elif depth > DEEPEST:
            raise too_deep(thing)
        elif kind is tuple or kind is list:
            parts = [self.of(part, depth + 1) for part in thing]
            made = thing if all(map(is_, parts, thing)) else kind(parts)
        elif kind is dict:
            made = {key: self.of(part, depth + 1) for key, part in thing.items()}
            if all(map(is_, made.values(), thing.values())):
                made = thing
        else:
            made = self._of_another_class(thing, depth)
        self._known[id(thing)] = (thing, made)
        return made

    def _of_another_class(self, thing: Any, depth: int) -> Any:
        if isinstance(thing, self._tensor_class):
            return self._change(thing)
        made = None if self._whole is None else self._whole(thing)
        if made is not None:
            return made
        parts = opened(thing, objects=self._objects)
        if parts is None:
            return thing
        if maps_itself(thing):
            return _sent_through(thing, lambda part: self.of(part, depth + 1))
        begun = None if parts.begin is None else parts.begin()
        if begun is not None:
            self._known[id(thing)] = (thing, begun)
        new = [self.of(part, depth + 1) for part in parts.values]
        same = all(map(is_, new, parts.values))
        return thing if same else parts.close(new, begun)


class _Search:
    """One way through a batch that gathers its tensors."""

    def __init__(self, tensor_class: type, *, objects: bool) -> None:
        self.found: list[Any] = []
        self._tensor_class = tensor_class
        self._objects = objects
        self._seen: dict[int, Any] = {}

    def look(self, thing: Any, depth: int) -> None:
        """Gather what is in something."""
        kind = type(thing)
        if kind in _NOTHING_INSIDE or id(thing) in self._seen:
            return
        if kind is self._tensor_class:
            self.found.append(thing)
        elif depth > DEEPEST:
            raise too_deep(thing)
        elif kind is tuple or kind is list:
            for part in thing:
                self.look(part, depth + 1)
        elif kind is dict:
            for part in thing.values():
                self.look(part, depth + 1)
        else:
            self._look_into_another(thing, depth)
        self._seen[id(thing)] = thing

    def _look_into_another(self, thing: Any, depth: int) -> None:
        if isinstance(thing, self._tensor_class):
            self.found.append(thing)
            return
        parts = opened(thing, objects=self._objects)
        if parts is None:
            return
        if parts.begin is not None:  # such an object may be referred to by its parts
            self._seen[id(thing)] = thing
        for part in parts.values:
            self.look(part, depth + 1)


def _sent_through(thing: Any, function: Callable[[Any], Any]) -> Any:
    """A copy of a container that maps itself, whose `apply` may work in place."""
    from copy import copy

    return copy(thing).apply(function)


class Opened(NamedTuple):
    """A container taken apart."""

    keys: Sequence[Any]  # what leads to each part
    values: Sequence[Any]
    path: Callable[[str, Any], str]  # the way to a part, as one would type it
    # Makes one of the same class of new parts, or fills what `begin` gave: a container
    # made before its parts are known, which may then refer to it.
    close: Callable[[Sequence[Any], Any], Any]
    begin: Callable[[], Any] | None = None


def opened(thing: Any, *, objects: bool = False) -> Opened | None:
    """A container taken apart; None for everything that is none.

    With `objects` any object with attributes is one, even if nothing says so.
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
    held = held_by(thing) if is_container else None
    if not held:
        return None
    keys = [name for name in (names or held) if name in held]

    def close(values: Sequence[Any], begun: Any) -> Any:
        clone = copy_of(thing) if begun is None else begun
        fill(clone, dict(zip(keys, values, strict=True)))
        return clone

    return Opened(
        keys,
        [held[name] for name in keys],
        _by_name,
        close,
        lambda: copy_of(thing),
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
    clone = copy_of(thing)
    if isinstance(thing, _COPIED_BY_PYTHON) or hasattr(type(thing), "__copy__"):
        return clone
    inside = {
        name: copy.copy(value)
        for name, value in held_by(thing).items()
        if isinstance(value, _COPIED_BY_PYTHON)
    }
    fill(clone, inside)
    return clone


# ------------------------------------------------------------------------ as typed


def _by_key(path: str, key: Any) -> str:
    plain = isinstance(key, str) and key.isprintable() and not set(key) & set('"\\')
    return f'{path}["{key}"]' if plain else f"{path}[{key!r}]"


def _by_name(path: str, name: str) -> str:
    return f"{path}.{name}"


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


def field_names(kind: type) -> list[str] | None:
    """The fields of a dataclass or of a class by attrs; None for all others."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    by_attrs = getattr(kind, "__attrs_attrs__", None)
    if isinstance(by_attrs, tuple):
        return [str(attribute.name) for attribute in by_attrs]
    return None


def is_no_container(thing: Any) -> bool:
    """Whether it is a model, a dataset, a loader or a sampler.

    A batch that refers to one does not carry its tensors.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return False
    data = torch.utils.data
    kinds = torch.nn.Module, data.Dataset, data.DataLoader, data.Sampler
    return is_truly(thing, kinds)


def is_plain_object(thing: Any) -> bool:
    """Whether it is an object of a class that somebody wrote to hold things."""
    kind = type(thing)
    if kind is SimpleNamespace:
        return True
    home = kind.__module__.partition(".")[0]
    if home in {"numpy", "torch"} or home in sys.stdlib_module_names:
        return False
    return not is_truly(thing, BaseException) and not is_no_container(thing)


def moves_itself(thing: Any) -> bool:
    """Whether its class has a `.to` of its own, as containers of libraries do.

    That of a model would move the model itself.
    """
    has_word = callable(getattr(type(thing), "to", None))
    return has_word and not is_no_container(thing)


def maps_itself(thing: Any) -> bool:
    """Whether its class can send a function through its tensors.

    That is what the graphs of PyG and the dictionaries of tensordict have in common.
    What belongs together in them is not only attributes.
    """
    words = ("apply", "pin_memory", "to", "to_dict")
    return all(callable(getattr(type(thing), word, None)) for word in words)
