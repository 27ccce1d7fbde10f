"""Which earlier accesses an operation conflicts with, told by the vector clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.simulator.accesses import NOBODY
from gpumagic.simulator.races import HOST, Kind, Race, overlap

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpumagic.simulator.accesses import Access, Operand, Span

_KINDS = {  # by whether the earlier and the later access write
    (True, False): Kind.READ_AFTER_WRITE,
    (False, True): Kind.WRITE_AFTER_READ,
    (True, True): Kind.WRITE_AFTER_WRITE,
}


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
    """What an operation races with; then its stream's clock counts all as waited for.

    Args:
        stream: Where the operation runs.

        reads: What it reads, as `Tracker.operate` takes it.

        writes: What it writes, likewise.

        place: The caller's token for the place in the code.

        clocks: Of every stream, the host's first.
    """
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
