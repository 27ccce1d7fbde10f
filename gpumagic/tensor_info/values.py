"""Reads the values themselves: the one look that runs operations, and only if asked.

Every element is read, where it lies and piece by piece, so that the largest of tensors
costs a few megabytes more. What a device finds out is fetched once, at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite, prod
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.errors import first_line
from gpumagic.report.introspection import is_array, is_truly
from gpumagic.tensor_info import torch_private
from gpumagic.tensor_info.report import HeatMap, ValueSummary

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

_PIECE = 1 << 20  # elements
_SHOWN_AT_MOST = 6
_MOST_ROWS, _MOST_COLUMNS = 12, 32
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


def summarise(x: Any) -> tuple[ValueSummary | None, tuple[str, ...]]:
    """What the elements of a tensor are, or why that cannot be told."""
    try:
        with _Values(x) as values:
            summary = values.summary()
    except Exception as error:  # noqa: BLE001 - whatever a dtype or a backend raises
        return None, (f"the values cannot be read: {first_line(error)}",)
    return summary, ()


def not_finite(x: Any) -> tuple[int | None, int | None, str]:
    """How many NaNs and infinities a tensor has, or why that cannot be told."""
    try:
        with _Values(x) as values:
            nans, infinities = values.not_finite()
    except Exception as error:  # noqa: BLE001 - whatever a dtype or a backend raises
        return None, None, first_line(error)
    return nans, infinities, ""


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


@dataclass
class _Found:
    """What was found so far; arrays on the device of the tensor."""

    sums: Any  # by tile
    nans: Any
    highs: Any
    lows: Any
    minimum: Any
    maximum: Any
    zeros: Any
    first_nan: Any
    first_inf: Any


class _Values:
    """The elements of one tensor; torch and numpy have the same names for all it takes.

    No graph is kept of what is done to them.
    """

    def __init__(self, x: Any) -> None:
        self._guard: Any = None
        if is_array(x):
            import numpy as np

            self._library: Any = np
            x = np.asarray(x)
            self._hold(x, x.strides)
            self._is_host = True
            return
        torch = torch_private.torch_if_imported()
        self._library = torch
        x = x if is_truly(x, torch.Tensor) else torch.from_dlpack(x)
        self._hold(x.detach(), x.stride() if x.layout == torch.strided else ())
        self._is_host = x.device.type == "cpu"
        self._guard = torch.no_grad()

    def _hold(self, x: Any, strides: Sequence[int]) -> None:
        """Keep what is to be read: of what `expand` repeats, one."""
        once = [slice(None if step else 1) for step in strides]
        self._whole: Any = x
        self._x: Any = x[tuple(once)] if once and prod(x.shape) else x
        self._times = prod(x.shape) // max(prod(self._x.shape), 1)

    def __enter__(self) -> Self:
        if self._guard is not None:
            self._guard.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._guard is not None:
            self._guard.__exit__(*error)

    def not_finite(self) -> tuple[int, int]:
        """How many NaNs and infinities there are."""
        library, plan = self._library, _Plan.of(self._x.shape)
        nans, infinities = self._full((), 0), self._full((), 0)
        for _, _, piece in self._pieces(plan):
            values = self._plain(piece)
            if not self._may_be_odd(values):
                continue
            nans = nans + library.isnan(values).sum()
            infinities = infinities + library.isinf(values).sum()
        return int(nans) * self._times, int(infinities) * self._times

    def summary(self) -> ValueSummary:
        """All figures; what a device knows of them comes back at once."""
        plan = _Plan.of(self._x.shape)
        found = self._nothing(plan)
        for row, column, piece in self._pieces(plan):
            self._take(found, plan, row, column, piece)
        return self._told(plan, found)

    def _nothing(self, plan: _Plan) -> _Found:
        full, tiles = self._full, plan.tiles
        return _Found(
            sums=full(tiles, 0.0),
            nans=full(tiles, 0.0),
            highs=full(tiles, 0.0),
            lows=full(tiles, 0.0),
            minimum=full((), inf),
            maximum=full((), -inf),
            zeros=full((), 0.0),
            first_nan=full((), float(_NOWHERE)),
            first_inf=full((), float(_NOWHERE)),
        )

    def _full(self, size: tuple[int, ...], value: float) -> Any:
        """An array beside the elements, as exact as its device can have it."""
        library = self._library
        if not hasattr(self._x, "device") or library.__name__ == "numpy":
            return library.full(size, value, dtype=library.float64)
        has_double = self._x.device.type != "mps"
        dtype = library.float64 if has_double else library.float32
        return library.full(size, value, dtype=dtype, device=self._x.device)

    def _pieces(self, plan: _Plan) -> Iterator[tuple[int, int, Any]]:
        """The elements in order: first row, first column, and rows by columns."""
        if not plan.rows or not plan.columns:
            return
        x = self._x.reshape(()) if not plan.dims else self._moving(plan)
        if len(plan.dims) < 2:
            x = x.reshape((1,)) if not plan.dims else x
            x = x[None]
        if plan.columns > _PIECE:
            for row in range(plan.rows):
                for column, piece in _flat_pieces(x[row], 0):
                    yield row, column, piece[None]
            return
        for start in range(0, plan.rows, plan.row_block):
            stop = min(start + plan.row_block, plan.rows)
            step = max(_PIECE // plan.columns, 1)
            for row in range(start, stop, step):
                rows = x[row : min(row + step, stop)]
                yield row, 0, rows.reshape((rows.shape[0], plan.columns))

    def _moving(self, plan: _Plan) -> Any:
        """The same elements without the dims of size 1; a view."""
        dims = range(len(self._x.shape))
        return self._x[tuple(slice(None) if dim in plan.dims else 0 for dim in dims)]

    def _plain(self, piece: Any) -> Any:
        """Values that all operations are made for."""
        library = self._library
        name = str(piece.dtype).removeprefix("torch.")
        if name.startswith("complex"):
            # On a GPU torch would compile `abs`, which takes a second or fails.
            return library.hypot(piece.real, piece.imag)
        wider = "float32" if name.startswith("float8") else _WIDER.get(name)
        if wider is None:
            return piece
        return library.asarray(piece, dtype=getattr(library, wider))

    def _may_be_odd(self, values: Any) -> bool:
        """False where a sum tells for sure, without a wait, that all are finite."""
        if not _is_floating(values):
            return False
        return not self._is_host or not isfinite(float(values.sum()))

    def _take(
        self, found: _Found, plan: _Plan, row: int, column: int, piece: Any
    ) -> None:
        library, values = self._library, self._plain(piece)
        tile_row = row // plan.row_block
        lowest = highest = values
        if self._may_be_odd(values):
            nan, odd = library.isnan(values), library.isinf(values)
            high, low = odd & (values > 0), odd & (values < 0)
            for totals, mask in (
                (found.nans, nan),
                (found.highs, high),
                (found.lows, low),
            ):
                self._add(totals, plan, tile_row, column, mask)
            start = row * plan.columns + column
            found.first_nan = self._earlier(found.first_nan, nan, start)
            found.first_inf = self._earlier(found.first_inf, odd, start)
            bad = nan | odd
            lowest = library.where(bad, inf, values)
            highest = library.where(bad, -inf, values)
            values = library.where(bad, 0.0, values)
            # Not those that were put there just now.
            found.zeros = found.zeros - bad.sum()
        found.zeros = found.zeros + (values == 0).sum()
        found.minimum = library.minimum(found.minimum, self._double(lowest.min()))
        found.maximum = library.maximum(found.maximum, self._double(highest.max()))
        self._add(found.sums, plan, tile_row, column, values)

    def _add(
        self, totals: Any, plan: _Plan, tile_row: int, column: int, values: Any
    ) -> None:
        """Add up the columns of a piece by their tiles."""
        binned = _binned(
            self._library,
            values.sum(0, dtype=totals.dtype),
            column,
            plan.column_block,
        )
        first = column // plan.column_block
        totals[tile_row, first : first + len(binned)] += binned

    def _earlier(self, known: Any, mask: Any, start: int) -> Any:
        """Where the first element of a mask lies, if not before."""
        library = self._library
        flat = mask.reshape(-1)
        at = library.asarray(flat, dtype=library.uint8).argmax() + start
        here = library.where(flat.any(), self._double(at), float(_NOWHERE))
        return library.minimum(known, here)

    def _double(self, number: Any) -> Any:
        return self._library.asarray(number, dtype=self._full((), 0.0).dtype)

    def _told(self, plan: _Plan, found: _Found) -> ValueSummary:
        library = self._library
        scalars = (found.minimum, found.maximum, found.zeros)
        where = (found.first_nan, found.first_inf)
        tiles = (found.sums, found.nans, found.highs, found.lows)
        pieces = [each.reshape(-1) for each in (*scalars, *where, *tiles)]
        told = library.concatenate(pieces).tolist()  # the one wait
        minimum, maximum, zeros, first_nan, first_inf, *rest = told
        count = plan.tiles[0] * plan.tiles[1]
        sums, nans, highs, lows = (
            rest[at * count : (at + 1) * count] for at in range(4)
        )
        odd = sum(nans) + sum(highs) + sum(lows)
        whole = plan.rows * plan.columns
        is_complex = "complex" in str(self._x.dtype)
        has_order = whole > odd and not is_complex
        return ValueSummary(
            minimum=minimum if has_order else None,
            maximum=maximum if has_order else None,
            mean=sum(sums) / (whole - odd) if has_order else None,
            nan_count=round(sum(nans)) * self._times,
            inf_count=round(sum(highs) + sum(lows)) * self._times,
            zero_count=round(zeros) * self._times,
            first=self._first(),
            negative_inf_count=round(sum(lows)) * self._times,
            first_nan=self._index(first_nan),
            first_inf=self._index(first_inf),
            heat=_heat(plan, sums, (nans, highs, lows), magnitudes=is_complex),
        )

    def _first(self) -> tuple[str, ...]:
        """The beginning of the first row."""
        size = self._whole.shape
        if not len(size):
            return (_text(self._whole.tolist()),)
        at = (*(slice(1) for _ in size[:-1]), slice(_SHOWN_AT_MOST))
        return tuple(_text(value) for value in self._whole[at].reshape(-1).tolist())

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


def _binned(library: Any, vector: Any, start: int, block: int) -> Any:
    """Sums by block, where the vector begins at some place of the first."""
    head = min(-start % block, len(vector))
    full = (len(vector) - head) // block
    body = head + full * block
    sums = [vector[:head].sum().reshape(1)] if head else []
    if full:
        sums.append(vector[head:body].reshape((full, block)).sum(1))
    if body < len(vector):
        sums.append(vector[body:].sum().reshape(1))
    return library.concatenate(sums)


def _is_floating(values: Any) -> bool:
    return "float" in str(values.dtype)


def _heat(
    plan: _Plan,
    sums: list[float],
    odd: tuple[list[float], list[float], list[float]],
    *,
    magnitudes: bool,
) -> HeatMap | None:
    if not plan.dims or not plan.rows * plan.columns:
        return None
    rows, columns = plan.tiles
    means: list[tuple[float | None, ...]] = []
    marks: list[tuple[str, ...]] = []
    for row in range(rows):
        at = range(row * columns, (row + 1) * columns)
        height = min(plan.row_block, plan.rows - row * plan.row_block)
        finite = [
            height * min(plan.column_block, plan.columns - number * plan.column_block)
            - sum(counts[place] for counts in odd)
            for number, place in enumerate(at)
        ]
        means.append(
            tuple(
                sums[place] / count if count else None
                for place, count in zip(at, finite, strict=True)
            )
        )
        marks.append(tuple(_mark(*(counts[place] for counts in odd)) for place in at))
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


def _mark(nans: float, highs: float, lows: float) -> str:
    """The worst that a block has."""
    return "nan" if nans else "inf" if highs else "-inf" if lows else ""


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
