"""Where the memory of a tensor lies, and what a node of autograd keeps for a backward.

Looking runs no operation, and must not unpack: unpacking runs the user's hooks, and
under checkpointing a whole forward pass. Newer torch tells what was saved as it is
(`SavedTensor.data`); of an older one nothing is told of saved tensors. torch's private
names for all this are here, each with what is done without it.
"""

# ruff: noqa: SLF001 -- one of the modules that are meant to look inside torch

from __future__ import annotations

from contextlib import nullcontext
from operator import attrgetter
from types import GetSetDescriptorType
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.devices.torch_private import loaded_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

# The smallest block of torch's caching allocators, of which all are multiples.
_BLOCK_BYTES = {"cuda": 512, "xpu": 512, "sim": 512}
_PARTS = {
    "torch.sparse_coo": ("_indices", "_values"),
    "torch.sparse_csr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_bsr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_csc": ("ccol_indices", "row_indices", "values"),
    "torch.sparse_bsc": ("ccol_indices", "row_indices", "values"),
}
_RAW = "_raw_saved_"
_DATA, _HOOK = attrgetter("data"), attrgetter("unpack_hook")


class StorageKey(NamedTuple):
    """What tells the memory of one storage from that of every other."""

    # the word in front of the colon of a torch device; of a simulated GPU "sim",
    # whatever it stands in for
    kind: str
    device: int
    address: int  # where it begins; on a simulated GPU its made-up address


class Stored(NamedTuple):
    """Memory that something live refers to. It keeps nothing alive."""

    key: StorageKey
    # what the allocator has handed out for it, as far as that can be told without
    # asking the allocator
    nbytes: int


def without_overrides(torch: Any) -> AbstractContextManager[Any]:
    """While this lasts, questions reach torch and no `__torch_function__`."""
    quiet: AbstractContextManager[Any] = getattr(
        torch._C, "DisableTorchFunction", nullcontext
    )()
    return quiet


def stored_by(torch: Any, tensor: Any) -> Stored | None:
    """The memory of a tensor; None where it has none of its own, or cannot tell."""
    try:
        storage = torch.Tensor.untyped_storage(tensor)
        nbytes = storage.nbytes()
        device = storage.device
        if not nbytes or device.type == "meta":  # fake tensors lie there as well
            return None
        if memory := getattr(storage, "_gpumagic", None):
            return _simulated(memory, device)
        address = _address(torch, tensor)
    except (RuntimeError, TypeError):  # also NotImplementedError: it has no storage
        return None
    return _stored(device, address, nbytes)


def stored_in(storage: Any) -> Stored | None:
    """The memory of a storage that somebody holds without a tensor."""
    words: Any = getattr(loaded_torch(), "UntypedStorage", None)
    try:
        nbytes, device = words.nbytes(storage), words.device.__get__(storage)
        if not nbytes or device.type == "meta":
            return None
        if memory := getattr(storage, "_gpumagic", None):
            return _simulated(memory, device)
        return _stored(device, int(words.data_ptr(storage)), nbytes)
    except (RuntimeError, TypeError, AttributeError):
        return None


def tensors_within(torch: Any, tensor: Any) -> Iterator[Any]:
    """The tensors that one without a storage is made of, handed out as views."""
    try:
        for name in _PARTS.get(str(torch.Tensor.layout.__get__(tensor)), ()):
            with torch.no_grad():
                part = getattr(torch.Tensor, name)(tensor)
            yield part
    except (RuntimeError, AttributeError):
        return


