"""The tensors that the names of a notebook lead to, one level deep."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.report.introspection import is_truly, spelled
from gpumagic.tensor_info import torch_words
from gpumagic.tensor_info.containers import items_of
from gpumagic.tensor_info.objects import is_tensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_OUTPUTS = ("_", "__", "___")
_NUMBERED_OUTPUT = re.compile(r"_\d+")
_OF_THE_SHELL = re.compile(r"In|Out|_[ido]h|_i+|_i\d+|get_ipython|exit|quit")


class Found(NamedTuple):
    """A tensor, and how the notebook gets at it. Live: it is not to be kept."""

    name: str
    thing: Any
    is_output: bool
    is_assignable: bool  # whether `name = ...` would let go of the tensor


class Budget:
    """How far a search may go: so many things looked at, and so much time.

    Attributes:
        spent: Whether the search was cut short.
    """

    def __init__(self, things: int, seconds: float) -> None:
        self._left = things
        self._until = time.monotonic() + seconds
        self.spent = False

    def allows(self) -> bool:
        """Whether one thing more may be looked at."""
        self._left -= 1
        if self._left < 0 or time.monotonic() > self._until:
            self.spent = True
        return not self.spent


def tensors_of(namespace: Mapping[str, Any], budget: Budget) -> Iterator[Found]:
    """Every tensor that a name, a container or a module under it leads to.

    What IPython keeps of earlier cells comes last, once for each object.
    """
    for name, thing in _named(namespace):
        if not (_OF_THE_SHELL.fullmatch(name) or _is_output(name)):
            yield from _under(name, thing, budget, is_output=False)
    kept: set[int] = set()
    for name, thing in _outputs(namespace):
        if id(thing) not in kept:
            kept.add(id(thing))
            yield from _under(name, thing, budget, is_output=True)


def _is_output(name: str) -> bool:
    return name in _OUTPUTS or _NUMBERED_OUTPUT.fullmatch(name) is not None


def _named(namespace: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The names with what they stand for; `globals()[5] = ...` makes no name."""
    return [each for each in list(namespace.items()) if type(each[0]) is str]


def _outputs(namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    out: Any = namespace.get("Out")
    if is_truly(out, dict):
        yield from (
            (f"Out[{spelled(number)}]", thing) for number, thing in list(out.items())
        )
    yield from (each for each in _named(namespace) if _is_output(each[0]))


def _under(
    name: str, thing: Any, budget: Budget, *, is_output: bool
) -> Iterator[Found]:
    """The tensor itself, or those one level below."""
    if not budget.allows():
        return
    if is_tensor(thing):
        yield Found(name, thing, is_output, is_assignable=True)
        return
    assignable = not is_truly(thing, tuple) and not _is_module(thing)
    for place, part in _parts(name, thing):
        if not budget.allows():
            return
        if is_tensor(part):
            yield Found(place, part, is_output, assignable)


def _parts(name: str, thing: Any) -> Iterator[tuple[str, Any]]:
    """What lies in a container or a module."""
    if _is_module(thing):
        yield from ((f"{name}.{part}", value) for part, value in _of_module(thing))
    else:
        yield from ((f"{name}{place}", part) for place, part in items_of(thing))


def _is_module(thing: Any) -> bool:
    torch = torch_words.torch_if_imported()
    return torch is not None and is_truly(thing, torch.nn.Module)


def _of_module(module: Any) -> Iterator[tuple[str, Any]]:
    """Parameters and buffers, tied ones under each of their names."""
    try:
        yield from module.named_parameters(remove_duplicate=False)
        yield from module.named_buffers(remove_duplicate=False)
    except Exception:  # noqa: BLE001 - the user's own, or not yet set up
        return
