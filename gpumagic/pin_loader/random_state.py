"""Puts random numbers and samplers back to where they were, whatever happens between.

Looking at a loader draws from them: already `iter(loader)` takes a number from torch,
even where nothing is shuffled.

Of a sampler everything is noted that it holds itself, one level deep. Of a dataset, its
transforms and functions only the random generators are: its caches, counters and files
are its own business.
"""

from __future__ import annotations

import copy
import itertools
import random
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any

from gpumagic.devices import torch_private
from gpumagic.report.introspection import attributes_of, is_truly

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

_MOST_OBJECTS, _MOST_ITEMS = 100, 32
_MOST_COPIED = 100_000  # elements of a list that a sampler may shuffle in place
_WITHIN = ("base_dataloader", "loader", "dataloader")
_PLAIN = (int, float, str, bytes, bool, type(None), type)

PutBack = Callable[[], object]  # doing so twice does no harm


class kept:  # noqa: N801 -- it is read as a word: `with kept(loader):`
    """A block after which all random numbers go on as if it had not been.

    Noted are Python's, numpy's and torch's own numbers, those of devices in use, the
    generators that a loader and its parts hold, and what its samplers note of
    themselves (an epoch, a list that is shuffled in place). Devices that are first
    used within the block begin with their seed again.

    What a dataset counts, and iterators that it holds, are not put back. Blocks can be
    nested; an error or Ctrl-C goes through after all is as it was.
    """

    def __init__(self, loader: Any = None) -> None:
        self._loader = loader
        self._parts: list[PutBack] = []

    def __enter__(self) -> None:
        self._parts = [*_of_libraries(), *_of_loader(self._loader)]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        left, self._parts = self._parts, []
        failed: BaseException | None = None
        while left:
            try:
                _put_back_all(left)
            except KeyboardInterrupt as stop:  # the part is put back once more
                failed = stop
            except Exception as wrong:  # noqa: BLE001 -- the others are still to come
                failed = failed or wrong
                left.pop()
        if failed is not None:
            raise failed


def _put_back_all(left: list[PutBack]) -> None:
    """Put back the last of them, until there are none."""
    while left:
        left[-1]()
        left.pop()


def _of_libraries() -> Iterator[PutBack]:
    # Each is looked up again when it is put back.
    state = random.getstate()
    yield lambda: random.setstate(state)
    numpy: Any = sys.modules.get("numpy")
    if hasattr(numpy, "random"):
        yield partial(numpy.random.set_state, numpy.random.get_state())
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "get_rng_state"):
        yield partial(torch.set_rng_state, torch.get_rng_state())
        further = torch_private.registered_backend(torch)
        for kind in ("cuda", "xpu", further):
            words: Any = getattr(torch, kind, None) if kind else None
            if hasattr(words, "is_initialized"):
                yield from _of_devices(words)


def _of_devices(words: Any) -> Iterator[PutBack]:
    if words.is_initialized():
        for device in range(words.device_count()):
            yield partial(words.set_rng_state, words.get_rng_state(device), device)
        return

    def seed_anew() -> None:  # nothing has been drawn: the seed says it all
        for device in range(words.device_count() if words.is_initialized() else 0):
            with words.device(device):
                words.manual_seed(words.initial_seed())

    yield seed_anew


def _of_loader(loader: Any) -> Iterator[PutBack]:
    """What is to be put back of a loader, and of those within it."""
    seen: set[int] = set()
    while (held := attributes_of(loader)) is not None and id(loader) not in seen:
        seen.add(id(loader))
        for name in ("sampler", "batch_sampler"):
            yield from _of_sampler(held.get(name), seen)
        names = ("generator", "collate_fn", "worker_init_fn", "dataset")
        yield from _generators([held.get(name) for name in names], seen)
        loader = next((held[name] for name in _WITHIN if name in held), None)


# -------------------------------------------------------------------- samplers


def _of_sampler(sampler: Any, seen: set[int]) -> Iterator[PutBack]:
    """A sampler and those within it, each with its generators."""
    held = attributes_of(sampler)
    if held is None or id(sampler) in seen:
        return
    seen.add(id(sampler))
    yield _refilling_all(held)
    for name, value in list(held.items()):
        if "sampler" in name:
            yield from _of_sampler(value, seen)
    yield from _generators(list(held.values()), seen)


def _refilling_all(held: dict[str, Any]) -> PutBack:
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
    if type(value) in (list, dict, set, deque) and len(value) <= _MOST_COPIED:
        before = copy.copy(value)

        def refill() -> None:
            value.clear()
            (value.extend if hasattr(value, "extend") else value.update)(before)

        return refill
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(value) is numpy.ndarray and value.flags.writeable:
        return partial(numpy.copyto, value, value.copy())
    return None


# ------------------------------------------------------------------ generators


def _generators(roots: Iterable[Any], seen: set[int]) -> Iterator[PutBack]:
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
            yield put_back
        else:
            waiting.extend(_reached_from(thing))


def _state_of(thing: Any) -> PutBack | None:
    """How to put a random generator back; None if it is none."""
    if is_truly(thing, random.Random):
        if is_truly(thing, random.SystemRandom):
            return None
        return partial(thing.setstate, thing.getstate())
    library, name = type(thing).__module__.partition(".")[0], type(thing).__name__
    if (library, name) in (("torch", "Generator"), ("numpy", "RandomState")):
        return partial(thing.set_state, thing.get_state())
    if library == "numpy" and hasattr(thing, "bit_generator"):
        bits = thing.bit_generator
        return partial(setattr, bits, "state", bits.state)
    return None


def _reached_from(thing: Any) -> Iterable[Any]:
    if is_truly(thing, MethodType):
        return (thing.__self__,)
    if is_truly(thing, partial):
        return (thing.func, *thing.args, *thing.keywords.values())
    inside: Any = (attributes_of(thing) or {}).values()
    for kind in (list, tuple):
        if is_truly(thing, kind):
            inside = kind.__iter__(thing)
    if is_truly(thing, dict):
        inside = dict.values(thing)
    return list(itertools.islice(inside, _MOST_ITEMS))
