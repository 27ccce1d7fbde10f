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
from typing import TYPE_CHECKING, Any

from gpumagic.errors import GpuMagicError
from gpumagic.report.introspection import (
    attributes_of,
    class_name,
    is_array,
    is_truly,
    is_weak_proxy,
)

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


def torch_if_imported() -> Any:
    """The torch module where somebody has imported it; else there are no tensors."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "Tensor") else None


def is_tensor(thing: Any) -> bool:
    """Whether something is a tensor of torch or a numpy array."""
    torch = torch_if_imported()
    return is_array(thing) or (torch is not None and is_truly(thing, torch.Tensor))


def is_module(thing: Any) -> bool:
    """Whether something is a module of torch."""
    torch = torch_if_imported()
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
    found = f"of type {class_name(thing)}"
    hint = "type the name of a torch tensor or a numpy array"
    if word := kind_of_container(thing):
        places = [place for place, value in items_of(thing) if is_tensor(value)]
        found = f"a {word} {'with' if places else 'without'} a tensor in it"
        hint = f"%tensor_info {expression}{places[0]}" if places else hint
    elif is_module(thing):
        names = [name for name, _ in tensors_of_module(thing)][:_NAMED_AT_MOST]
        found = f"a module ({class_name(thing)})"
        hint = ", ".join(f"{expression}.{name}" for name in names)
        hint = f"%tensor_info {hint}" if names else "name what it is given"
    elif is_weak_proxy(thing):
        found = "a weak reference to another object"
    return GpuMagicError(f"{expression} is no tensor, but {found}", hint)


# ------------------------------------------------------- what torch itself says


def without_overrides(torch: Any) -> AbstractContextManager[Any]:
    """While this lasts, questions reach torch and no `__torch_function__`."""
    quiet = getattr(torch._C, "DisableTorchFunction", None)
    return nullcontext() if quiet is None else quiet()


def own(torch: Any, tensor: Any, name: str) -> Any:
    """An attribute or a method as `torch.Tensor` has it, whatever the class has."""
    if is_fake(tensor):
        return getattr(tensor, name)  # torch's own class, which knows its device
    return getattr(torch.Tensor, name).__get__(tensor)


def storage_address(torch: Any, tensor: Any) -> int | None:
    """Where the storage begins; a lazy copy stays one. None where torch does not say.

    Ask only for tensors that have memory: fake ones warn.
    """
    ask = getattr(torch._C, "_data_address", None)
    return None if ask is None else int(ask(tensor))


def identity(torch: Any, tensor: Any) -> int:
    """What tells two tensors apart that torch hands out as one Python object."""
    return int(own(torch, tensor, "_cdata"))


def is_fake(tensor: Any) -> bool:
    """Whether the tensor only pretends, as under `torch.compile`."""
    fakes = sys.modules.get("torch._subclasses.fake_tensor")
    fake = getattr(fakes, "FakeTensor", None)
    return fake is not None and is_truly(tensor, fake)


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


def simulated_memory(storage: Any) -> tuple[bool, int | None]:
    """Whether a storage lies on a simulated GPU, and its made-up address there."""
    memory = getattr(storage, "_gpumagic", None)
    block = getattr(getattr(memory, "life", None), "block", None)
    return memory is not None, getattr(block, "address", None)


def optimizer_class() -> Any:
    """The class of torch's optimizers, where somebody has imported it."""
    return getattr(sys.modules.get("torch.optim.optimizer"), "Optimizer", None)
