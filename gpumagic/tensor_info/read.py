"""Reads a tensor or a numpy array without an operation on it, whatever kind it is.

Some look like a plain tensor and are none: their sizes and strides may be notional, or
have no memory behind them, and torch answers all the same. So the kind comes first.
What is read are plain numbers, which keep nothing alive.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from gpumagic.errors import first_line
from gpumagic.report.introspection import class_name, is_array, is_truly
from gpumagic.tensor_info import objects
from gpumagic.tensor_info.geometry import Geometry
from gpumagic.tensor_info.objects import no_tensor, own
from gpumagic.tensor_info.objects import storage_address as address
from gpumagic.tensor_info.overlap import Placed
from gpumagic.tensor_info.report import Facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpumagic.tensor_info.overlap import Span

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Reading(Facts):
    """One object, read once."""

    # where its storage begins, told apart by this from others of its device; 0 where
    # there is no memory, or none that is known
    start: int = 0
    address: int = 0  # that start as kernels see it: made up on a simulated GPU; or 0
    placed: tuple[Placed, ...] = ()  # it, or what it is made of, if they have memory
    identity: int = 0  # of a tensor of torch, with memory or without
    # tells storages of torch apart, with memory or without; two may share memory
    storage: int = 0
    inner: tuple[tuple[str, Reading], ...] = ()

    @property
    def memory(self) -> Span:
        """The storage: its device, its first byte, and the one behind its last."""
        return self.device, self.start, self.start + (self.storage_bytes or 0)

    @property
    def numel(self) -> int:
        """How many elements can be indexed; 0 where that is not known."""
        return 0 if self.size is None else prod(self.size)


def read(thing: Any, expression: str = "x") -> Reading:
    """What an object says of itself as a tensor.

    Raises:
        GpuMagicError: It is none; says what it is, and what to type.
    """
    if is_array(thing):
        return _read_array(thing)
    if not objects.is_tensor(thing):
        raise no_tensor(thing, expression)
    torch = sys.modules["torch"]
    with objects.without_overrides(torch):
        return _read_tensor(torch, thing)


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

    def mine(name: str) -> Any:
        found = own(torch, tensor, name)
        return found() if callable(found) else found

    def ask(what: str, question: Callable[[], _Answer], otherwise: _Answer) -> _Answer:
        try:
            return question()
        except Exception as error:  # noqa: BLE001 - whatever a backend raises
            remarks.append(f"{what} is not known: {first_line(error)}")
            return otherwise

    def layout() -> Geometry:
        offset, itemsize = _whole([mine("storage_offset"), mine("element_size")])
        return Geometry(_whole(mine("size")), _whole(mine("stride")), offset, itemsize)

    unknown = _Kind("tensor", has_strides=False, has_memory=False)
    kind = ask("the kind", lambda: next(_kinds(torch, tensor, mine)), unknown)
    device = ask("the device", lambda: mine("device"), Facts.device)
    size = geometry = storage = None
    if not kind.name.startswith(("nested", "uninitialised")):
        size = ask("the size", lambda: _whole(mine("size")), None)
    if kind.has_strides:
        geometry = ask("the layout", layout, None)
        storage = ask("the storage", lambda: mine("untyped_storage"), None)
    parts = [(name, _read_tensor(torch, part)) for name, part in kind.inner]
    placed = [each for _, part in parts for each in part.placed]
    of_storage: dict[str, Any] = {}
    if storage is not None:
        simulated = hasattr(storage, "_gpumagic")
        of_storage = {
            "storage": int(storage._cdata),  # noqa: SLF001
            "storage_bytes": int(storage.nbytes()),
            "simulated": simulated,
        }
        start = ask("address", lambda: kind.has_memory and address(torch, tensor), 0)
        if geometry and start:  # what holds no byte has the address 0
            of_storage |= {"start": start, "address": start}
            if simulated:
                of_storage["address"] = objects.simulated_address(storage)
            placed = [Placed(geometry, start, str(device))]
    return Reading(
        kind=kind.name,
        dtype=ask(
            "the dtype", lambda: str(mine("dtype")).removeprefix("torch."), Facts.dtype
        ),
        device=str(device),
        itemsize=ask("the itemsize", lambda: int(mine("element_size")), None),
        size=size,
        geometry=geometry,
        placed=tuple(placed),
        identity=ask("identity", lambda: objects.identity(torch, tensor), 0),
        is_view=ask("is_view", lambda: bool(mine("_is_view")), None),
        requires_grad=ask("requires_grad", lambda: bool(mine("requires_grad")), None),
        on_accelerator=getattr(device, "type", "cpu") not in ("cpu", "meta"),
        inner=tuple(parts),
        remarks=tuple(filter(None, (kind.remark, *remarks))),
        **of_storage,
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
        name = f"{form} tensor ({rest.upper()})".removesuffix(" ()")
        yield _Kind(name, remark, inner, has_strides=False)
    is_fake = objects.is_fake(tensor)
    has_code = _dispatches_in_python(torch, type(tensor)) and mine("numel")
    if has_code and not is_fake and objects.storage_address(torch, tensor) == 0:
        remark = "its size is that of what it stands for; the memory is within"
        inner = tuple(objects.wrapped_parts(torch, tensor))
        name = f"wrapper ({class_name(tensor)})"
        yield _Kind(name, remark, inner, has_strides=False)
    remark = "no memory: sizes, strides and bytes are those of a real one"
    if is_fake:
        yield _Kind("fake tensor", remark, has_memory=False)
    if mine("device").type == "meta":
        yield _Kind("meta tensor", remark, has_memory=False)
    if mine("numel") and not mine("untyped_storage").nbytes():
        remark = "its storage was resized to 0 bytes, as sharded training does"
        yield _Kind("tensor without storage", remark, has_memory=False)
    if is_truly(tensor, torch.nn.Parameter):
        yield _Kind("parameter")
    yield _Kind(f"tensor ({class_name(tensor)})".removesuffix(" (Tensor)"))


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

    def bytes_of(each: Any) -> tuple[Geometry, int]:
        """Which bytes it reaches, counted from that of its indices 0; and that one."""
        sizes, steps = of(each, "shape"), of(each, "strides")
        whole = Geometry((*sizes, int(of(each, "itemsize"))), (*steps, 1), 0, 1)
        return whole, int(of(each, "__array_interface__")["data"][0])

    root = array
    while is_array(of(root, "base")):
        root = of(root, "base")
    # Its memory reaches from the lowest element of what owns it to the highest.
    (whole, start), (mine, at) = bytes_of(root), bytes_of(array)
    start += whole.first_element or 0
    (*size, itemsize), (*steps, _) = mine.size, mine.stride
    geometry, placed, remarks = None, Placed(mine, at, "cpu"), []
    if backwards := [str(dim) for dim, step in enumerate(steps) if step < 0]:
        remarks.append(
            f"dim {', '.join(backwards)} runs backwards: torch has no negative "
            "strides, torch.from_numpy refuses this array, and torch.flip copies"
        )
    if not itemsize or any(step % itemsize for step in (at - start, *steps)):
        remarks.append("its steps in bytes are no multiples of its itemsize")
    else:
        stride = tuple(step // itemsize for step in steps)
        geometry = Geometry(tuple(size), stride, (at - start) // itemsize, itemsize)
        placed = Placed(geometry, start, "cpu")
    return Reading(
        kind=f"numpy array ({class_name(array)})".removesuffix(" (ndarray)"),
        dtype=str(of(array, "dtype")),
        device="cpu",
        itemsize=itemsize,
        size=tuple(size),
        geometry=geometry,
        start=start if whole.numel else 0,
        address=start,
        placed=(placed,),
        storage_bytes=whole.span_bytes,
        is_view=of(array, "base") is not None,
        remarks=tuple(remarks),
    )
