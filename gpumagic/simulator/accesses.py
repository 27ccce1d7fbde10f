"""Keeps the accesses of a storage, and finds those that a later one conflicts with.

They go with the memory: whoever is given the same bytes next has them among its own,
as those of a former owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from gpumagic.simulator.races import HOST, Kind, Race, overlap

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpumagic.simulator.races import Layout

NOBODY, SEVERAL = -1, -2  # in the place of a stream
KEPT = 128  # accesses of a storage, for reads and writes each
_LEFT = 64  # when there were more
Span: TypeAlias = "tuple[int, int, int, Layout | None]"  # stream, low, high, layout
Access: TypeAlias = "tuple[int, Any, bool]"  # number, place, of a former owner
# What an operation reads or writes: storage, first byte, byte behind the last, layout.
Operand: TypeAlias = "tuple[Accesses, int, int, Layout | None]"
_KINDS = {  # by whether the earlier and the later access write
    (True, False): Kind.READ_AFTER_WRITE,
    (False, True): Kind.WRITE_AFTER_READ,
    (True, True): Kind.WRITE_AFTER_WRITE,
}
_MOST = 1024  # of each pool


class Accesses:
    """The accesses of one storage that a later one may still conflict with."""

    __slots__ = ("reads", "size_bytes", "stream", "writes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.stream = NOBODY  # the only one that the accesses below come from
        self.reads: dict[Span, Access] = {}
        self.writes: dict[Span, Access] = {}

    def join(self, stream: int) -> None:
        """Another stream's access is about to be kept."""
        self.stream = stream if self.stream == NOBODY else SEVERAL

    def kept(self) -> Iterator[tuple[bool, Span, Access]]:
        """All accesses, each with whether it writes."""
        for writes, spans in ((False, self.reads), (True, self.writes)):
            for span, access in spans.items():
                yield writes, span, access


def trim(accesses: Accesses, host: list[int]) -> None:
    """Drop what no later access can miss, then the oldest."""
    newest = max(accesses.writes.items(), key=_number, default=None)
    for spans in (accesses.reads, accesses.writes):
        left = [
            item
            for item in spans.items()
            if item[1][0] > host[item[0][0]] and not (newest and _within(item, newest))
        ]
        left.sort(key=_number)
        spans.clear()
        spans.update(left[-_LEFT:])


def _within(item: tuple[Span, Access], write: tuple[Span, Access]) -> bool:
    """Whether a later dense write took the place of an access."""
    (_, low, high, _), (number, *_) = item
    (_, first, end, layout), (latest, *_) = write
    return layout is None and number < latest and first <= low and high <= end


def _number(item: tuple[Span, Access]) -> int:
    return item[1][0]


def moved(span: Span, first: int, end: int, by: int) -> Span:
    """The part of an access between two bytes, counted from another start."""
    stream, low, high, layout = span
    if layout is not None:
        layout = (layout[0] + by, *layout[1:])
    return stream, max(low, first) + by, min(high, end) + by, layout


class _Conflict(NamedTuple):
    """A race and the number of its earlier access."""

    number: int
    race: Race


def races_of(
    stream: int,
    reads: Sequence[Operand],
    writes: Sequence[Operand],
    place: Any,
    clocks: Sequence[list[int]],
) -> Sequence[Race]:
    """What an operation races with; its stream has then waited for all of it."""
    clock, host = clocks[stream], clocks[HOST]
    found: list[_Conflict] = []
    for writing, operands in ((False, reads), (True, writes)):
        for accesses, low, high, layout in operands:
            if accesses.stream in (stream, NOBODY):
                continue
            unordered = [
                (True, *each) for each in _unordered(accesses.writes, clock, host)
            ]
            if writing and accesses.reads:
                earlier = _unordered(accesses.reads, clock, host)
                unordered += [(False, *each) for each in earlier]
            if unordered:
                later = stream, low, high, layout
                found += _conflicts(unordered, later, writing, place)
    return _cured_by_waits(found, clock, clocks) if found else ()


def merge(clock: list[int], other: Sequence[int]) -> None:
    """The clock after waiting for all that the other has behind it."""
    for stream, number in enumerate(other):
        if number > clock[stream]:  # noqa: PLR1730 - max() takes three times as long
            clock[stream] = number


def _unordered(
    spans: dict[Span, Access], clock: list[int], host: list[int]
) -> list[tuple[Span, Access]]:
    """The accesses that neither of two clocks has behind it."""
    return [
        item
        for item in spans.items()
        if item[1][0] > clock[item[0][0]] and item[1][0] > host[item[0][0]]
    ]


def _conflicts(
    unordered: Iterable[tuple[bool, Span, Access]],
    later: Span,
    later_writes: bool,  # noqa: FBT001 - as in the record
    place: Any,
) -> Iterator[_Conflict]:
    """The unordered accesses that have bytes in common with the later one."""
    stream, low, high, layout = later
    for writes, span, (number, earlier_place, former) in unordered:
        if overlap((low, high, layout), span[1:]):
            race = Race(
                kind=Kind.MEMORY_REUSED if former else _KINDS[writes, later_writes],
                earlier_stream=span[0],
                earlier_place=earlier_place,
                earlier_writes=writes,
                later_stream=stream,
                later_place=place,
                later_writes=later_writes,
                low=max(low, span[1]),
                high=min(high, span[2]),
            )
            yield _Conflict(number, race)


def _cured_by_waits(
    found: list[_Conflict], clock: list[int], clocks: Sequence[list[int]]
) -> list[Race]:
    """The races that stay when each is cured by a wait, the latest first."""
    races = []
    while found:
        latest = max(found, key=lambda conflict: conflict.number)
        races.append(latest.race)
        merge(clock, clocks[latest.race.earlier_stream])
        found = [
            conflict
            for conflict in found
            if conflict.number > clock[conflict.race.earlier_stream]
        ]
    return races


class FormerAccess(NamedTuple):
    """An access of memory that was given back, at its address."""

    writes: bool
    span: Span
    access: Access


class FormerAccesses(dict[int, list[FormerAccess]]):
    """What may disturb the next owner, by the stream whose pool the memory is in."""

    __slots__ = ()

    def add(self, pool: int, former: Iterable[FormerAccess]) -> None:
        """Keep them, and forget the pool's oldest where they are too many."""
        kept = self.setdefault(pool, [])
        kept += former
        del kept[:-_MOST]

    def hand_on(self, accesses: Accesses, address: int, pool: int) -> None:
        """Hand a pool's old accesses at this address on to the new storage."""
        end = address + accesses.size_bytes
        elsewhere = []
        # Cut to the same bytes, two accesses of a stream are one: the later.
        former = sorted(self.pop(pool, ()), key=lambda each: each.access[0])
        for writes, span, (number, place, _) in former:
            stream, low, high, layout = span
            if low < end and address < high:
                kept = accesses.writes if writes else accesses.reads
                kept[moved(span, address, end, -address)] = number, place, True
                accesses.stream = SEVERAL
            elsewhere += [
                FormerAccess(writes, (stream, *rest, layout), (number, place, True))
                for rest in ((low, min(high, address)), (max(low, end), high))
                if rest[0] < rest[1]
            ]
        if elsewhere:
            self[pool] = elsewhere

    def forget_ordered(
        self, pool: int, owner: Sequence[int], host: Sequence[int]
    ) -> None:
        """Forget what can disturb nobody any more, wherever the pool is used next."""
        left = [
            each
            for each in self[pool]
            if each.access[0] > owner[each.span[0]]
            and each.access[0] > host[each.span[0]]
        ]
        if left:
            self[pool] = left
        else:
            del self[pool]
