"""Which accesses are ordered, told by vector clocks across streams and the host.

Each operation has a number, and each stream a clock: for every stream the number
of its last operation that is certain to be over before this stream goes on. An
access is ordered before an operation if its number is not above the clock's.

The host issues everything, so whatever it has waited for is behind every stream's
later work: its clock counts for all. Its own accesses end before it goes on, so
they are checked against the streams', but never need to be kept.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from gpumagic.simulator.accesses import (
    KEPT,
    NOBODY,
    SEVERAL,
    Accesses,
    Operand,
    merge,
    moved,
    races_of,
    trim,
)
from gpumagic.simulator.races import HOST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpumagic.simulator.accesses import Kept
    from gpumagic.simulator.races import Race

_VACANCIES = 4096  # addresses whose last use is known
_FORMER = 1024  # accesses of each pool

Mark: TypeAlias = "tuple[int, ...]"


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
        # by address, who used it last, of the stream it was allocated for
        self.vacancies: dict[int, tuple[int, int, Any]] = {}

    # ------------------------------------------------------------------ order

    def new_stream(self) -> int:
        """Another stream, behind all that the host has waited for."""
        for clock in self._clocks:
            clock.append(0)
        stream = len(self._clocks)
        self._clocks.append(self._clocks[HOST].copy())
        return stream

    def record(self, stream: int) -> Mark:
        """An event behind all that this stream was given so far."""
        return tuple(self._clocks[stream])

    def wait(self, stream: int, mark: Mark) -> None:
        """Later work of this stream comes after the mark."""
        merge(self._clocks[stream], mark)

    def host_waits_for(self, *streams: int) -> None:
        """The host, and so all later work, comes after these streams' work so far."""
        self.host_waits_for_mark(*(self._clocks[stream] for stream in streams))

    def host_waits_for_mark(self, *marks: Sequence[int]) -> None:
        """The host, and so all later work, comes after the marks."""
        for mark in marks:
            merge(self._clocks[HOST], mark)
        for pool in tuple(self.former):
            self._forget_ordered(pool)
        for tell in self.after_host_waits:
            tell()

    def host_is_behind(self, stream: int, mark: Mark) -> bool:
        """Whether the host has waited for all that this stream had done at a mark."""
        return self._clocks[HOST][stream] >= mark[stream]

    # ------------------------------------------------------------- operations

    def operate(  # noqa: C901 -- the path of every operation, not cut into calls
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
                races = races_of(stream, reads, writes, place, self._clocks)
                if stream == HOST:
                    return races
                self._alone = SEVERAL
        self._number = number = self._number + 1
        self._clocks[stream][stream] = number
        access = (number, place, False)
        for accesses, low, high, layout in reads:
            if accesses.stream != stream:
                accesses.join(stream)
            kept = accesses.reads
            kept[stream, low, high, layout] = access
            if len(kept) > KEPT:
                trim(accesses, self._clocks[HOST])
        for accesses, low, high, layout in writes:
            kept = accesses.writes
            if layout is None and low <= 0 and high >= accesses.size_bytes:
                # Whoever comes after this write comes after all before it as well.
                if accesses.stream != NOBODY:  # else it is new
                    accesses.reads.clear()
                    kept.clear()
                accesses.stream = stream
            elif accesses.stream != stream:
                accesses.join(stream)
            kept[stream, low, high, layout] = access
            if len(kept) > KEPT:
                trim(accesses, self._clocks[HOST])
        return races

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
            covering = [
                self._clocks[each] for each in (HOST, stream, *recorded_streams)
            ]
            left = [
                (writes, moved(span, 0, size, address), access)
                for writes, span, access in accesses.kept()
                if all(access[0] > clock[span[0]] for clock in covering)
            ]
            if left:
                self.former[stream] = (self.former.get(stream, []) + left)[-_FORMER:]
        accesses.reads.clear()
        accesses.writes.clear()
        accesses.stream = NOBODY

    def reused(self, address: int, size: int, stream: int) -> Accesses:
        """The accesses of a new storage at this address of the stream's pool."""
        accesses = Accesses(size)
        former, number, place = self.vacancies.pop(address, (NOBODY, 0, None))
        if former == stream:  # the last use of what was vacated here
            accesses.writes[stream, 0, size, None] = number, place, False
            accesses.stream = stream
        if stream in self.former:
            self._forget_ordered(stream)
            self._hand_on(accesses, address, stream)
        return accesses

    def vacated(self, accesses: Accesses, address: int, stream: int) -> None:
        """The storage is gone, and only the stream it was allocated for has used it.

        That stream cannot disturb itself. But if another is the first to use what
        lies there next, it has to wait; only a storage at the same address is seen.
        """
        kept = (access for *_, access in accesses.kept())
        last = max(kept, default=None, key=itemgetter(0))
        if last is not None and last[0] > self._clocks[HOST][stream]:
            self.vacancies[address] = stream, last[0], last[1]
            if len(self.vacancies) > _VACANCIES:
                del self.vacancies[next(iter(self.vacancies))]

    def _hand_on(self, accesses: Accesses, address: int, pool: int) -> None:
        """Hand a pool's old accesses at this address on to the new storage."""
        end = address + accesses.size_bytes
        elsewhere: list[Kept] = []
        # Cut to the same bytes, two accesses of a stream are one: the later.
        former = sorted(self.former.pop(pool, ()), key=lambda each: each[2][0])
        for writes, span, (number, place, _) in former:
            stream, low, high, layout = span
            if low < end and address < high:
                kept = accesses.writes if writes else accesses.reads
                kept[moved(span, address, end, -address)] = number, place, True
                accesses.stream = SEVERAL
            elsewhere += [
                (writes, (stream, *rest, layout), (number, place, True))
                for rest in ((low, min(high, address)), (max(low, end), high))
                if rest[0] < rest[1]
            ]
        if elsewhere:
            self.former[pool] = elsewhere

    def _forget_ordered(self, pool: int) -> None:
        """Forget what can disturb nobody any more, wherever the pool is used next."""
        owner, host = self._clocks[pool], self._clocks[HOST]
        left = [
            (writes, span, access)
            for writes, span, access in self.former.pop(pool)
            if access[0] > owner[span[0]] and access[0] > host[span[0]]
        ]
        if left:
            self.former[pool] = left
