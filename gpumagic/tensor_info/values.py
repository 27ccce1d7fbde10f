"""Reads the values themselves: the one look that runs operations, and only if asked.

Every element is read, where it lies and piece by piece, so that the largest of tensors
costs a few megabytes more. What a device finds out is fetched once, at the end.
"""

from __future__ import annotations

from math import inf, isfinite, prod
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.errors import first_line
from gpumagic.report.introspection import is_array
from gpumagic.tensor_info import torch_private
from gpumagic.tensor_info.report import HeatMap, ValueSummary

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PIECE = 1 << 20  # elements
_MOST_ROWS, _MOST_COLUMNS = 10, 16
_NOWHERE = 1 << 53  # behind every index; what a float tells exactly
# What min, max and sums are not made for everywhere, and what is taken in its place.
_WIDER = {
    "bool": "uint8",
    "uint16": "int64",
    "uint32": "int64",
    "uint64": "float64",
    "float16": "float32",
    "bfloat16": "float32",
}


def summarise(x: Any) -> tuple[ValueSummary | None, str]:
    """What the elements of a tensor are, or why that cannot be told."""
    try:
        if is_array(x):
            import numpy as np

            return _Values(np, np.asarray(x), is_host=True).summary(), ""
        torch = torch_private.torch_if_imported()
        with torch_private.without_overrides(torch), torch.no_grad():
            plain = torch_private.own(torch, x, "detach")()
            is_host = plain.device.type == "cpu"
            return _Values(torch, plain, is_host=is_host).summary(), ""
    except Exception as error:  # noqa: BLE001 - whatever a dtype or a backend raises
        return None, first_line(error)


