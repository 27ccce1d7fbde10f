"""Which places of a storage a tensor touches, and which two tensors both do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.tensor_info.meetings import meetings, surely_meet
from gpumagic.tensor_info.walks import (
    MOST_BITS,
    Walks,
    as_a_set,
    distinct,
    in_units,
    indices,
    places_as_bits,
    reach,
    split_at,
    walks_of,
)

if TYPE_CHECKING:
    from gpumagic.tensor_info.geometry import Geometry

_Sizes = tuple[int | None, int | None]


@dataclass(frozen=True)
class Shared:
    """What two tensors have in common, in the words of the report on a pair."""

    elements_overlap: str  # "yes", "no", "not decided"
    shared_bytes: int | None
    relation: str


class _Places(NamedTuple):
    """The places from `low` that the walks lead to."""

    low: int
    walks: Walks

    @property
    def high(self) -> int:
        return self.low + reach(self.walks)

    def covers(self, other: _Places) -> bool:
        """Whether these places have no gaps and all of the other's are among them."""
        no_gaps = not self.walks or self.walks[0] == (1, reach(self.walks) + 1)
        return no_gaps and self.low <= other.low and other.high <= self.high

    def split_like(self, other: _Places) -> _Places:
        """The same places, with rows as the other has them."""
        steps = [walk.step for walk in other.walks]
        return self._replace(walks=split_at(self.walks, steps))

    def bits(self, low: int) -> int | None:
        """A number with a bit for each place from `low` on; None if too long."""
        if self.high - low >= MOST_BITS:
            return None
        bits = places_as_bits(self.walks, 1)
        return None if bits is None else bits << (self.low - low)


def distinct_elements(g: Geometry) -> int | None:
    """How many elements of the storage are reached; None where it is not decided."""
    if not g.numel:
        return 0
    return distinct(walks_of(g))


def holes_in_span(g: Geometry) -> int | None:
    """The elements between the first and the last that no index reaches."""
    count = distinct_elements(g)
    return None if count is None else g.span_elements - count


def shared(first: Geometry, second: Geometry, distance_bytes: int) -> Shared:
    """What two tensors in one address space have in common.

    Args:
        first: One tensor.

        second: The other.

        distance_bytes: From the start of the first's storage to that of the
            second's; 0 if it is the same storage.

    Returns:
        The verdict and the bytes that elements of both lie in. The relation is
        that of the first to the second: it "contains" or is "contained", they are
        "identical", "partial", "interleaved" (nothing in common although their
        spans intersect), "disjoint" or "unknown". An empty tensor is disjoint.
    """
    if not first.numel or not second.numel:
        return Shared("no", 0, "disjoint")
    unit = math.gcd(first.itemsize, second.itemsize, distance_bytes)
    one = _places(first, 0, unit)
    other = _places(second, distance_bytes, unit)
    if one.high < other.low or other.high < one.low:
        return Shared("no", 0, "disjoint")
    return _compared(one, other, unit)


def _places(g: Geometry, distance_bytes: int, unit: int) -> _Places:
    low_element = g.first_element or 0
    walks = in_units(walks_of(g), g.itemsize // unit)
    low = (low_element * g.itemsize + distance_bytes) // unit
    return _Places(low, as_a_set(walks))


def _compared(one: _Places, other: _Places, unit: int) -> Shared:
    sizes = distinct(one.walks), distinct(other.walks)
    if one == other:
        size_bytes = None if sizes[0] is None else sizes[0] * unit
        return Shared("yes", size_bytes, "identical")
    if one.covers(other) or other.covers(one):
        smaller = sizes[1] if one.covers(other) else sizes[0]
        return _found(1, smaller, sizes, unit)
    one, other = one.split_like(other), other.split_like(one)
    ways = one.walks, other.walks, other.low - one.low
    met = meetings(*ways)
    each_once = sizes == (indices(one.walks), indices(other.walks))
    if met == 0 or (met and each_once):
        return _found(met, met, sizes, unit)
    common = _common_by_bits(one, other)
    if met is None and common is None and surely_meet(*ways):
        met = 1
    return _found(met if common is None else common, common, sizes, unit)


def _common_by_bits(one: _Places, other: _Places) -> int | None:
    """How many places both reach; None where there are too many to look at."""
    low = min(one.low, other.low)
    bits, other_bits = one.bits(low), other.bits(low)
    if bits is None or other_bits is None:
        return None
    return (bits & other_bits).bit_count()


def _found(meet: int | None, common: int | None, sizes: _Sizes, unit: int) -> Shared:
    """The verdict, if it is known whether they meet and perhaps in how many places."""
    if meet is None:
        return Shared("not decided", None, "unknown")
    if not meet:
        return Shared("no", 0, "interleaved")
    if common is None:
        return Shared("yes", None, "unknown")
    return Shared("yes", common * unit, _relation(common, sizes))


def _relation(common: int, sizes: _Sizes) -> str:
    if None in sizes:
        return "unknown"
    whole = common == sizes[0], common == sizes[1]
    return {
        (True, True): "identical",
        (False, True): "contains",
        (True, False): "contained",
        (False, False): "partial",
    }[whole]
