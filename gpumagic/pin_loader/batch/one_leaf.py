"""What is to be said of one tensor or array: its size, and how it lies in memory."""

from __future__ import annotations

from typing import Any

from gpumagic.devices.storages import StorageKey, stored_by, tensors_within
from gpumagic.pin_loader.records.batch import Leaf, Pinned, WhyPageable


def leaf_of_tensor(torch: Any, tensor: Any, path: str) -> Leaf:
    """A tensor; whether it is pinned is not asked here."""
    return Leaf(
        path=path,
        what=type(tensor).__name__,
        shape=_shape_of(tensor),
        dtype=str(tensor.dtype).removeprefix("torch."),
        nbytes=_bytes_of(torch, tensor),
        contiguous=_lies_together(torch, tensor),
    )


def leaf_of_array(array: Any, path: str) -> Leaf:
    """An array of numpy."""
    return Leaf(
        path=path,
        what=type(array).__name__,
        shape=tuple(array.shape),
        dtype=str(array.dtype),
        nbytes=int(array.nbytes),
        contiguous=bool(array.flags.forc),
        pinned=Pinned.PAGEABLE,
        why=WhyPageable.NOT_A_TENSOR,
    )


def memory_of(torch: Any, leaf: Any) -> StorageKey | None:
    """What two leaves on one memory have in common; None where that cannot be told."""
    if isinstance(leaf, torch.Tensor):
        stored = stored_by(torch, leaf)
        return None if stored is None else stored.key
    whole = leaf
    while hasattr(whole.base, "ctypes"):
        whole = whole.base
    # The same words as for a tensor: `torch.from_numpy` makes one on that memory.
    return StorageKey("cpu", 0, int(whole.ctypes.data)) if leaf.nbytes else None


def locked_bytes(torch: Any, tensor: Any) -> int:
    """What a pinned copy of a tensor locks: blocks of powers of two."""
    parts = list(tensors_within(torch, tensor))
    if parts:
        return sum(locked_bytes(torch, part) for part in parts)
    nbytes = _span_bytes(torch, tensor)
    return 1 << (nbytes - 1).bit_length() if nbytes else 0


def _span_bytes(torch: Any, tensor: Any) -> int:
    """From the first of its elements to the last: a pinned copy keeps the strides."""
    if tensor.is_nested or tensor.layout is not torch.strided:
        return _bytes_of(torch, tensor)
    if not tensor.numel():
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in steps)
    return int((last + 1) * tensor.element_size())


def _bytes_of(torch: Any, tensor: Any) -> int:
    parts = list(tensors_within(torch, tensor))
    if parts:
        return sum(_bytes_of(torch, part) for part in parts)
    if tensor.is_nested:
        return sum(_bytes_of(torch, row) for row in tensor.unbind())
    return int(tensor.numel() * tensor.element_size())


def _shape_of(tensor: Any) -> tuple[int, ...]:
    """Rows of different length have none but their number."""
    if tensor.is_nested:
        return (int(tensor.size(0)),)
    return tuple(int(size) for size in tensor.shape)


def _lies_together(torch: Any, tensor: Any) -> bool | None:
    """Whether the elements fill one piece of memory, in whatever order.

    Then a copy is one piece as well: the device gets the same strides.
    """
    if tensor.is_nested or tensor.layout is not torch.strided:
        return None
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True
