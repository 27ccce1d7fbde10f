"""torch's private names: each behind a feature test, with what is done without it.

Every function takes the torch module. Nothing here runs an operation on a tensor,
except that the parts of a sparse tensor are handed out as views.
"""

# ruff: noqa: SLF001 -- the one module of this room that looks inside torch

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager


def torch_if_imported() -> Any:
    """The torch module where somebody has imported it; else there are no tensors."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "Tensor") else None


def without_overrides(torch: Any) -> AbstractContextManager[Any]:
    """While this lasts, questions reach torch and no `__torch_function__`."""
    quiet = getattr(torch._C, "DisableTorchFunction", None)
    return nullcontext() if quiet is None else quiet()


def storage_address(torch: Any, tensor: Any) -> int | None:
    """Where the storage begins; None where telling could copy a lazy clone.

    Ask only for tensors that have memory: fake ones warn.
    """
    ask = getattr(torch._C, "_data_address", None)
    if ask is not None:
        return int(ask(tensor))
    pointer = getattr(torch.Tensor, "const_data_ptr", None)
    if pointer is None and is_lazy_copy(torch, tensor) is False:
        pointer = torch.Tensor.data_ptr
    if pointer is None:
        return None
    offset_bytes = int(tensor.storage_offset() * tensor.element_size())
    found = int(pointer(tensor))
    return found - offset_bytes if found else 0


def is_lazy_copy(torch: Any, tensor: Any) -> bool | None:
    """Whether the tensor is copied when it is first written (None: not known)."""
    ask = getattr(torch._C, "_is_cow_tensor", None)
    return None if ask is None else bool(ask(tensor))


def storage_holders(torch: Any, storage: Any) -> int | None:
    """How many tensors hold a storage, those inside of torch included.

    torch counts the Python object that asks as well: it is taken off.
    """
    ask = getattr(torch._C, "_storage_Use_Count", None)
    return None if ask is None else int(ask(storage._cdata)) - 1


def identity(tensor: Any) -> int | None:
    """What tells two tensors apart that torch hands out as one Python object."""
    found = getattr(tensor, "_cdata", None)
    return None if found is None else int(found)


def base_of(tensor: Any) -> Any:
    """The tensor that a view was made of, as torch remembers it; else None."""
    return getattr(tensor, "_base", None)


def is_view(torch: Any, tensor: Any) -> bool | None:
    """Whether torch remembers a base of this tensor."""
    ask = getattr(torch.Tensor, "_is_view", None)
    return None if ask is None else bool(ask(tensor))


def is_zero(torch: Any, tensor: Any) -> bool:
    """Whether it is one of autograd's zeros, which have no memory."""
    ask = getattr(torch.Tensor, "_is_zerotensor", None)
    return ask is not None and bool(ask(tensor))


def is_fake(tensor: Any) -> bool:
    """Whether the tensor only pretends, as under `torch.compile`."""
    fakes = sys.modules.get("torch._subclasses.fake_tensor")
    fake = getattr(fakes, "FakeTensor", None)
    return fake is not None and isinstance(tensor, fake)


def is_uninitialised(torch: Any, tensor: Any) -> bool:
    """Whether it is a parameter that a lazy module has not made yet."""
    ask = getattr(torch.nn.parameter, "is_lazy", None)
    return ask is not None and bool(ask(tensor))


def functional_inside(torch: Any, tensor: Any) -> tuple[bool, Any]:
    """Whether it is a functional tensor, and the one within if that can be told."""
    ask = getattr(torch, "_is_functional_tensor", None)
    if ask is None or not ask(tensor):
        return False, None
    open_ = getattr(torch, "_from_functional_tensor", None)
    return True, None if open_ is None else open_(tensor)


def transform_inside(torch: Any, tensor: Any) -> tuple[str, Any]:
    """The transform of `torch.func` that wraps a tensor, and the tensor within."""
    words = getattr(torch._C, "_functorch", None)
    is_wrapped = getattr(words, "is_functorch_wrapped_tensor", None)
    if is_wrapped is None or not is_wrapped(tensor):
        return "", None
    is_batched = getattr(words, "is_batchedtensor", lambda _: False)
    open_ = getattr(words, "get_unwrapped", lambda _: None)
    return "vmap" if is_batched(tensor) else "grad", open_(tensor)


def nested_sizes(tensor: Any) -> list[tuple[int, ...]] | None:
    """The sizes of the tensors in a nested one of layout strided."""
    ask = getattr(tensor, "_nested_tensor_size", None)
    return None if ask is None else [tuple(map(int, row)) for row in ask().tolist()]


def sparse_parts(tensor: Any, layout: str) -> Iterator[tuple[str, Any]]:
    """The dense tensors that a sparse one is made of, as views."""
    names = {
        "sparse_coo": ("_indices", "_values"),
        "sparse_csr": ("crow_indices", "col_indices", "values"),
        "sparse_bsr": ("crow_indices", "col_indices", "values"),
        "sparse_csc": ("ccol_indices", "row_indices", "values"),
        "sparse_bsc": ("ccol_indices", "row_indices", "values"),
    }
    for name in names.get(layout, ()):
        yield f"{name}()", getattr(tensor, name)()


def wrapped_parts(torch: Any, tensor: Any) -> Iterator[tuple[str, Any]]:
    """The tensors inside of a wrapper that says of itself what it is made of."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    for name in flatten()[0] if flatten is not None else ():
        part = getattr(tensor, name, None)
        if isinstance(part, torch.Tensor):
            yield name, part


def simulated_memory(storage: Any) -> tuple[bool, int | None]:
    """Whether a storage lies on a simulated GPU, and its made-up address there."""
    memory = getattr(storage, "_gpumagic", None)
    block = getattr(getattr(memory, "life", None), "block", None)
    return memory is not None, getattr(block, "address", None)


def missing_words(torch: Any) -> tuple[str, ...]:
    """What cannot be told as it should, because this torch lacks a private name."""
    effects = {
        "_data_address": "the address is known only where asking for it copies nothing",
        "_is_cow_tensor": "whether this is a lazy copy is not known",
    }
    return tuple(
        f"this torch has no torch._C.{name}: {effect}"
        for name, effect in effects.items()
        if not hasattr(torch._C, name)
    )


def counts_holders(torch: Any) -> bool:
    """Whether torch tells how many tensors hold a storage."""
    return hasattr(torch._C, "_storage_Use_Count")


def optimizer_class() -> Any:
    """The class of torch's optimizers, where somebody has imported it."""
    return getattr(sys.modules.get("torch.optim.optimizer"), "Optimizer", None)


def is_wrapped(torch: Any, tensor: Any) -> bool:
    """Whether a tensor of torch's own class stands for another, as in a transform."""
    ask = getattr(torch, "_is_functional_tensor", None)
    words = getattr(torch._C, "_functorch", None)
    within = getattr(words, "is_functorch_wrapped_tensor", None)
    return any(each is not None and each(tensor) for each in (ask, within))
