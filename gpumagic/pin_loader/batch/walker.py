"""Walks through a batch: finds its tensors, changes them, moves them.

The way of most batches, tensors in tuples, lists and dicts, is kept short: it is gone
once for every step of a training.
"""

from __future__ import annotations

from operator import is_
from types import NoneType
from typing import TYPE_CHECKING, Any

from gpumagic.errors import GpuMagicError
from gpumagic.pin_loader.batch.containers import (
    DEEPEST,
    opened,
    shallow_copy,
    too_deep,
)
from gpumagic.pin_loader.batch.differences import difference
from gpumagic.pin_loader.batch.recognising import maps_itself, moves_itself

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["difference", "mapped", "tensors_in", "to_device"]

_NOTHING_INSIDE = frozenset({str, int, float, bool, complex, bytes, NoneType})


def tensors_in(batch: Any, *, objects: bool = False) -> list[Any]:
    """All tensors of a batch, each object once, in the order of walking.

    Args:
        batch: Anything.

        objects: Whether to look into objects of any class as well.

    Raises:
        GpuMagicError: A tuple, a list or a mapping contains itself.
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
    holds no tensors is handed on as it is; the old batch is not touched.

    Args:
        batch: Anything.

        change: Takes a tensor and gives what takes its place.

        objects: Whether to look into objects of any class as well.

        whole: Is asked for a container of any but Python's own classes; what it
            gives takes its place. None is: look into it.

    Raises:
        GpuMagicError: A tuple, a list or a mapping contains itself.
    """
    import torch

    return _Change(torch.Tensor, change, whole, objects=objects).of(batch, 0)


def to_device(
    batch: Any, device: Any, *, non_blocking: bool = True, objects: bool = False
) -> Any:
    """The batch on a device, in containers of the same classes.

    Containers with a `.to` of their own move themselves: they know what has to stay.
    The batch itself stays as it is, and where it is.

    Args:
        batch: Anything.

        device: Where to.

        non_blocking: Whether the host may go on before it has arrived.

        objects: Whether to look into objects of any class as well.

    Raises:
        GpuMagicError: A tuple, a list or a mapping contains itself, or a `.to`
            returned nothing.
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
