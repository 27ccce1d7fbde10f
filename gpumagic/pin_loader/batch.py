"""Takes batches apart and puts them together: finds tensors, changes them, moves them.

The way of most batches, tensors in tuples, lists and dicts, is kept short, since every
step of a training goes it. What is put together again is a new object of the same
class, and the old one stays as it is. Properties are not computed, and no constructor
is called where a copy will do: nothing happens a second time.
"""

from __future__ import annotations

import array
import copy
import enum
import sys
from collections import deque
from collections.abc import (
    Callable,
    Iterator,
    Mapping,
    MutableMapping,
    MutableSequence,
    Sequence,
)
from contextlib import suppress
from operator import is_
from types import MemberDescriptorType, NoneType, SimpleNamespace
from typing import Any, NamedTuple

from gpumagic.errors import GpuMagicError
from gpumagic.report.introspection import is_array, is_truly

_NOTHING_INSIDE = frozenset({str, int, float, bool, complex, bytes, NoneType})
_DEEPEST = 100  # levels: what is nested deeper contains itself
# They look like containers, and hold numbers or characters only.
_ATOMS = (str, bytes, bytearray, memoryview, range, array.array, enum.Enum, type)
_COPIED_BY_PYTHON = (dict, list, deque)


def tensors_in(batch: Any) -> list[Any]:
    """All tensors of a batch, each object once, in the order of walking.

    A tuple, a list or a mapping that contains itself raises.
    """
    found: list[Any] = []

    def note(tensor: Any) -> Any:
        found.append(tensor)
        return tensor

    _Change(note, lambda *_: None).of(batch, 0)
    return found


def mapped(batch: Any, change: Callable[[Any], Any]) -> Any:
    """The batch with every tensor changed, in new containers of the same classes.

    What is in a batch twice is in the new one twice: the same tensor, the same list.
    Two views of one memory are two tensors, and are changed each on its own. What
    holds no tensors is handed on as it is; the old batch is not touched.
    """

    def whole(thing: Any, of: Callable[[Any], Any]) -> Any | None:
        return copy.copy(thing).apply(of) if _maps_itself(thing) else None

    return _Change(change, whole).of(batch, 0)


def to_device(batch: Any, device: Any, *, non_blocking: bool = True) -> Any:
    """The batch on a device, in containers of the same classes.

    Containers with a `.to` of their own move themselves: they know what has to stay.
    The batch itself stays as it is, and where it is.
    """

    def moved(tensor: Any) -> Any:
        return tensor.to(device, non_blocking=non_blocking)

    def moved_by_itself(thing: Any, _: Callable[[Any], Any]) -> Any | None:
        if not _moves_itself(thing) or not tensors_in(thing):
            return None
        # Those of PyG and of transformers move themselves in place: so a copy does it.
        clone: Any = thing if isinstance(thing, tuple) else _shallow_copy(thing)
        try:
            there = clone.to(device, non_blocking=non_blocking)
        except TypeError:  # it takes the device only, or else says so again
            there = clone.to(device)
        return clone if there is None else there

    return _Change(moved, moved_by_itself).of(batch, 0)


class _Change:
    """One way through a batch that makes a new one.

    Args:
        change: Called with each tensor.

        whole: Asked for a container of any but Python's own classes; what it gives
            takes its place, and None is: look into it.
    """

    def __init__(
        self,
        change: Callable[[Any], Any],
        whole: Callable[[Any, Callable[[Any], Any]], Any | None],
    ) -> None:
        import torch

        self._tensor_class = torch.Tensor
        self._change, self._whole = change, whole
        # By id, with the object itself: no other can get the id of one that is kept.
        self._known: dict[int, tuple[Any, Any]] = {}

    def of(self, thing: Any, depth: int) -> Any:
        """What takes the place of something."""
        kind = type(thing)
        if kind in _NOTHING_INSIDE:
            return thing
        if id(thing) in self._known:
            return self._known[id(thing)][1]
        if kind is self._tensor_class:
            made = self._change(thing)
        elif depth > _DEEPEST:
            raise _too_deep(thing)
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
        made = self._whole(thing, lambda part: self.of(part, depth + 1))
        if made is not None:
            return made
        parts = parts_of(thing)
        if parts.named:  # such an object may be referred to by its parts
            self._known[id(thing)] = (thing, thing)
        new = [self.of(part, depth + 1) for part in parts.values]
        return thing if all(map(is_, new, parts.values)) else _like(thing, parts, new)


def walk(
    thing: Any, path: str = "batch", above: tuple[Any, ...] = ()
) -> Iterator[tuple[str, Any, Parts, tuple[Any, ...]]]:
    """Everything in a batch, containers before what is in them.

    With how it is reached (`batch["image"]`, `batch[0].mask`), its parts, and the
    containers that it is in.
    """
    parts = parts_of(thing)
    if parts.keys and any(each is thing for each in above):
        if not parts.named:
            raise _too_deep(thing)
        return
    yield path, thing, parts, above
    for key, value in zip(parts.keys, parts.values, strict=True):
        yield from walk(value, parts.path(path, key), (*above, thing))


