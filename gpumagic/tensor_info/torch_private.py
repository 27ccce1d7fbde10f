"""torch's private names, each behind a feature test, and its own look at a tensor.

A class of the user's may override whatever a tensor is asked. Here torch's own
functions are asked, so that looking runs none of the user's code.
"""

# ruff: noqa: SLF001 -- the one module of this room that looks inside torch

from __future__ import annotations

import sys
import types
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from gpumagic.report.introspection import attributes_of, is_truly

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

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
