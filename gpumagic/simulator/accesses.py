"""Keeps the accesses of a storage, and finds those that a later one conflicts with.

They go with the memory: whoever is given the same bytes next has them among its own,
as those of a former owner.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from gpumagic.simulator.races import HOST, Kind, Race, overlap

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.simulator.races import Layout

NOBODY, SEVERAL = -1, -2  # in the place of a stream
KEPT = 128  # accesses of a storage, for reads and writes each
_LEFT = 64  # when there were more
Span: TypeAlias = "tuple[int, int, int, Layout | None]"  # stream, low, high, layout
Access: TypeAlias = "tuple[int, Any, bool]"  # number, place, of a former owner
Kept: TypeAlias = "tuple[bool, Span, Access]"  # with whether it writes
# What an operation reads or writes: storage, first byte, byte behind the last, layout.
Operand: TypeAlias = "tuple[Accesses, int, int, Layout | None]"
_KINDS = {  # by whether the earlier and the later access write
    (True, False): Kind.READ_AFTER_WRITE,
    (False, True): Kind.WRITE_AFTER_READ,
    (True, True): Kind.WRITE_AFTER_WRITE,
}


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

    def kept(self) -> Iterator[Kept]:
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


def races_of(
    stream: int,
    reads: Sequence[Operand],
    writes: Sequence[Operand],
    place: Any,
    clocks: Sequence[list[int]],
) -> Sequence[Race]:
    """What an operation races with; its stream has then waited for all of it."""
    clock, host = clocks[stream], clocks[HOST]
    found: list[tuple[int, Race]] = []  # with the number of the earlier access
    for writing, operands in ((False, reads), (True, writes)):
        for accesses, low, high, layout in operands:
            if accesses.stream in (stream, NOBODY):
                continue
            earlier = [(True, accesses.writes)]
            if writing and accesses.reads:
                earlier.append((False, accesses.reads))
            for wrote, spans in earlier:
                for span, (number, earlier_place, former) in spans.items():
                    if number <= clock[span[0]] or number <= host[span[0]]:
                        continue  # ordered
                    if not overlap((low, high, layout), span[1:]):
                        continue
                    race = Race(
                        kind=Kind.MEMORY_REUSED if former else _KINDS[wrote, writing],
                        earlier_stream=span[0],
                        earlier_place=earlier_place,
                        earlier_writes=wrote,
                        later_stream=stream,
                        later_place=place,
                        later_writes=writing,
                        low=max(low, span[1]),
                        high=min(high, span[2]),
                    )
                    found.append((number, race))
    races = []
    while found:  # the latest first; what a wait for its stream cures is left out
        _, latest = max(found, key=itemgetter(0))
        races.append(latest)
        merge(clock, clocks[latest.earlier_stream])
        found = [each for each in found if each[0] > clock[each[1].earlier_stream]]
    return races


def merge(clock: list[int], other: Sequence[int]) -> None:
    """The clock after waiting for all that the other has behind it."""
    for stream, number in enumerate(other):
        if number > clock[stream]:  # noqa: PLR1730 - max() takes three times as long
            clock[stream] = number
