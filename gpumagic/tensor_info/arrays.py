"""Reads a numpy array, and whatever hands out its memory on the CPU through DLPack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumagic.errors import GpuMagicError
from gpumagic.report.introspection import class_has, class_name, is_array, is_truly
from gpumagic.tensor_info import torch_private
from gpumagic.tensor_info.geometry import Geometry
from gpumagic.tensor_info.tensors import Memory, Reading, read_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

_CPU_OF_DLPACK = 1


def read_array(array: Any) -> Reading:
    """Read a numpy array; one that runs backwards is said to."""
    itemsize, size = int(array.itemsize), tuple(map(int, array.shape))
    stride_bytes = tuple(map(int, array.strides))
    first, (memory, storage) = _first_byte(array), _memory_of(array)
    offset_bytes = first - memory.start
    stride = _in_elements(stride_bytes, itemsize)
    even_offset = not offset_bytes % (itemsize or 1)
    backwards = tuple(dim for dim, step in enumerate(stride_bytes) if step < 0)
    steps = _in_elements((offset_bytes, *stride_bytes), itemsize)
    return Reading(
        kind=_kind(array),
        dtype=str(array.dtype),
        device="cpu",
        itemsize=itemsize,
        size=size,
        stride=stride,
        stride_bytes=stride_bytes,
        storage_offset=offset_bytes // itemsize if itemsize and even_offset else None,
        geometry=_reached(size, stride_bytes, offset_bytes, itemsize),
        has_layout=steps is not None,
        memory=memory if memory.size_bytes else None,
        storage=storage,
        storage_bytes=memory.size_bytes,
        is_view=array.base is not None,
        base_shape=getattr(array.base, "shape", None) and tuple(array.base.shape),
        requires_grad=None,  # arrays have no gradients
        remarks=tuple(filter(None, _remarks(array, backwards, steps))),
    )


def hands_out_dlpack(thing: Any) -> bool:
    """Whether something offers its memory through DLPack."""
    return class_has(thing, "__dlpack__")


def read_dlpack(thing: Any) -> Reading:
    """Read what is offered through DLPack, if it lies on the CPU."""
    name = f"{type(thing).__module__}.{class_name(thing)}"
    try:
        place = int(thing.__dlpack_device__()[0])
        reading = _through_dlpack(thing, name) if place == _CPU_OF_DLPACK else None
    except Exception as error:  # noqa: BLE001 - whatever another library raises
        raise GpuMagicError(
            f"{name} does not hand out its memory: {error}",
            "give a torch tensor or a numpy array made of it",
        ) from None
    if reading is None:
        raise GpuMagicError(
            f"{name} lies on a device of another library (DLPack device {place})",
            "only memory on the CPU is looked at through DLPack",
        )
    return reading


def _through_dlpack(thing: Any, name: str) -> Reading:
    import dataclasses

    torch = torch_private.torch_if_imported()
    if torch is not None:
        reading = read_tensor(torch, torch.from_dlpack(thing))
    else:
        import numpy as np

        reading = read_array(np.from_dlpack(thing))
    return dataclasses.replace(reading, kind=f"{name} (through DLPack)")


def _kind(array: Any) -> str:
    name = type(array).__name__
    return "numpy array" if name == "ndarray" else f"numpy array ({name})"


def _first_byte(array: Any) -> int:
    """Where the element with index 0 in every dim lies."""
    return int(array.__array_interface__["data"][0])


def _memory_of(array: Any) -> tuple[Memory, int | None]:
    """The memory of what owns it, and its storage if that is a tensor."""
    root = array
    while is_array(root.base):
        root = root.base
    torch = torch_private.torch_if_imported()
    if torch is not None and is_truly(root.base, torch.Tensor):
        owner = read_tensor(torch, root.base)
        if owner.memory is not None and owner.memory.device == "cpu":
            return owner.memory, owner.storage
    below, reach_bytes = _extent(root.shape, root.strides, root.itemsize)
    start = _first_byte(root) - below
    return Memory("cpu", start, reach_bytes, start), None


def _extent(
    size: Sequence[int], stride_bytes: Sequence[int], itemsize: int
) -> tuple[int, int]:
    """The bytes before the first element, and all from the lowest to the highest."""
    if 0 in size:
        return 0, 0
    steps = [(n - 1) * step for n, step in zip(size, stride_bytes, strict=True)]
    below = -sum(step for step in steps if step < 0)
    return below, below + sum(step for step in steps if step > 0) + itemsize


def _in_elements(
    stride_bytes: tuple[int, ...], itemsize: int
) -> tuple[int, ...] | None:
    if not itemsize or any(step % itemsize for step in stride_bytes):
        return None
    return tuple(step // itemsize for step in stride_bytes)


def _reached(
    size: tuple[int, ...],
    stride_bytes: tuple[int, ...],
    offset_bytes: int,
    itemsize: int,
) -> Geometry | None:
    """The elements that an array reaches; byte for byte where it takes odd steps."""
    if not itemsize:
        return None
    steps = _in_elements((offset_bytes, *stride_bytes), itemsize)
    if steps is None:
        return Geometry((*size, itemsize), (*stride_bytes, 1), offset_bytes, 1)
    return Geometry(size, steps[1:], steps[0], itemsize)


def _remarks(
    array: Any, backwards: tuple[int, ...], steps: tuple[int, ...] | None
) -> list[str]:
    dims = ", ".join(map(str, backwards))
    return [
        f"dim {dims} runs backwards: torch has no negative strides, "
        "torch.from_numpy refuses this array, and torch.flip copies"
        if backwards
        else "",
        "its steps in bytes are no multiples of its itemsize, so that it has no "
        "strides in elements: torch.from_numpy refuses it"
        if steps is None
        else "",
        "its elements are Python objects: the bytes here are only their addresses"
        if array.dtype.hasobject
        else "",
    ]
