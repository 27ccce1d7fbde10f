"""The elements of a list or a dict that are large enough to be named."""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from typing import TYPE_CHECKING, Any

from gpumagic.gpu_mem.naming import element_name
from gpumagic.gpu_mem.records.names import Part
from gpumagic.gpu_mem.tensor_roles import Role

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpumagic.devices.storages import StorageKey
    from gpumagic.gpu_mem.reaching import Reached
    from gpumagic.gpu_mem.walk import Walk

_LOOKED_AT = 1000
_LARGE = 0.1  # of all elements together
_MOST = 8
_REST = "other tensors"


def large_elements(
    walk: Walk,
    value: Any,
    memory: Mapping[int, tuple[StorageKey, Reached]],
) -> Mapping[int, tuple[Part, ...]]:
    """By device, the large elements of a list, a tuple or a dict; they add up.

    What several elements share counts for the first of them. Where there are
    parameters and the like, that says more, and no elements are told.

    Args:
        walk: The search that has seen them.

        value: Any object; what is no plain container has no elements.

        memory: The memory of the search's objects, by their numbers.
    """
    if not any(type(value) is each for each in (list, tuple, dict)):
        return {}
    found: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    seen = {walk.number_of(value) or 0}
    counted: set[StorageKey] = set()
    for name, element in islice(_elements(value), _LOOKED_AT):
        for key, reached in _within(walk, element, memory, seen):
            if reached.role is not Role.OTHER:
                return {}
            if key not in counted:
                counted.add(key)
                found[key.device][name or _REST] += reached.nbytes
    return {
        device: parts
        for device, sizes in found.items()
        if (parts := _largest(sizes, _all_of(walk, value, memory, device)))
    }


def _elements(value: Any) -> Iterator[tuple[str | None, Any]]:
    pairs = list(value.items()) if type(value) is dict else enumerate(value)
    return ((element_name(key), each) for key, each in pairs)


def _within(
    walk: Walk,
    thing: Any,
    memory: Mapping[int, tuple[StorageKey, Reached]],
    seen: set[int],
) -> Iterator[tuple[StorageKey, Reached]]:
    """The memory under an object, as far as no other was seen to lead there."""
    number = walk.number_of(thing)
    waiting = [] if number is None or number in seen else [number]
    seen.update(waiting)
    while waiting:
        number = waiting.pop()
        if number in memory:
            yield memory[number]
        if number in walk.of_graph:
            continue
        new = [each for each in walk.children[number] if each not in seen]
        seen.update(new)
        waiting += dict.fromkeys(new)


def _all_of(
    walk: Walk,
    value: Any,
    memory: Mapping[int, tuple[StorageKey, Reached]],
    device: int,
) -> int:
    pieces = {
        key: reached.nbytes
        for key, reached in _within(walk, value, memory, set())
        if key.device == device
    }
    return sum(pieces.values())


def _largest(sizes: Mapping[str, int], total: int) -> tuple[Part, ...]:
    named = sorted(
        (
            (name, nbytes)
            for name, nbytes in sizes.items()
            if name != _REST and nbytes >= _LARGE * total
        ),
        key=lambda each: -each[1],
    )[:_MOST]
    if not named:
        return ()
    rest = total - sum(nbytes for _, nbytes in named)
    return tuple(Part(*each) for each in [*named, *([(_REST, rest)] if rest else [])])
