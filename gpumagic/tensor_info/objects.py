"""Reads any object of a notebook, or says what it is and what to type instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.errors import GpuMagicError
from gpumagic.tensor_info import torch_words
from gpumagic.tensor_info.arrays import (
    hands_out_dlpack,
    is_array,
    read_array,
    read_dlpack,
)
from gpumagic.tensor_info.tensors import read_tensor

if TYPE_CHECKING:
    from gpumagic.tensor_info.reading import Reading

_NAMED_AT_MOST = 4


def read(thing: Any, expression: str = "x") -> Reading:
    """What an object says of itself as a tensor.

    Args:
        thing: A tensor, a numpy array, or what hands out its memory through DLPack.

        expression: What the user typed for it, for the hint.

    Raises:
        GpuMagicError: It is no tensor; says what it is and what to type.
    """
    torch = torch_words.torch_if_imported()
    if torch is not None and isinstance(thing, torch.Tensor):
        return read_tensor(torch, thing)
    if is_array(thing):
        return read_array(thing)
    if hands_out_dlpack(thing):
        return read_dlpack(thing)
    raise _no_tensor(torch, thing, expression)


def is_tensor(thing: Any) -> bool:
    """Whether something is a tensor of torch or a numpy array."""
    torch = torch_words.torch_if_imported()
    return is_array(thing) or (torch is not None and isinstance(thing, torch.Tensor))


def _no_tensor(torch: Any, thing: Any, expression: str) -> GpuMagicError:
    problem, hint = _described(torch, thing, expression)
    return GpuMagicError(f"{expression} is {problem}, no tensor", hint)


def _described(torch: Any, thing: Any, expression: str) -> tuple[str, str]:
    if thing is None:
        return "None", "did a function that changes its argument return nothing?"
    if isinstance(thing, bool | int | float | complex):
        return f"the number {thing!r}", "a number has no memory layout of its own"
    if isinstance(thing, dict):
        return _of_container("dict", thing.items(), len(thing), expression)
    if isinstance(thing, list | tuple):
        word = "list" if isinstance(thing, list) else "tuple"
        return _of_container(word, enumerate(thing), len(thing), expression)
    if torch is not None and isinstance(thing, torch.nn.Module):
        return _of_module(thing, expression)
    name = type(thing).__qualname__
    return f"of type {name}", "type the name of a torch tensor or a numpy array"


def _of_container(
    word: str, items: Any, count: int, expression: str
) -> tuple[str, str]:
    keys = [key for key, value in items if is_tensor(value)]
    if not keys:
        return f"a {word} without a tensor in it", "name one that holds tensors"
    tensors = "tensor" if len(keys) == 1 else "tensors"
    found = f"a {word} of {len(keys)} {tensors}"
    if len(keys) < count:
        found = f"a {word} with {len(keys)} {tensors} among {count} items"
    return found, f"%tensor_info {expression}[{keys[0]!r}]"


def _of_module(module: Any, expression: str) -> tuple[str, str]:
    names = [name for name, _ in module.named_parameters()]
    found = f"a module ({type(module).__name__}) with {len(names)} parameters"
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
