"""How many bytes of one memory several tensors reach together."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.tensor_info.walks import (
    MOST_BITS,
    Walks,
    as_a_set,
    distinct,
    in_units,
    places_as_bits,
    reach,
    walks_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpumagic.tensor_info.geometry import Geometry


class Placed(NamedTuple):
    """A tensor in memory: its geometry, and where its storage starts there."""

    geometry: Geometry
    start_bytes: int


class _Places(NamedTuple):
    """What one tensor reaches, from `low` up to and with `high`, in common units."""

    low: int
    walks: Walks

    @property
    def high(self) -> int:
        return self.low + reach(self.walks)

    @property
    def without_gaps(self) -> bool:
        return not self.walks or (len(self.walks) == 1 and self.walks[0].step == 1)


def covered_bytes(tensors: Iterable[Placed]) -> int | None:
    """The bytes that at least one tensor reaches; None where telling takes too long."""
    placed = [each for each in tensors if each.geometry.numel]
    unit = math.gcd(*(math.gcd(g.itemsize, start) for g, start in placed)) or 1
    each = {_places(*some, unit) for some in placed}
    solid = _merged((some.low, some.high + 1) for some in each if some.without_gaps)
    gapped = [
        some
        for some in each
        if not some.without_gaps and not _within(solid, some.low, some.high)
    ]
    count = _counted(solid, gapped)
    return None if count is None else count * unit


def byte_range(g: Geometry, start_bytes: int) -> tuple[int, int]:
    """The first byte that a tensor reaches, and the first behind its last."""
    if not g.numel:
        return start_bytes, start_bytes
    low = (g.first_element or 0) * g.itemsize + start_bytes
    return low, low + g.span_bytes


def _places(g: Geometry, start_bytes: int, unit: int) -> _Places:
    low_bytes, _ = byte_range(g, start_bytes)
    return _Places(
        low_bytes // unit, as_a_set(in_units(walks_of(g), g.itemsize // unit))
    )


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _within(ranges: list[tuple[int, int]], low: int, high: int) -> bool:
    return any(start <= low and high < end for start, end in ranges)


def _counted(solid: list[tuple[int, int]], gapped: list[_Places]) -> int | None:
    whole = sum(end - start for start, end in solid)
    if not gapped:
        return whole
    first = gapped[0]
    alone = not any(start <= first.high and first.low < end for start, end in solid)
    if len(gapped) == 1 and alone:
        count = distinct(first.walks)
        return None if count is None else whole + count
    return _marked(solid, gapped)


def _marked(solid: list[tuple[int, int]], gapped: list[_Places]) -> int | None:
    """One bit for each place, set where anything reaches it."""
    low = min([start for start, _ in solid] + [some.low for some in gapped])
    high = max([end for _, end in solid] + [some.high + 1 for some in gapped])
    if high - low > MOST_BITS:
        return None
    marks = 0
    for start, end in solid:
        marks |= ((1 << end - start) - 1) << start - low
    for some in gapped:
        bits = places_as_bits(some.walks, 1)
        if bits is None:
            return None
        marks |= bits << some.low - low
    return marks.bit_count()
