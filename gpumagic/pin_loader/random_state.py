"""Puts random numbers and samplers back to where they were, whatever happens between.

Looking at a loader draws from them: already `iter(loader)` takes a number from torch,
even where nothing is shuffled.

Of a sampler everything is noted that it holds itself, one level deep. Of a dataset, its
transforms and functions only the random generators are: its caches, counters and files
are its own business.
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

from gpumagic.devices import torch_private
from gpumagic.report.introspection import attributes_of, is_truly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType
    from typing import Self

_MOST_OBJECTS, _MOST_ITEMS = 100, 32
_MOST_COPIED = 100_000  # elements of a list that a sampler may shuffle in place
_WITHIN = ("base_dataloader", "loader", "dataloader", "_dataloader")
_PLAIN = (int, float, str, bytes, bool, type(None), type)


class Part:
    """Something that was noted.

    Attributes:
        name: What it is called in a report; empty if there is nothing to call.

        put_back: Puts it back; doing so twice does no harm.
    """

    __slots__ = ("name", "put_back")

    def __init__(self, name: str, put_back: Callable[[], object]) -> None:
        self.name = name
        self.put_back = put_back


class kept:  # noqa: N801 -- it is read as a word: `with kept(loader):`
    """A block after which all random numbers go on as if it had not been.

    Noted are Python's, numpy's and torch's own numbers, those of devices in use, the
    generators that a loader and its parts hold, and what its samplers note of
    themselves (an epoch, a list that is shuffled in place). Devices that are first
    used within the block begin with their seed again.

    What a dataset counts, and iterators that it holds, are not put back. Blocks can be
    nested; an error or Ctrl-C goes through after all is as it was.

    Attributes:
        names: What is put back: "torch", "numpy", "the sampler's generator".

    Args:
        loader: Whose samplers and generators are to be noted as well.
    """

    def __init__(self, loader: Any = None) -> None:
        self._loader = loader
        self._parts: list[Part] = []
        self.names: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        self._parts = _noted(self._loader)
        self.names = tuple(
            dict.fromkeys(each.name for each in self._parts if each.name)
        )
        return self

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


def _put_back_all(left: list[Part]) -> None:
    """Put back the last of them, until there are none."""
    while left:
        left[-1].put_back()
        left.pop()


def _noted(loader: Any) -> list[Part]:
    state = random.getstate()
    parts = [Part("Python's random", lambda: random.setstate(state))]
    numpy: Any = sys.modules.get("numpy")
    if hasattr(numpy, "random"):
        parts.append(_noted_numpy(numpy))
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "get_rng_state"):
        numbers = torch.get_rng_state()
        parts.append(Part("torch", lambda: torch.set_rng_state(numbers)))
        parts += _noted_devices(torch)
    if loader is not None:
        parts += [Part(name, put_back) for name, put_back in parts_of(loader)]
    return parts


def _noted_numpy(numpy: Any) -> Part:
    state = numpy.random.get_state()
    return Part("numpy", lambda: numpy.random.set_state(state))


def _noted_devices(torch: Any) -> Iterator[Part]:
    for kind in _kinds(torch):
        words: Any = getattr(torch, kind, None)
        if not hasattr(words, "is_initialized"):
            continue
        if not words.is_initialized():
            yield Part("", _seeding_anew(words))
            continue
        for device in range(words.device_count()):
            yield Part(f"torch on {kind}", _device_state(words, device))


def _kinds(torch: Any) -> Iterator[str]:
    """The devices with random numbers of their own that this torch knows."""
    yield from ("cuda", "xpu")
    further = torch_private.registered_backend(torch)
    if further is not None:
        yield further


def _device_state(words: Any, device: int) -> Callable[[], object]:
    state = words.get_rng_state(device)
    return lambda: words.set_rng_state(state, device)


def _seeding_anew(words: Any) -> Callable[[], None]:
    """A device that had not been used has drawn nothing: its seed says it all."""

    def seed_anew() -> None:
        if not words.is_initialized():
            return
        for device in range(words.device_count()):
            with words.device(device):
                words.manual_seed(words.initial_seed())

    return seed_anew


if TYPE_CHECKING:
    PutBack = Callable[[], object]
    Noted = tuple[str, PutBack]


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
    yield "the sampler", _refilling_all(held)
    for name, value in list(held.items()):
        if "sampler" in name:
            yield from _of_sampler(value, seen)
    yield from _generators(list(held.values()), "the sampler's generator", seen)


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