class _Plan(NamedTuple):
    """How the elements are laid out in rows and columns, and these in tiles."""

    dims: tuple[int, ...]  # those that move
    rows: int
    columns: int
    row_block: int
    column_block: int

    @classmethod
    def of(cls, size: Sequence[int]) -> _Plan:
        """Rows along the first dim that moves, columns along all others."""
        dims = tuple(dim for dim, count in enumerate(size) if count != 1)
        rows = size[dims[0]] if len(dims) > 1 else 1
        columns = prod(size[dim] for dim in (dims[1:] if len(dims) > 1 else dims))
        blocks = max(-(-rows // _MOST_ROWS), 1), max(-(-columns // _MOST_COLUMNS), 1)
        return cls(dims, rows, columns, *blocks)

    @property
    def tiles(self) -> tuple[int, int]:
        """How many rows and columns of tiles there are."""
        return -(-self.rows // self.row_block), -(-self.columns // self.column_block)


class _Values:
    """The elements of one tensor; torch and numpy have the same names for all it takes.

    What is found so far are arrays on the device of the tensor.
    """

    def __init__(self, library: Any, x: Any, *, is_host: bool) -> None:
        self._library, self._is_host = library, is_host
        is_torch = library.__name__ == "torch"
        self._where = {"device": x.device} if is_torch else {}
        strides: Sequence[int] = x.strides if not is_torch else ()
        if is_torch and x.layout == library.strided:
            strides = x.stride()
        # Of what `expand` repeats, one is read.
        once = [slice(None if step else 1) for step in strides]
        self._x: Any = x[tuple(once)] if once and prod(x.shape) else x
        self._times = prod(x.shape) // max(prod(self._x.shape), 1)
        self._plan = _Plan.of(self._x.shape)
        self._sums, self._nans, self._infs = (
            self._full(self._plan.tiles, 0.0) for _ in range(3)
        )
        self._minimum, self._maximum = self._full((), inf), self._full((), -inf)
        self._zeros = self._full((), 0.0)
        self._first_nan = self._first_inf = self._full((), float(_NOWHERE))

    def summary(self) -> ValueSummary:
        """All figures; what a device knows of them comes back at once."""
        for row, column, piece in self._pieces():
            self._take(row, column, piece)
        plan, found = self._plan, (self._sums, self._nans, self._infs)
        ends = self._minimum, self._maximum, self._zeros
        pieces = (*ends, self._first_nan, self._first_inf, *found)
        flat = self._library.concatenate([each.reshape(-1) for each in pieces])
        minimum, maximum, zeros, first_nan, first_inf, *rest = flat.tolist()
        count = plan.tiles[0] * plan.tiles[1]
        sums, nans, infs = (rest[at * count : (at + 1) * count] for at in range(3))
        finite = plan.rows * plan.columns - sum(nans) - sum(infs)
        is_complex = "complex" in str(self._x.dtype)
        has_order = finite > 0 and not is_complex
        return ValueSummary(
            minimum=minimum if has_order else None,
            maximum=maximum if has_order else None,
            mean=sum(sums) / finite if has_order else None,
            nan_count=round(sum(nans)) * self._times,
            inf_count=round(sum(infs)) * self._times,
            zero_count=round(zeros) * self._times,
            first_nan=self._index(first_nan),
            first_inf=self._index(first_inf),
            heat=_heat(plan, sums, nans, infs, magnitudes=is_complex),
        )

    def _full(self, size: tuple[int, ...], value: float) -> Any:
        """An array beside the elements, as exact as its device can have it."""
        has_double = "mps" not in str(self._where.get("device"))
        dtype = self._library.float64 if has_double else self._library.float32
        return self._library.full(size, value, dtype=dtype, **self._where)

    def _pieces(self) -> Iterator[tuple[int, int, Any]]:
        """The elements in order: first row, first column, and rows by columns."""
        plan = self._plan
        if not plan.rows or not plan.columns:
            return
        dims = range(len(self._x.shape))
        x = self._x[tuple(slice(None) if dim in plan.dims else 0 for dim in dims)]
        if len(plan.dims) < 2:
            x = x.reshape((1, plan.columns))
        for start in range(0, plan.rows, plan.row_block):
            stop = min(start + plan.row_block, plan.rows)
            step = max(_PIECE // plan.columns, 1)
            for row in range(start, stop, step):
                rows = x[row : min(row + step, stop)]
                if plan.columns <= _PIECE:
                    yield row, 0, rows.reshape((rows.shape[0], plan.columns))
                    continue
                for column, piece in _flat_pieces(rows[0], 0):
                    yield row, column, piece[None]

    def _take(self, row: int, column: int, piece: Any) -> None:
        library, values = self._library, self._plain(piece)
        lowest = highest = values
        is_float = "float" in str(values.dtype)
        # On the host a sum tells for sure, and soon, that all are finite.
        if is_float and not (self._is_host and isfinite(float(values.sum()))):
            nan, odd = library.isnan(values), library.isinf(values)
            self._add(self._nans, row, column, nan)
            self._add(self._infs, row, column, odd)
            start = row * self._plan.columns + column
            self._first_nan = self._earlier(self._first_nan, nan, start)
            self._first_inf = self._earlier(self._first_inf, odd, start)
            bad = nan | odd
            lowest = library.where(bad, inf, values)
            highest = library.where(bad, -inf, values)
            values = library.where(bad, 0.0, values)
            # Not those that were put there just now.
            self._zeros = self._zeros - bad.sum()
        self._zeros = self._zeros + (values == 0).sum()
        self._minimum = library.minimum(self._minimum, self._exact(lowest.min()))
        self._maximum = library.maximum(self._maximum, self._exact(highest.max()))
        self._add(self._sums, row, column, values)

    def _plain(self, piece: Any) -> Any:
        """Values that all operations are made for."""
        library, name = self._library, str(piece.dtype).removeprefix("torch.")
        if name.startswith("complex"):
            # On a GPU torch would compile `abs`, which takes a second or fails.
            return library.hypot(piece.real, piece.imag)
        wider = "float32" if name.startswith("float8") else _WIDER.get(name)
        if wider is None:
            return piece
        return library.asarray(piece, dtype=getattr(library, wider))

    def _exact(self, number: Any) -> Any:
        return self._library.asarray(number, dtype=self._sums.dtype)

    def _add(self, totals: Any, row: int, start: int, values: Any) -> None:
        """Add up the columns of a piece by their tiles."""
        vector, block = values.sum(0, dtype=totals.dtype), self._plan.column_block
        tiles = totals[row // self._plan.row_block]
        head = min(-start % block, len(vector))
        body = head + (len(vector) - head) // block * block
        first = start // block
        if head:
            tiles[first] += vector[:head].sum()
            first += 1
        if body > head:
            last = first + (body - head) // block
            tiles[first:last] += vector[head:body].reshape((-1, block)).sum(1)
            first = last
        if body < len(vector):
            tiles[first] += vector[body:].sum()

    def _earlier(self, known: Any, mask: Any, start: int) -> Any:
        """Where the first element of a mask lies, if not before."""
        library, flat = self._library, mask.reshape(-1)
        at = library.asarray(flat, dtype=library.uint8).argmax() + start
        here = library.where(flat.any(), self._exact(at), float(_NOWHERE))
        return library.minimum(known, here)

    def _index(self, place: float) -> tuple[int, ...] | None:
        if place >= _NOWHERE:
            return None
        left, index = round(place), []
        for count in reversed(self._x.shape):
            left, at = divmod(left, count)
            index.append(at)
        return tuple(reversed(index))


def _flat_pieces(x: Any, start: int) -> Iterator[tuple[int, Any]]:
    """The elements in order, so many at a time, each piece with where it begins."""
    inner = prod(x.shape[1:])
    if inner > _PIECE:
        for number in range(x.shape[0]):
            yield from _flat_pieces(x[number], start + number * inner)
        return
    step = max(_PIECE // max(inner, 1), 1)
    for first in range(0, x.shape[0], step):
        yield start + first * inner, x[first : first + step].reshape(-1)


def _heat(
    plan: _Plan,
    sums: list[float],
    nans: list[float],
    infs: list[float],
    *,
    magnitudes: bool,
) -> HeatMap | None:
    if not plan.dims or not plan.rows * plan.columns:
        return None
    rows, columns = plan.tiles
    means: list[tuple[float | None, ...]] = []
    marks: list[tuple[str, ...]] = []
    for row in range(rows):
        height = min(plan.row_block, plan.rows - row * plan.row_block)
        places = range(row * columns, (row + 1) * columns)
        line: list[float | None] = []
        for number, at in enumerate(places):
            wide = min(plan.column_block, plan.columns - number * plan.column_block)
            finite = height * wide - nans[at] - infs[at]
            line.append(sums[at] / finite if finite else None)
        means.append(tuple(line))
        marks.append(
            tuple("nan" if nans[at] else "inf" if infs[at] else "" for at in places)
        )
    several = len(plan.dims) > 1
    return HeatMap(
        row_dims=plan.dims[:1] if several else (),
        column_dims=plan.dims[1:] if several else plan.dims,
        size=(plan.rows, plan.columns),
        block=(plan.row_block, plan.column_block),
        means=tuple(means),
        marks=tuple(marks),
        magnitudes=magnitudes,
    )
