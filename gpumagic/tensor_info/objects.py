"""Tells what holds tensors, and what something is that is no tensor.

No code of a subclass is run: containers, modules and optimizers are asked by the
functions of the base class, and for what they themselves hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.errors import GpuMagicError
from gpumagic.report.introspection import (
    attributes_of,
    class_name,
    is_array,
    is_truly,
    is_weak_proxy,
)
from gpumagic.tensor_info import torch_private

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAMED_AT_MOST = 4
_CONTAINERS: tuple[type, ...] = (dict, list, tuple)
_SPELLED: tuple[Any, ...] = (bool, int, float, complex, str, bytes)


def is_tensor(thing: Any) -> bool:
    """Whether something is a tensor of torch or a numpy array."""
    torch = torch_private.torch_if_imported()
    return is_array(thing) or (torch is not None and is_truly(thing, torch.Tensor))


def is_module(thing: Any) -> bool:
    """Whether something is a module of torch."""
    torch = torch_private.torch_if_imported()
    return torch is not None and is_truly(thing, torch.nn.Module)


def kind_of_container(thing: Any) -> str:
    """The word for it: "dict", "list" or "tuple"; empty for all else."""
    return next((kind.__name__ for kind in _CONTAINERS if is_truly(thing, kind)), "")


def spelled(key: Any) -> str:
    """A key as code, or its class where only code of its own could tell."""
    for kind in _SPELLED:
        if is_truly(key, kind):
            return str(kind.__repr__(key))
    return f"<{class_name(key)}>"


def pairs_of(thing: Any) -> list[tuple[Any, Any]]:
    """The keys and values of a dict: a list, as it may change while looked at."""
    return list(dict.items(thing)) if is_truly(thing, dict) else []


def items_of(thing: Any) -> Iterator[tuple[str, Any]]:
    """Each item, by the place behind a name that leads to it: `[0]`, `['w']`."""
    yield from ((f"[{spelled(key)}]", value) for key, value in pairs_of(thing))
    for kind in (list, tuple):
        if is_truly(thing, kind):
            for number, value in enumerate(kind.__iter__(thing)):
                yield f"[{number}]", value


def registered(module: Any, role: str) -> list[tuple[str, Any]]:
    """What a module has as "_parameters", "_buffers" or "_modules", by name."""
    held = (attributes_of(module) or {}).get(role)
    return [
        (str.__str__(name), value)
        for name, value in pairs_of(held)
        if is_truly(name, str) and value is not None
    ]


def tensors_of_module(module: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Parameters and buffers on every level, tied ones under each of their names."""
    waiting, seen = [(path, module)], {id(module)}
    while waiting:
        at, each = waiting.pop()
        for role in ("_parameters", "_buffers"):
            yield from (
                (f"{at}{name}", value) for name, value in registered(each, role)
            )
        for name, inner in reversed(registered(each, "_modules")):
            if id(inner) not in seen:
                seen.add(id(inner))
                waiting.append((f"{at}{name}.", inner))


def no_tensor(thing: Any, expression: str) -> GpuMagicError:
    """The error that says what something is instead, and what to type."""
    found, hint = _described(thing, expression)
    return GpuMagicError(f"{expression} is no tensor, but {found}", hint)


def _described(thing: Any, expression: str) -> tuple[str, str]:
    if thing is None:
        return "None", "did a function that changes its argument return nothing?"
    if is_truly(thing, (bool, int, float, complex)):
        number = f"the number {spelled(thing)}"
        return number, "a number has no memory layout of its own"
    if word := kind_of_container(thing):
        places = [place for place, value in items_of(thing) if is_tensor(value)]
        hint = f"%tensor_info {expression}{places[0]}" if places else "name another"
        found = "with a tensor in it" if places else "without a tensor"
        return f"a {word} {found}", hint
    if is_module(thing):
        names = [name for name, _ in tensors_of_module(thing)][:_NAMED_AT_MOST]
        hint = ", ".join(f"{expression}.{name}" for name in names)
        found = f"a module ({class_name(thing)})"
        return found, f"%tensor_info {hint}" if names else "name what it is given"
    if is_weak_proxy(thing):
        return "a weak reference to another object", "name that object itself"
    name = class_name(thing)
    return f"of type {name}", "type the name of a torch tensor or a numpy array"
