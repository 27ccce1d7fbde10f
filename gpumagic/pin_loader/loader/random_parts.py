"""Finds what draws random numbers, or notes its place, among the parts of a loader.

Of a sampler everything is noted that it holds itself, one level deep. Of a dataset, its
transforms and functions only the random generators are, and what it says of itself by
`epoch` or `state_dict()`: its caches, counters and files are its own business.
"""

from __future__ import annotations

import copy
import functools
import itertools
import random
import sys
from collections import deque
from types import MethodType
from typing import TYPE_CHECKING, Any

from gpumagic.report.introspection import attributes_of, class_has, is_truly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    PutBack = Callable[[], object]
    Noted = tuple[str, PutBack]

_MOST_OBJECTS, _MOST_ITEMS = 100, 32
_MOST_COPIED = 100_000  # elements of a list that a sampler may shuffle in place
_WITHIN = ("base_dataloader", "loader", "dataloader", "_dataloader")
_PLAIN = (int, float, str, bytes, bool, type(None), type)


def parts_of(loader: Any) -> Iterator[Noted]:
    """What is to be put back of a loader, and how; with a name for each."""
    seen: set[int] = set()
    for each in _loaders(loader):
        held = vars(each)
        yield from _generators([held.get("generator")], "the loader's generator", seen)
        for name in ("sampler", "batch_sampler"):
            yield from _of_sampler(held.get(name), seen)
        functions = (held.get("collate_fn"), held.get("worker_init_fn"))
        data = (held.get("dataset"), *functions)
        yield from _generators(data, "a generator of the dataset", seen)
        yield from _place_of(held.get("dataset"))


def _loaders(loader: Any) -> Iterator[Any]:
    """It, and those within it."""
    for _ in range(8):
        held = attributes_of(loader)
        if held is None:
            return
        yield loader
        loader = next((held[name] for name in _WITHIN if name in held), None)


# -------------------------------------------------------------------- samplers


def _of_sampler(sampler: Any, seen: set[int]) -> Iterator[Noted]:
    """A sampler and those within it, each with its generators."""
    held = attributes_of(sampler)
    if held is None or id(sampler) in seen:
        return
    seen.add(id(sampler))
    yield "the sampler", _putting_back(held)
    for name, value in list(held.items()):
        if "sampler" in name:
            yield from _of_sampler(value, seen)
    yield from _generators(list(held.values()), "the sampler's generator", seen)


def _putting_back(held: dict[str, Any]) -> PutBack:
    before = dict(held)
    refills = [each for each in map(_refilling, before.values()) if each is not None]

    def put_back() -> None:
        for name in held.keys() - before.keys():
            del held[name]
        held.update(before)
        for refill in refills:
            refill()

    return put_back


def _refilling(value: Any) -> PutBack | None:
    """How to put back what is in a container, if it is one and not too large."""
    if type(value) in (list, dict, set, deque):
        if len(value) > _MOST_COPIED:
            return None
        before = copy.copy(value)

        def refill() -> None:
            value.clear()
            (value.extend if hasattr(value, "extend") else value.update)(before)

        return refill
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(value) is numpy.ndarray and value.flags.writeable:
        if value.size > _MOST_COPIED:
            return None
        return functools.partial(numpy.copyto, value, value.copy())
    return None


# ------------------------------------------------------------------ generators


def _generators(roots: Iterable[Any], name: str, seen: set[int]) -> Iterator[Noted]:
    """The random generators that are reached from some objects, each once."""
    waiting = deque(roots)
    left = _MOST_OBJECTS
    while waiting and left:
        thing = waiting.popleft()
        if is_truly(thing, _PLAIN) or id(thing) in seen:
            continue
        seen.add(id(thing))
        left -= 1
        put_back = _state_of(thing)
        if put_back is not None:
            yield name, put_back
        else:
            waiting.extend(_reached_from(thing))


def _state_of(thing: Any) -> PutBack | None:
    """How to put a random generator back; None if it is none."""
    if is_truly(thing, random.Random):
        if is_truly(thing, random.SystemRandom):
            return None
        return functools.partial(thing.setstate, thing.getstate())
    kind = type(thing)
    library = kind.__module__.partition(".")[0]
    if library == "torch" and is_truly(thing, sys.modules["torch"].Generator):
        return functools.partial(thing.set_state, thing.get_state())
    if library == "numpy" and kind.__name__ == "RandomState":
        return functools.partial(thing.set_state, thing.get_state())
    if library == "numpy" and hasattr(thing, "bit_generator"):
        bits = thing.bit_generator
        return functools.partial(setattr, bits, "state", bits.state)
    return None


def _reached_from(thing: Any) -> Iterable[Any]:
    for kind in (list, tuple):
        if is_truly(thing, kind):
            return list(itertools.islice(kind.__iter__(thing), _MOST_ITEMS))
    if is_truly(thing, dict):
        return list(itertools.islice(dict.values(thing), _MOST_ITEMS))
    if is_truly(thing, MethodType):
        return (thing.__self__,)
    if is_truly(thing, functools.partial):
        return (thing.func, *thing.args, *thing.keywords.values())
    held = attributes_of(thing)
    return list(itertools.islice(held.values(), _MOST_ITEMS)) if held else ()


# --------------------------------------------------------------------- datasets


def _place_of(dataset: Any) -> Iterator[Noted]:
    """The epoch that a dataset is set to, and the place that it says it has."""
    if class_has(dataset, "set_epoch"):
        epoch = _asked(lambda: dataset.epoch)
        if epoch is not None:
            yield "the dataset's epoch", lambda: _set_epoch(dataset, epoch)
    names = ("state_dict", "load_state_dict")
    if all(class_has(dataset, name) for name in names):
        state = _asked(lambda: copy.deepcopy(dataset.state_dict()))
        if state is not None:
            yield "the dataset's state", lambda: _load_state(dataset, state)


def _set_epoch(dataset: Any, epoch: Any) -> None:
    if _asked(lambda: bool(dataset.epoch != epoch)):
        dataset.set_epoch(epoch)


def _load_state(dataset: Any, state: Any) -> None:
    if _asked(lambda: bool(dataset.state_dict() == state)) is not True:
        dataset.load_state_dict(copy.deepcopy(state))


def _asked(question: Callable[[], Any]) -> Any | None:
    """What the user's code answers; None where it fails."""
    try:
        return question()
    except Exception:  # noqa: BLE001 -- its own failures show when it is used
        return None