def _too_deep(thing: Any) -> GpuMagicError:
    return GpuMagicError(
        f"the batch contains itself, or is nested more than {_DEEPEST} levels deep: "
        f"the last of them is a {type(thing).__name__}",
        "let the collate_fn return tensors in tuples, dicts or dataclasses, each "
        "inside of one other",
    )


class Parts(NamedTuple):
    """A container taken apart; what is none has no parts."""

    keys: Sequence[Any] = ()  # what leads to each part
    values: Sequence[Any] = ()
    named: bool = False  # by attributes

    def path(self, path: str, key: Any) -> str:
        """The way to a part, as one would type it."""
        if self.named:
            return f"{path}.{key}"
        plain = isinstance(key, str) and key.isprintable() and not set(key) & set('"\\')
        return f'{path}["{key}"]' if plain else f"{path}[{key!r}]"


def parts_of(thing: Any) -> Parts:
    """A container taken apart."""
    import torch

    if isinstance(thing, (*_ATOMS, torch.Tensor)) or is_array(thing):
        return Parts()
    if _maps_itself(thing):
        thing = dict(thing.to_dict())
    if isinstance(thing, Mapping):
        # By its items, and once: some make their values when they are asked for them.
        items = list(thing.items())
        return Parts([key for key, _ in items], [value for _, value in items])
    if isinstance(thing, tuple) and hasattr(thing, "_fields"):
        return Parts(thing._fields, thing, named=True)
    if isinstance(thing, Sequence | set | frozenset):
        return Parts(range(len(thing)), list(thing))
    if not _moves_itself(thing) and not _is_plain_object(thing):
        return Parts()
    held = _held_by(thing)
    return Parts(list(held), list(held.values()), named=True)


def _like(thing: Any, parts: Parts, new: Sequence[Any]) -> Any:
    """A container of the same class with other parts."""
    make: Any = type(thing)
    if isinstance(thing, tuple):  # whatever a constructor of its own would ask for
        made = tuple.__new__(make, new)
        if hasattr(thing, "__dict__"):
            vars(made).update(vars(thing))
        return made
    by_key = dict(zip(parts.keys, new, strict=True))
    if parts.named:
        clone = copy.copy(thing)
        for name, value in by_key.items():
            object.__setattr__(clone, name, value)  # a frozen class can be filled, too
        return clone
    if isinstance(thing, MutableMapping | MutableSequence):
        try:
            clone = _shallow_copy(thing)
            for key, value in by_key.items():
                clone[key] = value
        except TypeError:  # it says that it can be changed, and cannot
            pass
        else:
            return clone
    plain: Any = by_key if isinstance(thing, Mapping) else list(new)
    try:
        return make(plain)
    except TypeError:
        return plain


def _shallow_copy(thing: Any) -> Any:
    """A copy that can be given other parts while the original keeps its own.

    A class of the user's usually keeps its parts in a dict or a list inside, which an
    ordinary shallow copy would share.
    """
    clone = copy.copy(thing)
    if not isinstance(thing, _COPIED_BY_PYTHON) and not hasattr(
        type(thing), "__copy__"
    ):
        for name, value in _held_by(thing).items():
            if isinstance(value, _COPIED_BY_PYTHON):
                object.__setattr__(clone, name, copy.copy(value))
    return clone


def _held_by(thing: Any) -> dict[str, Any]:
    """All that an object has in its `__dict__` and in its slots."""
    held = dict(getattr(thing, "__dict__", {}))
    for kind in type(thing).__mro__:
        for name, slot in vars(kind).items() if "__slots__" in vars(kind) else ():
            if isinstance(slot, MemberDescriptorType):
                with suppress(AttributeError):  # nothing has been put there
                    held[name] = slot.__get__(thing)
    return held


def _is_no_container(thing: Any) -> bool:
    """Whether it is a model, a dataset, a loader or a sampler.

    A batch that refers to one does not carry its tensors.
    """
    torch: Any = sys.modules["torch"]
    data = torch.utils.data
    kinds = torch.nn.Module, data.Dataset, data.DataLoader, data.Sampler
    return is_truly(thing, kinds)


def _is_plain_object(thing: Any) -> bool:
    """Whether it is an object of a class that somebody wrote to hold things."""
    kind = type(thing)
    if kind is SimpleNamespace:
        return True
    home = kind.__module__.partition(".")[0]
    if home in {"numpy", "torch"} or home in sys.stdlib_module_names:
        return False
    return not is_truly(thing, BaseException) and not _is_no_container(thing)


def _moves_itself(thing: Any) -> bool:
    """Whether its class has a `.to` of its own, as containers of libraries do.

    That of a model would move the model itself.
    """
    has_word = callable(getattr(type(thing), "to", None))
    return has_word and not _is_no_container(thing)


def _maps_itself(thing: Any) -> bool:
    """Whether its class can send a function through its tensors.

    That is what the graphs of PyG and the dictionaries of tensordict have in common.
    What belongs together in them is not only attributes.
    """
    words = ("apply", "pin_memory", "to", "to_dict")
    return all(callable(getattr(type(thing), word, None)) for word in words)
