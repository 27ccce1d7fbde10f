"""Reads a tensor without an operation on it: each look-up guarded by itself.

What it has said of itself are plain numbers, which keep nothing alive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from gpumagic.errors import first_line
from gpumagic.tensor_info import kinds, torch_private
from gpumagic.tensor_info.geometry import Geometry

if TYPE_CHECKING:
    from collections.abc import Callable

Answer = TypeVar("Answer")
_PACKED = {
    "float4_e2m1fn_x2": 2,
    "bits4x2": 2,
    "quint4x2": 2,
    "bits2x4": 4,
    "quint2x4": 4,
    "bits1x8": 8,
}


@dataclass(frozen=True)
class Memory:
    """The memory that elements lie in: one storage, or what an array owns."""

    device: str  # where it lies
    start: int  # the address that tells it apart from other memory of its device
    size_bytes: int  # its extent
    # the same start as the user's kernels see it: made up on a simulated GPU. None
    # where it is not known.
    address: int | None
    # the tensors known to hold the storage through this object
    holders: frozenset[int] = frozenset()
    # how many hold it altogether. None if torch does not tell.
    all_holders: int | None = None


@dataclass(frozen=True)
class Reading:
    """One object, read once."""

    kind: str
    dtype: str | None = None
    device: str | None = None
    itemsize: int | None = None
    size: tuple[int, ...] | None = None
    stride: tuple[int, ...] | None = None
    stride_bytes: tuple[int, ...] | None = None
    storage_offset: int | None = None
    geometry: Geometry | None = None  # which elements of the memory it reaches
    # whether the geometry is in elements, as the object walks them. An array that
    # takes odd steps has one in bytes, with a dim more.
    has_layout: bool = False
    memory: Memory | None = None
    # tells storages of torch apart, with memory or without; two of them may share
    # memory. None if it is no storage of torch.
    storage: int | None = None
    storage_bytes: int | None = None
    is_view: bool | None = None
    base_shape: tuple[int, ...] | None = None
    neg_bit: bool | None = None
    conj_bit: bool | None = None
    requires_grad: bool | None = None
    on_accelerator: bool = False
    simulated: bool = False
    inner: tuple[tuple[str, Reading], ...] = ()
    remarks: tuple[str, ...] = ()


class Questions:
    """Asks one thing at a time: what cannot be answered costs one remark."""

    def __init__(self) -> None:
        self.remarks: list[str] = []

    def ask(self, what: str, question: Callable[[], Answer]) -> Answer | None:
        """The answer, or None and a remark that says why there is none."""
        try:
            return question()
        except Exception as error:  # noqa: BLE001 - whatever a backend raises
            self.remarks.append(f"{what} is not known: {first_line(error)}")
            return None

    def numbers(self, what: str, question: Callable[[], Any]) -> tuple[int, ...] | None:
        """A size or the like; None where it has symbols, which must not be fixed."""
        found = self.ask(what, question)
        if found is None or all(type(each) is int for each in found):
            return None if found is None else tuple(found)
        symbols = ", ".join(map(str, found))
        self.remarks.append(f"{what} has symbols: ({symbols})")
        return None


def geometry_of(
    size: tuple[int, ...] | None,
    stride: tuple[int, ...] | None,
    offset: int | None,
    itemsize: int | None,
) -> Geometry | None:
    """The geometry, where all that it takes is known."""
    if size is None or stride is None or offset is None or itemsize is None:
        return None
    return Geometry(size, stride, offset, itemsize)


def in_bytes(
    stride: tuple[int, ...] | None, itemsize: int | None
) -> tuple[int, ...] | None:
    """Strides in elements as strides in bytes."""
    if stride is None or itemsize is None:
        return None
    return tuple(each * itemsize for each in stride)


def read_tensor(torch: Any, tensor: Any) -> Reading:
    """Read a tensor without an operation on it, whatever kind it is."""
    with torch_private.without_overrides(torch):
        return _TensorReader(torch, tensor).read()


class _TensorReader:
    """Puts the questions to one tensor."""

    def __init__(self, torch: Any, tensor: Any) -> None:
        self._torch, self._tensor = torch, tensor
        self._questions = Questions()
        self._ask = self._questions.ask

    def read(self) -> Reading:
        """Everything, each look-up for itself."""
        tensor, plain, ask = self._tensor, self._torch.Tensor, self._ask
        kind = kinds.kind_of(self._torch, tensor)
        dtype = ask("the dtype", lambda: str(tensor.dtype).removeprefix("torch."))
        device = ask("the device", lambda: tensor.device)
        itemsize = ask("the itemsize", lambda: int(tensor.element_size()))
        size, stride, offset = self._steps(kind)
        geometry = geometry_of(size, stride, offset, itemsize)
        storage = self._storage(kind)
        simulated, made_up = torch_private.simulated_memory(storage)
        memory = None
        if kind.has_memory and storage is not None:
            memory = self._memory(storage, made_up=made_up if simulated else -1)
        return Reading(
            kind=kind.name,
            dtype=dtype,
            device=None if device is None else str(device),
            itemsize=itemsize,
            size=size,
            stride=stride,
            stride_bytes=in_bytes(stride, itemsize),
            storage_offset=offset,
            geometry=geometry if kind.has_geometry else None,
            has_layout=kind.has_geometry and geometry is not None,
            memory=memory,
            storage=torch_private.identity(storage),
            storage_bytes=None if storage is None else int(storage.nbytes()),
            is_view=ask("is_view", lambda: torch_private.is_view(self._torch, tensor)),
            base_shape=ask("the base's shape", self._base_shape),
            neg_bit=ask("the negative bit", lambda: bool(plain.is_neg(tensor))),
            conj_bit=ask("the conjugate bit", lambda: bool(plain.is_conj(tensor))),
            requires_grad=ask("requires_grad", lambda: bool(tensor.requires_grad)),
            on_accelerator=getattr(device, "type", "cpu") not in ("cpu", "meta"),
            simulated=simulated,
            inner=tuple(
                (name, read_tensor(self._torch, part)) for name, part in kind.inner
            ),
            remarks=self._remarks(kind, dtype),
        )

    def _steps(
        self, kind: kinds.Kind
    ) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None, int | None]:
        """Size, stride and offset, as far as this kind has them."""
        numbers, tensor = self._questions.numbers, self._tensor
        plain = self._torch.Tensor
        size = stride = offset = None
        if kind.has_size:
            size = numbers("size", lambda: plain.size(tensor))
        if kind.has_strides:
            stride = numbers("stride", lambda: plain.stride(tensor))
        if kind.has_geometry:
            offset = numbers("storage offset", lambda: (tensor.storage_offset(),))
        return size, stride, None if offset is None else offset[0]

    def _storage(self, kind: kinds.Kind) -> Any:
        if not kind.has_storage:
            return None
        return self._ask(
            "the storage", lambda: self._torch.Tensor.untyped_storage(self._tensor)
        )

    def _memory(self, storage: Any, *, made_up: int | None) -> Memory | None:
        """The memory behind a storage; `made_up` is its simulated address or -1."""
        start = self._ask(
            "the address",
            lambda: torch_private.storage_address(self._torch, self._tensor),
        )
        size_bytes = int(storage.nbytes())
        if not start or not size_bytes:  # all that is empty has the address 0
            return None
        return Memory(
            device=str(self._tensor.device),
            start=start,
            size_bytes=size_bytes,
            address=start if made_up == -1 else made_up,
            holders=self._holders(),
            all_holders=torch_private.storage_holders(self._torch, storage),
        )

    def _holders(self) -> frozenset[int]:
        own = torch_private.identity(self._tensor)
        base = torch_private.identity(torch_private.base_of(self._tensor))
        return frozenset(each for each in (own, base) if each is not None)

    def _base_shape(self) -> tuple[int, ...] | None:
        base = torch_private.base_of(self._tensor)
        return None if base is None else tuple(map(int, base.size()))

    def _is_lazy_copy(self) -> bool | None:
        return torch_private.is_lazy_copy(self._torch, self._tensor)

    def _remarks(self, kind: kinds.Kind, dtype: str | None) -> tuple[str, ...]:
        found = [kind.remark, _packed_remark(dtype or "")]
        if kind.has_memory:
            if self._ask("laziness", self._is_lazy_copy):
                found.append(
                    "a lazy copy: its memory is shared until one of the two is written"
                )
            found.extend(torch_private.missing_words(self._torch))
        return tuple(filter(None, found + self._questions.remarks))


def _packed_remark(dtype: str) -> str:
    """What one element of a dtype of fewer than eight bits is; empty for others."""
    word = dtype.removeprefix("torch.")
    if word in _PACKED:
        return (
            f"{word}: one element is a byte that packs {_PACKED[word]} values; sizes "
            f"and strides count bytes"
        )
    small = word.removeprefix("u").removeprefix("int")
    if small.isdigit() and int(small) < 8 and "int" in word:
        return f"{word}: torch keeps each value of {small} bits in a byte of its own"
    return ""
