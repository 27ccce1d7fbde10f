"""Which bytes of its storage a view touches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from gpumagic.simulator.hazards import Accesses, Operand


class Accessed(Protocol):
    """Memory whose accesses are followed."""

    accesses: Accesses


def operand_of(tensor: Any, memory: Accessed) -> tuple[Operand, int]:
    """The bytes between the first and the last, and how many of them are touched.

    An expanded dimension is read once: its elements are the same bytes.
    """
    itemsize = tensor.element_size()
    low = tensor.storage_offset() * itemsize
    if tensor.is_contiguous():  # nearly all are
        nbytes = tensor.numel() * itemsize
        return (memory.accesses, low, low + nbytes, None), nbytes
    sizes, strides = tensor.size(), tensor.stride()
    reach = touched = 1
    for size, stride in zip(sizes, strides, strict=True):
        if size == 0:
            return (memory.accesses, low, low, None), 0
        reach += (size - 1) * stride
        touched *= size if stride else 1
    nbytes = min(touched, reach) * itemsize
    dense = touched == reach
    layout = (
        None
        if dense
        else (low, (*sizes,), (*(stride * itemsize for stride in strides),), itemsize)
    )
    return (memory.accesses, low, low + reach * itemsize, layout), nbytes
