"""Reads the values themselves: the one look that runs operations, and only if asked.

Every element is read, where it lies and piece by piece, so that the largest of tensors
costs a few megabytes more. What a device finds out is fetched once, at the end.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import replace
from itertools import compress, product
from math import inf, isfinite, prod
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.errors import first_line
from gpumagic.report.introspection import is_array
from gpumagic.tensor_info import objects
from gpumagic.tensor_info.report import HeatMap, ValueSummary

if TYPE_CHECKING:
    from collections.abc import Iterator

    Index = tuple[int, ...]

_PIECE = 1 << 20  # elements
_MOST_ROWS, _MOST_COLUMNS = 10, 16
# What min, max and sums are not made for everywhere, and what is taken in its place.
_WIDER = {
    "bool": "uint8",
    "uint16": "int64",
    "uint32": "int64",
    "uint64": "float64",
    "float16": "float32",
    "bfloat16": "float32",
    "float8": "float32",
}


def summarise(x: Any, *, heat: bool = True) -> tuple[ValueSummary | None, str]:
    """What the elements of a tensor are, or why that cannot be told.

    Without tiles a small tensor is one piece, which is much sooner read.
    """
    try:
        if is_array(x):
            import numpy as np

            array = np.asarray(x)
            if array.dtype.kind not in "biufc":
                return None, f"{array.dtype} holds no numbers"
            return _summary(np, array, array.strides, {}, heat=heat), ""
        torch = sys.modules["torch"]
        with objects.without_overrides(torch), torch.no_grad():
            plain = objects.own(torch, x, "detach")()
            strides = plain.stride() if plain.layout == torch.strided else ()
            where = {"device": plain.device}
            return _summary(torch, plain, strides, where, heat=heat), ""
    except Exception as error:  # noqa: BLE001 - whatever a dtype or a backend raises
        return None, first_line(error).partition(". ")[0]


class _Piece(NamedTuple):
    """Some elements of one tile."""

    tile: tuple[int, int]
    start: Index  # where the first of them is
    values: Any


class _Figures(NamedTuple):
    """What is found of a piece; the places are numbers in its order."""

    total: float
    zeros: float
    lowest: float
    highest: float
    nans: float = 0
    infs: float = 0
    first_nan: float = 0
    first_inf: float = 0


class _Tiles(NamedTuple):
    """Rows by the first dim that moves, columns by the last; all between is in each.

    Two dims of size 1 stand before all others, for what has fewer that move.
    """

    row_dim: int
    column_dim: int
    block: tuple[int, int]  # rows and columns of one tile

    @classmethod
    def of(cls, size: Index) -> _Tiles:
        """Ten rows and sixteen columns of tiles at most."""
        moving = [dim for dim, count in enumerate(size) if count > 1]
        *before, column_dim = moving or [1]
        row_dim = (*before, 0)[0]
        rows, columns = size[row_dim], size[column_dim]
        block = -(-rows // _MOST_ROWS), -(-columns // _MOST_COLUMNS)
        return cls(row_dim, column_dim, block)

    def cut(self, x: Any) -> Iterator[_Piece]:
        """The elements tile by tile, so many at a time."""
        parts = [[(0, 0, slice(None))] for _ in x.shape]
        for dim, block in zip((self.row_dim, self.column_dim), self.block, strict=True):
            starts = range(0, x.shape[dim], block)
            parts[dim] = [
                (number, at, slice(at, at + block)) for number, at in enumerate(starts)
            ]
        for chosen in product(*parts):
            tile = chosen[self.row_dim][0], chosen[self.column_dim][0]
            inside = x[tuple(part for *_, part in chosen)]
            start = tuple(at for _, at, _ in chosen)
            for first, values in _in_pieces(inside, start):
                yield _Piece(tile, first, values)


def _in_pieces(x: Any, start: Index) -> Iterator[tuple[Index, Any]]:
    """The elements so many at a time, each time with the index of the first."""
    if prod(x.shape) <= _PIECE:
        yield start, x
        return
    dim = next(dim for dim, count in enumerate(x.shape) if count > 1)
    half = x.shape[dim] // 2
    for at, part in ((0, slice(half)), (half, slice(half, None))):
        first = (*start[:dim], start[dim] + at, *start[dim + 1 :])
        yield from _in_pieces(x[(*(slice(None),) * dim, part)], first)


def _summary(
    library: Any, x: Any, strides: Index, where: Any, *, heat: bool
) -> ValueSummary:
    """All figures; torch and numpy have the same names for all that it takes."""
    count = prod(x.shape)
    if not count:
        return ValueSummary()
    # Of what `expand` repeats, one is read.
    x = x[(None, None, *(slice(None if step else 1) for step in strides))]
    times = count // prod(x.shape)
    exact = {True: library.float32, False: library.float64}
    where = {**where, "dtype": exact["mps" in str(where.get("device"))]}
    tiles = _Tiles.of(x.shape) if heat else _Tiles(0, 1, (1, 1))
    pieces = [*tiles.cut(x)]
    found = [
        library.stack(
            [library.asarray(n, **where) for n in _figures(library, piece, where)]
        )
        for piece in pieces
    ]
    # What a device knows of them comes back at once.
    figures = [_Figures(*each) for each in library.stack(found).tolist()]
    nans, infs = sum(f.nans for f in figures), sum(f.infs for f in figures)
    pairs = list(zip(pieces, figures, strict=True))
    summary = ValueSummary(
        nan_count=round(nans) * times,
        inf_count=round(infs) * times,
        zero_count=round(sum(f.zeros for f in figures)) * times,
        first_nan=min(
            (_index(p, f.first_nan) for p, f in pairs if f.nans), default=None
        ),
        first_inf=min(
            (_index(p, f.first_inf) for p, f in pairs if f.infs), default=None
        ),
    )
    finite = prod(x.shape) - nans - infs
    if "complex" in str(x.dtype):
        return summary
    if finite:
        summary = replace(
            summary,
            minimum=min(f.lowest for f in figures),
            maximum=max(f.highest for f in figures),
            mean=sum(f.total for f in figures) / finite,
        )
    return replace(summary, heat=_heat(tiles, pairs))


def _figures(library: Any, piece: _Piece, where: Any) -> _Figures:
    """The figures of one piece, as numbers of the device."""
    values = _plain(library, piece.values)
    zeros = (values == 0).sum()
    # On the host a sum tells for sure, and soon, that all are finite.
    is_host = str(where.get("device", "cpu")) == "cpu"
    is_float = "float" in str(values.dtype)
    if not is_float or (is_host and isfinite(float(values.sum()))):
        total = values.sum(dtype=where["dtype"])
        return _Figures(total, zeros, values.min(), values.max())
    nan, infinite = library.isnan(values), library.isinf(values)
    bad = nan | infinite
    return _Figures(
        library.where(bad, 0.0, values).sum(dtype=where["dtype"]),
        zeros,
        library.where(bad, inf, values).min(),
        library.where(bad, -inf, values).max(),
        nan.sum(),
        infinite.sum(),
        library.asarray(nan.reshape(-1), dtype=library.uint8).argmax(),
        library.asarray(infinite.reshape(-1), dtype=library.uint8).argmax(),
    )


def _plain(library: Any, values: Any) -> Any:
    """Values that all operations are made for."""
    name = str(values.dtype).removeprefix("torch.")
    if name.startswith("complex"):
        # On a GPU torch would compile `abs`, which takes a second or fails.
        return library.hypot(values.real, values.imag)
    if wider := _WIDER.get(name.partition("_")[0]):
        return library.asarray(values, dtype=getattr(library, wider))
    return values


def _index(piece: _Piece, number: float) -> Index:
    """The index of a value by its number in a piece, without the two dims before."""
    left, index = round(number), []
    for first, count in zip(piece.start[::-1], piece.values.shape[::-1], strict=True):
        left, at = divmod(left, count)
        index.append(first + at)
    return tuple(reversed(index[:-2]))


def _heat(tiles: _Tiles, pairs: list[tuple[_Piece, _Figures]]) -> HeatMap | None:
    """The mean of what is finite in each tile; nothing of one value."""
    dims = [dim - 2 for dim in (tiles.row_dim, tiles.column_dim) if dim > 1]
    if not dims:
        return None
    by_tile: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0] * 4)
    for piece, found in pairs:
        finite = prod(piece.values.shape) - found.nans - found.infs
        for at, more in enumerate((found.total, finite, found.nans, found.infs)):
            by_tile[piece.tile][at] += more
    rows, columns = (range(last + 1) for last in max(by_tile))
    grid = [[by_tile[row, column] for column in columns] for row in rows]
    return HeatMap(
        tuple(dims),
        tiles.block,
        tuple(tuple(total / n if n else None for total, n, *_ in row) for row in grid),
        tuple(
            tuple(next(compress(("NaN", "inf"), odd), "") for _, _, *odd in row)
            for row in grid
        ),
    )
