"""Puts random numbers and samplers back to where they were, whatever happens between.

Looking at a loader draws from them: already `iter(loader)` takes a number from torch,
even where nothing is shuffled.
"""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any

from gpumagic.devices import torch_private
from gpumagic.pin_loader.loader.random_parts import parts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType
    from typing import Self


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
                _put_back(left)
            except KeyboardInterrupt as stop:  # the part is put back once more
                failed = stop
            except Exception as wrong:  # noqa: BLE001 -- the others are still to come
                failed = failed or wrong
                left.pop()
        if failed is not None:
            raise failed


def _put_back(left: list[Part]) -> None:
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
            yield Part(f"torch on {kind}", _putting_back(words, device))


def _kinds(torch: Any) -> Iterator[str]:
    """The devices with random numbers of their own that this torch knows."""
    yield from ("cuda", "xpu")
    further = torch_private.registered_backend(torch)
    if further is not None:
        yield further


def _putting_back(words: Any, device: int) -> Callable[[], object]:
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
