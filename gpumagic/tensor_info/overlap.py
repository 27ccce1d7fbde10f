"""Says how many elements a tensor reaches, what two share, and what several cover.

Views whose rows are alike are told by closed forms; of all others the places are
marked, up to ten million. What lies beyond is "at least" so much, or not decided.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from gpumagic.report.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpumagic.tensor_info.geometry import Geometry

    Span = tuple[str, int, int]  # device, first byte, and the one behind the last

_T = TypeVar("_T")

MOST_PLACES = 10_000_000
WORTH_FREEING_BYTES = 4096  # what is kept for nothing is worth a word from here on
INTERLOCKED = (
    f"Where views interlock over more than {MOST_PLACES:,} places, all from the first "
    "to the last count as used."
)


class Walk(NamedTuple):
    """A step and how many stops it makes, the start among them; both are positive."""

    step: int
    stops: int


Walks = tuple[Walk, ...]


def distinct_elements(g: Geometry) -> int | None:
    """How many elements of the storage are reached; None where it is not decided."""
    return _distinct(_walks(g)) if g.numel else 0


def _walks(g: Geometry) -> Walks:
    """The walks to every place, the shortest step first; a negative step is as good."""
    dims = zip(g.stride, g.size, strict=True)
    found: list[Walk] = []
    for step, count in sorted((abs(step), n) for step, n in dims if step and n > 1):
        if found and step == found[-1].step * found[-1].stops:
            found[-1] = Walk(found[-1].step, found[-1].stops * count)
        else:
            found.append(Walk(step, count))
    return tuple(found)


def _as_a_set(walks: Walks) -> Walks:
    """Fewer walks to the same places: overlapping windows along a dim become one."""
    kept: list[Walk] = []
    for walk in walks:
        for at, wide in enumerate(kept):
            times, rest = divmod(walk.step, wide.step)
            if rest == 0 and times <= wide.stops:
                kept[at] = Walk(wide.step, wide.stops + times * (walk.stops - 1))
                break
        else:
            kept.append(walk)
    return tuple(kept)


def is_nested(g: Geometry) -> bool:
    """Whether each step leaps over all that the shorter ones reach."""
    return _are_nested(_walks(g))


def _are_nested(walks: Walks) -> bool:
    return all(walk.step > _reach(walks[:number]) for number, walk in enumerate(walks))


def _reach(walks: Walks) -> int:
    """How far the last steps of all lead."""
    return sum(walk.step * (walk.stops - 1) for walk in walks)


def _distinct(walks: Walks) -> int | None:
    walks = _as_a_set(walks)
    if _are_nested(walks):
        return math.prod(walk.stops for walk in walks)
    unit = math.gcd(*(walk.step for walk in walks))
    places = _reach(walks) // unit + 1
    if places > MOST_PLACES:
        return None
    return _marked(walks, unit, places).bit_count()


def _marked(walks: Walks, unit: int, places: int) -> int:
    """A number with a bit for each of so many places, set where a walk leads."""
    bits = 1
    for walk in walks:
        step = walk.step // unit
        stops, done = min(walk.stops, places // step + 1), 1
        while done < stops:
            more = min(done, stops - done)
            bits |= bits << more * step
            done += more
    return bits & ((1 << places) - 1)


@dataclass(frozen=True)
class Shared(Record):
    """What two tensors have in common."""

    elements_overlap: bool | None  # None where it could not be decided
    shared_bytes: int | None  # bytes that elements of both lie in
    relation: str  # "identical", "contains", "contained", "partial",
    # "interleaved", "disjoint", "unknown"
    at_least: bool = False  # whether more bytes may be shared


NOTHING = Shared(elements_overlap=False, shared_bytes=0, relation="disjoint")


class _Places(NamedTuple):
    """The places from `low` that the walks lead to."""

    low: int
    walks: Walks

    @property
    def high(self) -> int:
        return self.low + _reach(self.walks)

    @property
    def without_gaps(self) -> bool:
        return all(walk.step == 1 for walk in self.walks)

    def covers(self, other: _Places) -> bool:
        """Whether these places have no gaps and all of the other's are among them."""
        return self.without_gaps and self.low <= other.low and other.high <= self.high

    def rows(self, step: int, origin: int) -> tuple[range, _Places] | None:
        """The rows, and the places in each; None if they are not alike.

        A row begins at each multiple of `step` from `origin` on.
        """
        first, rest = divmod(self.low - origin, step)
        inner, count = self.walks, 1
        if inner and step % inner[-1].step == 0:
            *shorter, (last, stops) = inner
            each = step // last
            if stops % each == 0:
                in_row = (Walk(last, each),) if each > 1 else ()
                inner, count = (*shorter, *in_row), stops // each
        if rest + _reach(inner) >= step:
            return None
        return range(first, first + count), _Places(rest, inner)

    def marked(self, low: int, places: int) -> int:
        """A bit for each of so many places from `low` on."""
        start = self.low - low
        if start >= places:
            return 0
        return _marked(self.walks, 1, places - start) << start


