"""What a live object has said of itself: plain numbers, which keep nothing alive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from gpumagic.tensor_info.geometry import Geometry

if TYPE_CHECKING:
    from collections.abc import Callable

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Memory:
    """The memory that elements lie in: one storage, or what an array owns.

    Attributes:
        device: Where it lies.

        start: The address that tells it apart from other memory of its device.

        size_bytes: Its extent.

        address: The same start as the user's kernels see it: made up on a simulated
            GPU. None where it is not known.

        holders: The tensors known to hold the storage through this object.

        all_holders: How many hold it altogether. None if torch does not tell.
    """

    device: str
    start: int
    size_bytes: int
    address: int | None
    holders: frozenset[int] = frozenset()
    all_holders: int | None = None


@dataclass(frozen=True)
class Reading:
    """One object, read once.

    Attributes:
        geometry: Which elements of the memory it reaches.

        has_layout: Whether the geometry is in elements, as the object walks them. An
            array that takes odd steps has one in bytes, with a dim more.

        storage: Tells storages of torch apart, with memory or without; two of them
            may share memory. None if it is no storage of torch.
    """

    kind: str
    dtype: str | None = None
    device: str | None = None
    itemsize: int | None = None
    size: tuple[int, ...] | None = None
    stride: tuple[int, ...] | None = None
    stride_bytes: tuple[int, ...] | None = None
    storage_offset: int | None = None
    geometry: Geometry | None = None
    has_layout: bool = False
    memory: Memory | None = None
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
            first_line = str(error).strip().partition("\n")[0]
            self.remarks.append(f"{what} is not known: {first_line}")
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
