"""Where the elements of a tensor lie: sizes, strides and an offset, no memory."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Geometry:
    """Sizes, strides and offset in elements, and the bytes of one element.

    Strides may be negative, as NumPy's are. Every figure is a closed form: what
    it costs depends on the number of dims, never on the number of elements.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int  # of the element whose indices are all 0
    itemsize: int  # in bytes

    def __post_init__(self) -> None:
        if len(self.size) != len(self.stride):
            raise ValueError(f"{len(self.size)} sizes, {len(self.stride)} strides")

    @property
    def ndim(self) -> int:
        """How many dims there are."""
        return len(self.size)

    @property
    def numel(self) -> int:
        """How many elements can be indexed."""
        return math.prod(self.size)

    @property
    def walked_dims(self) -> tuple[int, ...]:
        """The dims that have more than one index: the others take no step."""
        return tuple(dim for dim, count in enumerate(self.size) if count != 1)

    @property
    def first_element(self) -> int | None:
        """The lowest place in the storage; None if there is no element."""
        return self.offset + self._reach(-1) if self.numel else None

    @property
    def last_element(self) -> int | None:
        """The highest place in the storage; None if there is no element."""
        return self.offset + self._reach(+1) if self.numel else None

    @property
    def span_elements(self) -> int:
        """The places from the lowest to the highest, both counted."""
        return self._reach(+1) - self._reach(-1) + 1 if self.numel else 0

    @property
    def span_bytes(self) -> int:
        """The bytes from the first of the lowest element to the last of the highest."""
        return self.span_elements * self.itemsize

    @property
    def logical_bytes(self) -> int:
        """The bytes that a copy with nothing shared would take."""
        return self.numel * self.itemsize

    @property
    def stride_bytes(self) -> tuple[int, ...]:
        """The strides in bytes."""
        return tuple(step * self.itemsize for step in self.stride)

    def place(self, index: tuple[int, ...]) -> int:
        """Where the element with these indices lies in the storage, in elements."""
        pairs = zip(index, self.stride, strict=True)
        return self.offset + sum(each * step for each, step in pairs)

    def permuted(self, dims: tuple[int, ...]) -> Geometry:
        """The same elements with the dims in another order."""
        return Geometry(
            tuple(self.size[dim] for dim in dims),
            tuple(self.stride[dim] for dim in dims),
            self.offset,
            self.itemsize,
        )

    def _reach(self, sign: int) -> int:
        pairs = zip(self.size, self.stride, strict=True)
        return sum((count - 1) * step for count, step in pairs if step * sign > 0)


def fresh_strides(size: tuple[int, ...]) -> tuple[int, ...]:
    """The strides that a new row-major tensor of this size has."""
    steps = [1] * len(size)
    for dim in range(len(size) - 2, -1, -1):
        steps[dim] = steps[dim + 1] * max(size[dim + 1], 1)
    return tuple(steps)