def shared(first: Geometry, second: Geometry, distance_bytes: int) -> Shared:
    """What two tensors in one address space have in common."""
    if not first.numel or not second.numel:
        return NOTHING
    unit = math.gcd(first.itemsize, second.itemsize, distance_bytes)
    one, other = _places(first, 0, unit), _places(second, distance_bytes, unit)
    if one.high < other.low or other.high < one.low:
        return NOTHING
    common, at_least = _common(one, other)
    if common is None:
        same = one == other
        return Shared(same or None, None, "identical" if same else "unknown")
    if not common:
        return Shared(elements_overlap=False, shared_bytes=0, relation="interleaved")
    relation, sizes = "unknown", (_distinct(one.walks), _distinct(other.walks))
    if not at_least and None not in sizes:
        relation = {
            (True, True): "identical",
            (False, True): "contains",
            (True, False): "contained",
            (False, False): "partial",
        }[common == sizes[0], common == sizes[1]]
    return Shared(True, common * unit, relation, at_least)


def _places(g: Geometry, start_bytes: int, unit: int) -> _Places:
    low, units = Placed(g, start_bytes).span[1], g.itemsize // unit
    wide = tuple(Walk(walk.step * units, walk.stops) for walk in _walks(g))
    return _Places(low // unit, _as_a_set((Walk(1, units), *wide)))


def _common(one: _Places, other: _Places) -> tuple[int | None, bool]:
    """How many places both reach, and whether there may be more; None if unknown."""
    for some, all_of_it in ((one, other), (other, one)):
        if one == other or all_of_it.covers(some):
            return _distinct(some.walks), False
    step = max(walk.step for walk in (*one.walks, *other.walks))
    for origin in (one.low, other.low):
        mine, its = one.rows(step, origin), other.rows(step, origin)
        if mine is not None and its is not None:
            (rows, inner), (its_rows, its_inner) = mine, its
            end, start = min(rows.stop, its_rows.stop), max(rows.start, its_rows.start)
            common, at_least = _common(inner, its_inner) if end > start else (0, False)
            return None if common is None else common * (end - start), at_least
    low, high = min(one.low, other.low), min(one.high, other.high)
    places = min(high - low + 1, MOST_PLACES)
    marks = one.marked(low, places) & other.marked(low, places)
    is_cut = low + places <= high
    return marks.bit_count() or (None if is_cut else 0), is_cut


class Placed(NamedTuple):
    """A tensor in memory: its geometry, and where its storage starts there."""

    geometry: Geometry
    start_bytes: int
    device: str = ""

    @property
    def span(self) -> Span:
        """Its device, its first byte, and the one behind its last."""
        g = self.geometry
        low = self.start_bytes + (g.first_element or 0) * g.itemsize
        return self.device, low, low + g.span_bytes


def clusters(things: Iterable[_T], span: Callable[[_T], Span]) -> Iterator[list[_T]]:
    """Those whose bytes intersect, directly or by way of others, in their order."""
    cluster: list[_T] = []
    device, end = "", 0
    for each in sorted(things, key=span):
        its_device, start, stop = span(each)
        if cluster and (its_device != device or start >= end):
            yield cluster
            cluster, end = [], 0
        cluster.append(each)
        device, end = its_device, max(end, stop)
    if cluster:
        yield cluster


def covered_bytes(tensors: Iterable[Placed]) -> int:
    """The bytes that at least one tensor reaches.

    Where too many would have to be marked, all from the first to the last.
    """
    placed = [each for each in tensors if each.geometry.numel]
    sizes = (math.gcd(p.geometry.itemsize, p.start_bytes) for p in placed)
    unit = math.gcd(*sizes) or 1
    every = {_places(some.geometry, some.start_bytes, unit) for some in placed}
    solid: list[_Places] = []  # what has no gaps, those that touch as one
    for each in sorted(each for each in every if each.without_gaps):
        if solid and each.low <= solid[-1].high + 1:
            low, stop = solid[-1].low, max(each.high, solid[-1].high) + 1
            solid[-1] = _Places(low, (Walk(1, stop - low),))
        else:
            solid.append(each)
    gapped = [
        each
        for each in every
        if not each.without_gaps and not any(its.covers(each) for its in solid)
    ]
    if not gapped:
        return sum(each.high + 1 - each.low for each in solid) * unit
    low = min(each.low for each in (*solid, *gapped))
    places = max(each.high for each in (*solid, *gapped)) - low + 1
    if not solid and len(gapped) == 1:
        return (_distinct(gapped[0].walks) or places) * unit
    if places > MOST_PLACES:
        return places * unit
    marks = 0
    for each in (*solid, *gapped):
        marks |= each.marked(low, places)
    return marks.bit_count() * unit
