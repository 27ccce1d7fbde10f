"""Reads a tensor or a numpy array without an operation on it, whatever kind it is.

Some look like a plain tensor and are none: their sizes and strides may be notional, or
have no memory behind them, and torch answers all the same. So the kind comes first.
What is read are plain numbers, which keep nothing alive.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from gpumagic.errors import first_line
from gpumagic.report.introspection import class_name, is_array, is_truly
from gpumagic.tensor_info import objects
from gpumagic.tensor_info.geometry import Geometry
from gpumagic.tensor_info.objects import no_tensor, own
from gpumagic.tensor_info.overlap import Placed
from gpumagic.tensor_info.report import Facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Memory:
    """The memory that elements lie in: one storage, or what an array owns."""

    device: str
    start: int  # the address that tells it apart from other memory of its device
    size_bytes: int
    # the same start as the user's kernels see it: made up on a simulated GPU. None
    # where it is not known.
    address: int | None

    @property
    def span(self) -> tuple[str, int, int]:
        """Its device, its first byte, and the one behind its last."""
        return self.device, self.start, self.start + self.size_bytes


@dataclass(frozen=True)
class Reading(Facts):
    """One object, read once."""

    geometry: Geometry | None = None  # which elements of the memory it reaches
    memory: Memory | None = None
    identity: int | None = None  # of the tensor, with memory or without
    # tells storages of torch apart, with memory or without; two of them may share
    # memory. None if it is no storage of torch.
    storage: int | None = None
    inner: tuple[tuple[str, Reading], ...] = ()

    @property
    def numel(self) -> int:
        """How many elements can be indexed; 0 where that is not known."""
        return 0 if self.size is None else prod(self.size)

    @cached_property
    def placed(self) -> tuple[Placed, ...]:
        """Where it lies, or what it is made of; empty without memory."""
        memory, g = self.memory, self.geometry
        if self.inner:
            return tuple(each for _, part in self.inner for each in part.placed)
        if memory is None or g is None or not g.numel:
            return ()
        return (Placed(g, memory.start, memory.device),)


def read(thing: Any, expression: str = "x") -> Reading:
    """What an object says of itself as a tensor.

    Raises:
        GpuMagicError: It is none; says what it is, and what to type.
    """
    torch = objects.torch_if_imported()
    if torch is not None and is_truly(thing, torch.Tensor):
        with objects.without_overrides(torch):
            return _read_tensor(torch, thing)
    if is_array(thing):
        return _read_array(thing)
    raise no_tensor(thing, expression)


class _Kind(NamedTuple):
    """What sort of tensor something is."""

    name: str
    remark: str = ""  # what its owner should know, in one sentence
    inner: tuple[tuple[str, Any], ...] = ()  # live tensors: a kind is not to be kept
    has_strides: bool = True  # whether size and stride say where its elements lie
    has_memory: bool = True  # whether there are bytes of its own behind it


def _whole(numbers: Iterable[Any]) -> tuple[int, ...]:
    """A size or the like; one with symbols must not be fixed by asking."""
    found = tuple(numbers)
    if all(type(each) is int for each in found):
        return found
    raise TypeError(f"it has symbols: ({', '.join(map(str, found))})")


def _read_tensor(torch: Any, tensor: Any) -> Reading:
    """Ask one thing at a time: what cannot be answered costs one remark."""
    remarks: list[str] = []

    def mine(name: str, *given: Any) -> Any:
        found = own(torch, tensor, name)
        return found(*given) if callable(found) else found

    def ask(what: str, question: Callable[[], _Answer]) -> _Answer | None:
        try:
            return question()
        except Exception as error:  # noqa: BLE001 - whatever a backend raises
            remarks.append(f"{what} is not known: {first_line(error)}")
            return None

    kind = ask("the kind", lambda: next(_kinds(torch, tensor, mine)))
    kind = kind or _Kind("tensor", has_strides=False, has_memory=False)
    device = ask("the device", lambda: mine("device"))
    itemsize = ask("the itemsize", lambda: int(mine("element_size")))
    size = stride = offset = geometry = storage = memory = None
    if not kind.name.startswith(("nested", "uninitialised")):
        size = ask("size", lambda: _whole(mine("size")))
    if kind.has_strides:
        stride = ask("stride", lambda: _whole(mine("stride")))
        offset = ask("storage offset", lambda: _whole([mine("storage_offset")])[0])
        if size is not None and stride is not None and None not in (offset, itemsize):
            geometry = Geometry(size, stride, offset or 0, itemsize or 1)
        if not kind.inner:
            storage = ask("the storage", lambda: mine("untyped_storage"))
    simulated, made_up = objects.simulated_memory(storage)
    size_bytes = None if storage is None else int(storage.nbytes())
    if kind.has_memory and size_bytes:
        start = ask("address", lambda: objects.storage_address(torch, tensor))
        if start:  # all that is empty has the address 0
            memory = Memory(
                str(device), start, size_bytes, made_up if simulated else start
            )
    return Reading(
        kind=kind.name,
        dtype=ask("the dtype", lambda: str(mine("dtype")).removeprefix("torch.")),
        device=None if device is None else str(device),
        itemsize=itemsize,
        size=size,
        stride=stride,
        storage_offset=offset,
        geometry=geometry,
        memory=memory,
        identity=ask("identity", lambda: objects.identity(torch, tensor)),
        storage=None if storage is None else int(storage._cdata),  # noqa: SLF001
        storage_bytes=size_bytes,
        is_view=ask("is_view", lambda: bool(mine("_is_view"))),
        requires_grad=ask("requires_grad", lambda: bool(mine("requires_grad"))),
        on_accelerator=getattr(device, "type", "cpu") not in ("cpu", "meta"),
        simulated=simulated,
        inner=tuple((name, _read_tensor(torch, part)) for name, part in kind.inner),
        remarks=tuple(filter(None, (kind.remark, *remarks))),
    )


def _kinds(torch: Any, tensor: Any, mine: Callable[..., Any]) -> Iterator[_Kind]:
    """The kinds that a tensor is of, from the oddest to the plainest."""
    if is_truly(tensor, getattr(torch.nn.parameter, "UninitializedTensorMixin", ())):
        remark = "a lazy module has not made it yet: run the module once"
        yield _Kind("uninitialised parameter", remark, has_strides=False)
    if mine("is_nested"):
        remark = "its rows have sizes of their own, and no strides in common"
        inner = tuple(objects.wrapped_parts(torch, tensor))
        yield _Kind("nested tensor", remark, inner, has_strides=False)
    if (layout := str(mine("layout")).removeprefix("torch.")) != "strided":
        form, _, rest = layout.removeprefix("_").partition("_")
        inner = tuple(objects.sparse_parts(torch, tensor, layout))
        remark = "it has no strides: x.to_dense() copies it into a plain tensor"
        name = f"{form} tensor{f' ({rest.upper()})' if rest else ''}"
        yield _Kind(name, remark, inner, has_strides=False)
    is_fake = objects.is_fake(tensor)
    has_code = _dispatches_in_python(torch, type(tensor)) and mine("numel")
    if has_code and not is_fake and objects.storage_address(torch, tensor) == 0:
        remark = "its size is that of what it stands for; the memory is within"
        inner = tuple(objects.wrapped_parts(torch, tensor))
        name = f"wrapper ({class_name(tensor)})"
        yield _Kind(name, remark, inner, has_strides=False)
    if is_fake or mine("device").type == "meta":
        remark = "no memory: sizes, strides and bytes are those of a real one"
        name = "fake tensor" if is_fake else "meta tensor"
        yield _Kind(name, remark, has_memory=False)
    if mine("numel") and not mine("untyped_storage").nbytes():
        remark = "its storage was resized to 0 bytes, as sharded training does"
        yield _Kind("tensor without storage", remark, has_memory=False)
    if is_truly(tensor, torch.nn.Parameter):
        yield _Kind("parameter")
    is_plain = type(tensor) is torch.Tensor
    yield _Kind("tensor" if is_plain else f"tensor ({class_name(tensor)})")


def _dispatches_in_python(torch: Any, kind: type) -> bool:
    for base in type.__getattribute__(kind, "__mro__"):
        if base is torch.Tensor:
            return False
        if "__torch_dispatch__" in type.__getattribute__(base, "__dict__"):
            return True
    return False


def _read_array(array: Any) -> Reading:
    """Read a numpy array; one that runs backwards is said to."""
    kind = sys.modules["numpy"].ndarray

    def of(each: Any, name: str) -> Any:
        return getattr(kind, name).__get__(each)  # no property of a subclass's

    itemsize, size = int(of(array, "itemsize")), tuple(map(int, of(array, "shape")))
    steps = tuple(map(int, of(array, "strides")))
    root = array
    while is_array(of(root, "base")):
        root = of(root, "base")
    # Its memory reaches from the lowest element of what owns it to the highest.
    whole = Geometry(of(root, "shape"), of(root, "strides"), 0, 1)
    start = int(of(root, "__array_interface__")["data"][0])
    start += whole.first_element or 0
    reach = whole.span_elements - 1 + itemsize if whole.numel else 0
    offset_bytes = int(of(array, "__array_interface__")["data"][0]) - start
    geometry = None
    remarks = []
    if backwards := [str(dim) for dim, step in enumerate(steps) if step < 0]:
        remarks.append(
            f"dim {', '.join(backwards)} runs backwards: torch has no negative "
            "strides, torch.from_numpy refuses this array, and torch.flip copies"
        )
    if not itemsize or any(step % itemsize for step in (offset_bytes, *steps)):
        remarks.append("its steps in bytes are no multiples of its itemsize")
    else:
        stride = tuple(step // itemsize for step in steps)
        geometry = Geometry(size, stride, offset_bytes // itemsize, itemsize)
    name = class_name(array)
    return Reading(
        kind="numpy array" if name == "ndarray" else f"numpy array ({name})",
        dtype=str(of(array, "dtype")),
        device="cpu",
        itemsize=itemsize,
        size=size,
        stride=None if geometry is None else geometry.stride,
        storage_offset=None if geometry is None else geometry.offset,
        geometry=geometry,
        memory=Memory("cpu", start, reach, start) if reach else None,
        storage_bytes=reach,
        is_view=of(array, "base") is not None,
        remarks=tuple(remarks),
    )
