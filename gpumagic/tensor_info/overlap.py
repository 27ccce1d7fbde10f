"""Says whether one tensor overlaps itself, what two share, and what several cover."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.tensor_info.offsets import (
    MOST_BITS,
    Walk,
    Walks,
    as_a_set,
    distinct,
    divisor,
    in_units,
    indices,
    met_by_pair,
    places_as_bits,
    reach,
    shared_offsets,
    split_at,
    surely_meet,
    walks_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpumagic.tensor_info.geometry import Geometry

_Sizes = tuple[int | None, int | None]


@dataclass(frozen=True)
class Overlap:
    """A verdict of "yes", "no" or "not decided", and its reason in words."""

    verdict: str
    why: str


def inside(g: Geometry) -> Overlap:
    """Whether any element of the tensor has more than one index.

    Decided exactly for up to two dims that are not walked as one, and for nearly
    all others; where the search would take too long it is "not decided".
    """
    if g.numel < 2:
        return Overlap("no", "there are no two elements")
    repeated = [dim for dim in g.walked_dims if g.stride[dim] == 0]
    if repeated:
        dim = repeated[0]
        count = g.size[dim]
        return Overlap("yes", f"dim {dim} has stride 0: its {count} indices are one")
    walks = walks_of(g)
    if _each_clears_the_shorter(walks):
        return Overlap("no", "each stride is longer than all shorter ones can reach")
    return _of_two_dims(g) or _by_counting(walks)


def _each_clears_the_shorter(walks: Walks) -> bool:
    far = 0
    for walk in walks:
        if walk.step <= far:
            return False
        far += walk.reach
    return True


def _of_two_dims(g: Geometry) -> Overlap | None:
    """The overlap that two dims alone make, in words; None if no two do."""
    for one, other in combinations(g.walked_dims, 2):
        walks = [Walk(abs(g.stride[dim]), g.size[dim]) for dim in (one, other)]
        if all(met_by_pair(*walks)):
            common = math.gcd(g.stride[one], g.stride[other])
            times = [walk.step // common for walk in reversed(walks)]
            return Overlap(
                "yes",
                f"{_steps(times[0])} of dim {one} and {_steps(times[1])} of dim "
                f"{other} end in the same place",
            )
    return None


def _by_counting(walks: Walks) -> Overlap:
    """What is left when no two dims collide: collisions of three and more."""
    total = indices(walks)
    places = reach(walks) // divisor(walks) + 1
    if total > places:
        return Overlap("yes", f"{total} indices have only {places} places to go to")
    collide = _collide(walks, total)
    if collide is None:
        return Overlap("not decided", "the strides interlock in too many ways to try")
    if collide:
        return Overlap("yes", "steps along several dims together lead to one place")
    return Overlap("no", "no two sums of the strides are equal")


def _collide(walks: Walks, total: int) -> bool | None:
    met = shared_offsets(walks, walks, 0)
    if met is not None:
        return met > total
    count = distinct(walks)
    return None if count is None else count < total


def _steps(count: int) -> str:
    return f"{count} step" if count == 1 else f"{count} steps"


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

    @property
    def without_gaps(self) -> bool:
        return not self.walks or (len(self.walks) == 1 and self.walks[0].step == 1)

    def covers(self, other: _Places) -> bool:
        """Whether these places have no gaps and all of the other's are among them."""
        within = self.low <= other.low and other.high <= self.high
        return self.without_gaps and within

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
    """What two tensors in one address space have in common."""
    if not first.numel or not second.numel:
        return Shared("no", 0, "disjoint")
    unit = math.gcd(first.itemsize, second.itemsize, distance_bytes)
    one = _places(first, 0, unit)
    other = _places(second, distance_bytes, unit)
    if one.high < other.low or other.high < one.low:
        return Shared("no", 0, "disjoint")
    return _compared(one, other, unit)


def _places(g: Geometry, start_bytes: int, unit: int) -> _Places:
    low_bytes, _ = byte_range(g, start_bytes)
    walks = in_units(walks_of(g), g.itemsize // unit)
    return _Places(low_bytes // unit, as_a_set(walks))


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
    met = shared_offsets(*ways)
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


class Placed(NamedTuple):
    """A tensor in memory: its geometry, and where its storage starts there."""

    geometry: Geometry
    start_bytes: int


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
        bits = some.bits(low)
        if bits is None:
            return None
        marks |= bits
    return marks.bit_count()
