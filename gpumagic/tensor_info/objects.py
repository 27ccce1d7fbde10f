"""Tells what holds tensors, and what something is that is no tensor.

No code of a subclass is run: tensors, containers, modules and optimizers are asked by
the functions of the base class, and for what they themselves hold. torch's private
names stand here, each behind a feature test.
"""

# ruff: noqa: SLF001 -- the one module of this room that looks inside torch

from __future__ import annotations

import sys
import types
from contextlib import nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any

from gpumagic.errors import GpuMagicError
from gpumagic.report.introspection import (
    attributes_of,
    class_name,
    is_array,
    is_truly,
    is_weak_proxy,
)
from gpumagic.report.units import with_article

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

_NAMED_AT_MOST = 4
_CONTAINERS: tuple[type, ...] = (dict, list, tuple)
_SPELLED: tuple[Any, ...] = (bool, int, float, complex, str, bytes)
_SPARSE_PARTS = {
    "sparse_coo": ("_indices", "_values"),
    "sparse_csr": ("crow_indices", "col_indices", "values"),
    "sparse_bsr": ("crow_indices", "col_indices", "values"),
    "sparse_csc": ("ccol_indices", "row_indices", "values"),
    "sparse_bsc": ("ccol_indices", "row_indices", "values"),
}


def is_of(thing: Any, module: str, name: str) -> bool:
    """Whether something is of a class of torch, if somebody has imported that."""
    return is_truly(thing, getattr(sys.modules.get(module), name, ()))


def is_tensor(thing: Any) -> bool:
    """Whether something is a tensor of torch or a numpy array."""
    return is_array(thing) or is_of(thing, "torch", "Tensor")


def is_module(thing: Any) -> bool:
    """Whether something is a module of torch."""
    return is_of(thing, "torch.nn", "Module")


def is_optimizer(thing: Any) -> bool:
    """Whether something is an optimizer of torch."""
    return is_of(thing, "torch.optim.optimizer", "Optimizer")


def is_fake(tensor: Any) -> bool:
    """Whether the tensor only pretends, as under `torch.compile`."""
    return is_of(tensor, "torch._subclasses.fake_tensor", "FakeTensor")


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


def as_code(name: str) -> str:
    """How a part of a module is typed: those of a Sequential or a list as items.

    >>> as_code("weight"), as_code("0")
    ('.weight', '[0]')
    """
    return f"[{name}]" if name.isdigit() else f".{name}"


def tensors_of_module(module: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Parameters and buffers on every level, tied ones under each of their names.

    Each by the code behind the module that leads to it.
    """
    waiting, seen = [(path, module)], {id(module)}
    while waiting:
        at, each = waiting.pop()
        for role in ("_parameters", "_buffers"):
            yield from (
                (f"{at}{as_code(name)}", value)
                for name, value in registered(each, role)
            )
        for name, inner in reversed(registered(each, "_modules")):
            if id(inner) not in seen:
                seen.add(id(inner))
                waiting.append((f"{at}{as_code(name)}", inner))


def no_tensor(thing: Any, expression: str) -> GpuMagicError:
    """The error that says what something is instead, and what to type."""
    found = f"of type {class_name(thing)}"
    places: list[str] = []
    if word := kind_of_container(thing):
        found = with_article(word)
        places = [place for place, value in items_of(thing) if is_tensor(value)][:1]
    elif is_module(thing):
        found = f"a module ({class_name(thing)})"
        places = [at for at, _ in islice(tensors_of_module(thing), _NAMED_AT_MOST)]
    elif is_weak_proxy(thing):
        found = "a weak reference to another object"
    hint = "type the name of a torch tensor or a numpy array"
    if places:
        hint = "%tensor_info " + ", ".join(f"{expression}{place}" for place in places)
    return GpuMagicError(f"{expression} is no tensor, but {found}", hint)


# ------------------------------------------------------- what torch itself says


def without_overrides(torch: Any) -> AbstractContextManager[Any]:
    """While this lasts, questions reach torch and no `__torch_function__`."""
    quiet: AbstractContextManager[Any] = getattr(
        torch._C, "DisableTorchFunction", nullcontext
    )()
    return quiet


def own(torch: Any, tensor: Any, name: str) -> Any:
    """An attribute or a method as `torch.Tensor` has it, whatever the class has."""
    if is_fake(tensor):
        return getattr(tensor, name)  # torch's own class, which knows its device
    return getattr(torch.Tensor, name).__get__(tensor)


def storage_address(torch: Any, tensor: Any) -> int:
    """Where the storage begins; a lazy copy stays one. 0 where torch does not say.

    Ask only for tensors that have memory: fake ones warn.
    """
    return int(getattr(torch._C, "_data_address", lambda _: 0)(tensor))


def identity(torch: Any, tensor: Any) -> int:
    """What tells two tensors apart that torch hands out as one Python object."""
    return int(own(torch, tensor, "_cdata"))


def sparse_parts(torch: Any, tensor: Any, layout: str) -> Iterator[tuple[str, Any]]:
    """The dense tensors that a sparse one is made of, as views."""
    for name in _SPARSE_PARTS.get(layout, ()):
        yield f"{name}()", own(torch, tensor, name)()


def wrapped_parts(torch: Any, tensor: Any) -> Iterator[tuple[str, Any]]:
    """The tensors that a wrapper holds, as attributes or in slots."""
    held = dict(attributes_of(tensor) or {})
    for base in type.__getattribute__(type(tensor), "__mro__"):
        for name, slot in type.__getattribute__(base, "__dict__").items():
            if type(slot) is types.MemberDescriptorType:
                try:
                    held[name] = slot.__get__(tensor)
                except AttributeError:  # never set
                    continue
    for name, part in held.items():
        if is_truly(part, torch.Tensor):
            yield str.__str__(name), part


def simulated_address(storage: Any) -> int:
    """The made-up address of a storage on a simulated GPU; 0 where it has none."""
    life = getattr(getattr(storage, "_gpumagic", None), "life", None)
    return getattr(getattr(life, "block", None), "address", 0)