def rounded_bytes(kind: str, nbytes: int) -> int:
    """What the allocator of this kind of device hands out for a request, at least."""
    block = _BLOCK_BYTES.get(kind, 1)
    return -(-nbytes // block) * block


def _stored(device: Any, address: int, nbytes: int) -> Stored | None:
    if not address:
        return None
    kind = str(device.type)
    return Stored(
        StorageKey(kind, device.index or 0, address), rounded_bytes(kind, nbytes)
    )


def _simulated(memory: Any, device: Any) -> Stored | None:
    """The block of a simulated GPU; None where the storage has none.

    The next machine has the same addresses, so that memory of one that was switched
    off would be taken for somebody else's.
    """
    if getattr(type(getattr(memory, "gpu", None)), "gone", False):
        return None
    block = getattr(getattr(memory, "life", None), "block", None)
    return block and Stored(
        StorageKey("sim", device.index or 0, block.address), block.size
    )


def _address(torch: Any, tensor: Any) -> int:
    """Where the storage begins; 0 where telling could copy a lazy clone."""
    if ask := getattr(torch._C, "_data_address", None):
        return int(ask(tensor))  # of the storage, whichever part of it the tensor is
    ask = getattr(torch.Tensor, "const_data_ptr", None)
    if not ask:
        if getattr(torch._C, "_is_cow_tensor", lambda _: False)(tensor):
            return 0
        ask = torch.Tensor.data_ptr
    found = int(ask(tensor))
    if not found:  # one without elements has no address, on whatever storage it is
        return int(torch.Tensor.untyped_storage(tensor).data_ptr())
    return found - int(tensor.storage_offset()) * int(tensor.element_size())


class TensorWords:
    """The properties of tensors, as torch defines them and no subclass."""

    def __init__(self, torch: Any) -> None:
        self.is_leaf = torch.Tensor.is_leaf.__get__
        self.retains_grad = torch.Tensor.retains_grad.__get__
        self.grad = torch.Tensor.grad.__get__
        self.grad_fn = torch.Tensor.grad_fn.__get__
        self.base = torch.Tensor._base.__get__


class NodeWords(NamedTuple):
    """How nodes of one class are asked: by what torch itself has put there."""

    edges: Callable[[Any], Any]  # the nodes that come next in a backward pass
    # the leaf that a node at the end adds a gradient to
    variable: Callable[[Any], Any] | None
    # what is kept for the backward pass, not unpacked
    saved: tuple[Callable[[Any], Any], ...]


class Kept(NamedTuple):
    """What one node keeps."""

    things: list[Any]  # nodes, tensors, and what the user's hooks have packed
    hidden: int  # how many saved tensors could not be looked at


def words_of(node_class: type) -> NodeWords | None:
    """How nodes of this class are asked; None if it is no class of nodes."""
    found: dict[str, Any] = {}
    for base in reversed(type.__getattribute__(node_class, "__mro__")):
        found |= {
            name: each
            for name, each in type.__getattribute__(base, "__dict__").items()
            if type(each) is GetSetDescriptorType
        }
    if "next_functions" not in found or "metadata" not in found:
        return None
    get = {name: each.__get__ for name, each in found.items()}
    saved = sorted(name.removeprefix(_RAW) for name in get if name.startswith(_RAW))
    return NodeWords(
        edges=get["next_functions"],
        variable=get.get("variable"),
        saved=tuple(get[_RAW + name] for name in saved),
    )


def kept_by(torch: Any, node: Any, words: NodeWords) -> Kept:
    """What a node keeps; nothing is run, and what a backward pass has freed is gone."""
    things = [each for each, _ in words.edges(node) if each is not None]
    if words.variable:
        things.append(words.variable(node))
    if not tells_saved(torch):
        return Kept(things, len(words.saved))
    for get in words.saved:
        found = _answer(get, node)
        for each in found if type(found) in (tuple, list) else [found]:
            # The hooks may hold memory as well, as those of checkpointing do.
            things += [_answer(_DATA, each), _answer(_HOOK, each)]
    return Kept([each for each in things if each is not None], 0)


def tells_saved(torch: Any) -> bool:
    """Whether this torch tells what was saved without unpacking it."""
    saved = getattr(getattr(torch._C, "_autograd", None), "SavedTensor", None)
    return hasattr(saved, "data")


def _answer(get: Callable[[Any], Any], node: Any) -> Any:
    try:
        return get(node)
    except (
        RuntimeError,
        AttributeError,
    ):  # freed by a backward pass, or changed since it was saved
        return None
