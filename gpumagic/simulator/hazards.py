"""Which accesses are ordered, told by vector clocks across streams and the host.

Each operation has a number, and each stream a clock: for every stream the number
of its last operation that is certain to be over before this stream goes on. An
access is ordered before an operation if its number is not above the clock's.

The host issues everything, so whatever it has waited for is behind every stream's
later work: its clock counts for all. Its own accesses end before it goes on, so
they are checked against the streams', but never need to be kept.

Accesses go with the memory: whoever is given the same bytes next has them among its
own, as those of a former owner.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from gpumagic.simulator.races import HOST, Kind, Race, overlap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpumagic.simulator.races import Layout

NOBODY, SEVERAL = -1, -2  # in the place of a stream
_KEPT = 128  # accesses of a storage, for reads and writes each
_LEFT = 64  # when there were more
_FORMER = 1024  # accesses of each pool

Mark: TypeAlias = "tuple[int, ...]"
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


class Tracker:
    """Watches every operation of all streams for accesses that nothing orders.

    A race is reported once: from then on the later stream counts as if it had
    waited for all that the earlier stream was given so far, which is what the hint
    says. Of several conflicts the latest access is reported first, and others only
    if that wait would not have cured them.

    Memory is bounded, so a storage used in more than a hundred different pieces
    loses its oldest accesses: a race can be missed, none is made up.
    """

    def __init__(self) -> None:
        self._clocks: list[list[int]] = [[0]]  # the host's is the first
        self._number = 0
        self._alone = NOBODY  # the only stream that has operated so far
        # called whenever the host has waited for anything
        self.after_host_waits: list[Callable[[], object]] = []
        # the accesses of memory that was given back too early, which may disturb its
        # next owner, by the stream whose pool it is in and at their addresses
        self.former: dict[int, list[Kept]] = {}

    # ------------------------------------------------------------------ order

    def new_stream(self) -> int:
        """Another stream, behind all that the host has waited for."""
        for clock in self._clocks:
            clock.append(0)
        self._clocks.append(self._clocks[HOST].copy())
        return len(self._clocks) - 1

    def record(self, stream: int) -> Mark:
        """An event behind all that this stream was given so far."""
        return tuple(self._clocks[stream])

    def wait(self, stream: int, mark: Mark) -> None:
        """Later work of this stream comes after the mark."""
        _merge(self._clocks[stream], mark)

    def host_waits_for(self, *streams: int) -> None:
        """The host, and so all later work, comes after these streams' work so far."""
        self.host_waits_for_mark(*(self._clocks[stream] for stream in streams))

    def host_waits_for_mark(self, *marks: Sequence[int]) -> None:
        """The host, and so all later work, comes after the marks."""
        for mark in marks:
            _merge(self._clocks[HOST], mark)
        for pool in tuple(self.former):
            self._keep(pool, self._not_behind(self.former[pool], HOST, pool))
        for tell in self.after_host_waits:
            tell()

    def host_is_behind(self, stream: int, mark: Mark) -> bool:
        """Whether the host has waited for all that this stream had done at a mark."""
        return self._clocks[HOST][stream] >= mark[stream]

    # ------------------------------------------------------------- operations

    def operate(
        self,
        stream: int,
        reads: Sequence[Operand],
        writes: Sequence[Operand],
        place: Any,
    ) -> Sequence[Race]:
        """One operation, checked against all earlier ones and kept for later ones."""
        races: Sequence[Race] = ()
        if stream != self._alone:
            if self._alone == NOBODY and stream != HOST:
                self._alone = stream
            else:
                races = self._races(stream, reads, writes, place)
                if stream == HOST:
                    return races
                self._alone = SEVERAL
        self._number = number = self._number + 1
        self._clocks[stream][stream] = number
        access = (number, place, False)
        for accesses, low, high, layout in reads:
            if accesses.stream != stream:
                accesses.stream = stream if accesses.stream == NOBODY else SEVERAL
            kept = accesses.reads
            kept[stream, low, high, layout] = access
            if len(kept) > _KEPT:
                self._trim(kept)
        for accesses, low, high, layout in writes:
            if accesses.stream != stream:
                accesses.stream = stream if accesses.stream == NOBODY else SEVERAL
            kept = accesses.writes
            kept[stream, low, high, layout] = access
            if len(kept) > _KEPT:
                self._trim(kept)
        return races

    def _races(
        self,
        stream: int,
        reads: Sequence[Operand],
        writes: Sequence[Operand],
        place: Any,
    ) -> Sequence[Race]:
        """What an operation races with; its stream has then waited for all of it."""
        clock, host = self._clocks[stream], self._clocks[HOST]
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
                        kind = Kind.MEMORY_REUSED if former else _KINDS[wrote, writing]
                        race = Race(
                            kind, span[0], earlier_place, wrote, stream, place,
                            writing, max(low, span[1]), min(high, span[2]),
                        )  # fmt: skip
                        found.append((number, race))
        races = []
        while found:  # the latest first; what a wait for its stream cures is left out
            _, latest = max(found, key=itemgetter(0))
            races.append(latest)
            _merge(clock, self._clocks[latest.earlier_stream])
            found = [each for each in found if each[0] > clock[each[1].earlier_stream]]
        return races

    def _trim(self, kept: dict[Span, Access]) -> None:
        """Forget what the host has waited for, then the oldest."""
        host = self._clocks[HOST]
        left = [each for each in kept.items() if each[1][0] > host[each[0][0]]]
        left.sort(key=lambda item: item[1][0])
        kept.clear()
        kept.update(left[-_LEFT:])

    # ----------------------------------------------------------------- memory

    def released(
        self,
        accesses: Accesses,
        address: int,
        size: int,
        stream: int,
        recorded_streams: Iterable[int] = (),
    ) -> None:
        """The storage is gone, and its memory is back in a pool."""
        if accesses.stream not in (stream, NOBODY):
            gone = [
                (writes, _moved(span, 0, size, address), access)
                for writes, spans in ((False, accesses.reads), (True, accesses.writes))
                for span, access in spans.items()
            ]
            left = self._not_behind(gone, HOST, stream, *recorded_streams)
            self._keep(stream, self.former.get(stream, []) + left)
        accesses.reads.clear()
        accesses.writes.clear()
        accesses.stream = NOBODY

    def reused(self, address: int, size: int, stream: int) -> Accesses:
        """The accesses of a new storage at this address of the stream's pool."""
        accesses, end = Accesses(size), address + size
        elsewhere: list[Kept] = []
        # Cut to the same bytes, two accesses of a stream are one: the later.
        former = self._not_behind(self.former.get(stream, ()), HOST, stream)
        former.sort(key=lambda each: each[2][0])
        for writes, span, (number, place, _) in former:
            one, low, high, layout = span
            if low < end and address < high:
                kept = accesses.writes if writes else accesses.reads
                kept[_moved(span, address, end, -address)] = number, place, True
                accesses.stream = SEVERAL
            elsewhere += [
                (writes, (one, *rest, layout), (number, place, True))
                for rest in ((low, min(high, address)), (max(low, end), high))
                if rest[0] < rest[1]
            ]
        self._keep(stream, elsewhere)
        return accesses

    def _not_behind(self, kept: Iterable[Kept], *streams: int) -> list[Kept]:
        """Those that none of these streams has waited for."""
        clocks = [self._clocks[stream] for stream in streams]
        return [
            each
            for each in kept
            if all(each[2][0] > clock[each[1][0]] for clock in clocks)
        ]

    def _keep(self, pool: int, former: list[Kept]) -> None:
        """Keep for a pool what can still disturb its next owners."""
        if former:
            self.former[pool] = former[-_FORMER:]
        else:
            self.former.pop(pool, None)


def _moved(span: Span, first: int, end: int, by: int) -> Span:
    """The part of an access between two bytes, counted from another start."""
    stream, low, high, layout = span
    if layout is not None:
        layout = (layout[0] + by, *layout[1:])
    return stream, max(low, first) + by, min(high, end) + by, layout


def _merge(clock: list[int], other: Sequence[int]) -> None:
    """The clock after waiting for all that the other has behind it."""
    for stream, number in enumerate(other):
        if number > clock[stream]:  # noqa: PLR1730 - max() takes three times as long
            clock[stream] = number
