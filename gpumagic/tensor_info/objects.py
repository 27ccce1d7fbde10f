"""Reads any object of a notebook, or says what it is and what to type instead."""

from __future__ import annotations

from collections import deque
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from gpumagic.errors import GpuMagicError
from gpumagic.report.introspection import (
    class_name,
    is_array,
    is_truly,
    is_weak_proxy,
    spelled,
)
from gpumagic.report.units import count_text
from gpumagic.tensor_info import torch_private
from gpumagic.tensor_info.arrays import (
    hands_out_dlpack,
    read_array,
    read_dlpack,
)
from gpumagic.tensor_info.tensors import read_tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.tensor_info.tensors import Reading

_NAMED_AT_MOST = 4
_NUMBERS = (bool, int, float, complex)
_LOOKED_AT_MOST = 10_000
_KINDS: tuple[type, ...] = (dict, list, tuple)


def read(thing: Any, expression: str = "x") -> Reading:
    """What an object says of itself as a tensor."""
    torch = torch_private.torch_if_imported()
    if torch is not None and is_truly(thing, torch.Tensor):
        return read_tensor(torch, thing)
    if is_array(thing):
        return read_array(thing)
    if hands_out_dlpack(thing):
        return read_dlpack(thing)
    raise _no_tensor(torch, thing, expression)


def read_each(
    things: Sequence[Any], names: Sequence[str]
) -> tuple[list[tuple[Any, str, Reading]], tuple[str, ...]]:
    """Read those that are tensors; what is none costs one remark."""
    found: list[tuple[Any, str, Reading]] = []
    # Their words alone: an error leads to this frame, and so to the tensors.
    refusals: list[tuple[str, str]] = []
    for thing, name in zip(things, chain(names, repeat("x")), strict=False):
        try:
            found.append((thing, name, read(thing, name)))
        except GpuMagicError as error:
            refusals.append((error.problem, error.hint))
    if refusals and not found:
        raise GpuMagicError(*refusals[0])
    return found, tuple(": ".join(filter(None, each)) for each in refusals)


def is_tensor(thing: Any) -> bool:
    """Whether something is a tensor of torch or a numpy array."""
    torch = torch_private.torch_if_imported()
    return is_array(thing) or (torch is not None and is_truly(thing, torch.Tensor))


def _no_tensor(torch: Any, thing: Any, expression: str) -> GpuMagicError:
    found, hint = _described(torch, thing, expression)
    return GpuMagicError(f"{expression} is no tensor, but {found}", hint)


def _described(torch: Any, thing: Any, expression: str) -> tuple[str, str]:
    if thing is None:
        return "None", "did a function that changes its argument return nothing?"
    if is_truly(thing, _NUMBERS):
        number = f"the number {spelled(thing)}"
        return number, "a number has no memory layout of its own"
    if word := kind_of_container(thing):
        return _of_container(word, thing, expression)
    if torch is not None and is_truly(thing, torch.nn.Module):
        return _of_module(thing, expression)
    if is_weak_proxy(thing):
        return "a weak reference to another object", "name that object itself"
    name = class_name(thing)
    return f"of type {name}", "type the name of a torch tensor or a numpy array"


def _of_container(word: str, thing: Any, expression: str) -> tuple[str, str]:
    items = list(items_of(thing))
    places = [place for place, value in items if is_tensor(value)]
    if not places:
        return _of_container_without(word, thing, expression)
    tensors = count_text(len(places), "tensor")
    found = f"a {word} of {tensors}"
    if len(places) < len(items):
        found = f"a {word} with {tensors} among {len(items)} items"
    return found, f"%tensor_info {expression}{places[0]}"


def _of_container_without(word: str, thing: Any, expression: str) -> tuple[str, str]:
    place, complete = place_within(thing, is_tensor)
    if place is not None:
        found = f"a {word} with a tensor further down"
        return found, f"%tensor_info {expression}{place}"
    where = "in it or in the lists, tuples and dicts within"
    found = f"a {word} without a tensor {where}"
    if not complete:
        found = f"a {word} in which no tensor was found; not all of it was searched"
    return found, "name one that holds tensors"


def _of_module(module: Any, expression: str) -> tuple[str, str]:
    try:
        names = [name for name, _ in module.named_parameters()]
    except Exception:  # noqa: BLE001 - the user's own, or not yet set up
        names = []
    parameters = count_text(len(names), "parameter")
    found = f"a module ({class_name(module)}) with {parameters}"
    if not names:
        return found, "name a tensor that it is given or returns"
    shown = [f"{expression}.{_as_code(name)}" for name in names[:_NAMED_AT_MOST]]
    more = ", ..." if len(names) > _NAMED_AT_MOST else ""
    return found, f"%tensor_info {', '.join(shown)}{more}"


def _as_code(name: str) -> str:
    """A parameter's name as it is typed: `0.weight` is `get_parameter('0.weight')`."""
    if all(part.isidentifier() for part in name.split(".")):
        return name
    return f"get_parameter({name!r})"


def kind_of_container(thing: Any) -> str:
    """The word for it: "dict", "list" or "tuple"; empty for all else."""
    return next((kind.__name__ for kind in _KINDS if is_truly(thing, kind)), "")


def items_of(thing: Any) -> Iterator[tuple[str, Any]]:
    """Each item, by the place behind a name that leads to it: `[0]`, `['w']`.

    No code of a subclass is run.
    """
    if is_truly(thing, dict):
        # A list of the pairs: the dict may change while they are looked at.
        for key, value in list(dict.items(thing)):
            yield f"[{spelled(key)}]", value
        return
    for number, value in enumerate(_in_order(thing)):
        yield f"[{number}]", value


def place_within(
    container: Any, wanted: Callable[[Any], bool]
) -> tuple[str | None, bool]:
    """The nearest item that is wanted, on any level.

    Its place, such as `[0]['w']`, or None where none was found. And whether all was
    looked at until then: a search ends after 10,000 items. A container may contain
    itself.
    """
    seen = {id(container)}
    waiting = deque([("", container)])
    left = _LOOKED_AT_MOST
    while waiting:
        place, outer = waiting.popleft()
        for part, item in items_of(outer):
            if wanted(item):
                return place + part, True
            left -= 1
            if not left:
                return None, False
            if id(item) not in seen and kind_of_container(item):
                seen.add(id(item))
                waiting.append((place + part, item))
    return None, True


def _in_order(thing: Any) -> Iterator[Any]:
    if is_truly(thing, list):
        return list.__iter__(thing)
    return tuple.__iter__(thing) if is_truly(thing, tuple) else iter(())
