"""Which accesses are ordered, told by vector clocks across streams and the host.

Each operation has a number, and each stream a clock: for every stream the number
of its last operation that is certain to be over before this stream goes on. An
access is ordered before an operation if its number is not above the clock's.

The host issues everything, so whatever it has waited for is behind every stream's
later work: its clock counts for all. Its own accesses end before it goes on, so
they are checked against the streams', but never need to be kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from gpumagic.simulator.accesses import KEPT, NOBODY, SEVERAL, Accesses, moved, trim
from gpumagic.simulator.races import HOST, Kind, Race, overlap

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpumagic.simulator.accesses import Access, Span
    from gpumagic.simulator.races import Layout

__all__ = ["Accesses", "Mark", "Operand", "Tracker"]

_VACANCIES = 4096  # addresses whose last use is known
_GHOSTS = 1024  # accesses of memory that one stream's pool was given back

_KINDS = {  # by whether the earlier and the later access write
    (True, False): Kind.READ_AFTER_WRITE,
    (False, True): Kind.WRITE_AFTER_READ,
    (True, True): Kind.WRITE_AFTER_WRITE,
}

Mark: TypeAlias = "tuple[int, ...]"
Operand: TypeAlias = "tuple[Accesses, int, int, Layout | None]"


class _Conflict(NamedTuple):
    """A race and the number of its earlier access."""

    number: int
    race: Race


class _Ghost(NamedTuple):
    """An access of memory that was given back, at its address."""

    writes: bool
    span: Span
    access: Access


class Tracker:
    """Watches every operation of all streams for accesses that nothing orders.

    A race is reported once: from then on the later stream counts as if it had
    waited for all that the earlier stream was given so far, which is what the hint
    says. Of several conflicts the latest access is reported first, and others only
    if that wait would not have cured them.

    Memory is bounded, so a storage used in more than a hundred different pieces
    loses its oldest accesses: a race can be missed, none is made up.
    """

    __slots__ = ("_alone", "_clocks", "_number", "ghosts", "vacancies")

    def __init__(self) -> None:
        self._clocks: list[list[int]] = [[0]]  # the host's is the first
        self._number = 0
        self._alone = NOBODY  # the only stream that has operated so far
        self.ghosts: dict[int, list[_Ghost]] = {}  # by allocating stream
        # By address: who used it last, of the stream it was allocated for.
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
        _merge(self._clocks[stream], mark)

    def host_waits_for_mark(self, mark: Mark) -> None:
        """The host, and so all later work, comes after the mark."""
        self._host_waits(mark)

    def host_waits_for(self, stream: int) -> None:
        """The host, and so all later work, comes after this stream's work so far."""
        self._host_waits(self._clocks[stream])

    def host_waits_for_device(self, streams: Iterable[int]) -> None:
        """The host, and so all later work, comes after these streams' work so far."""
        self._host_waits(*(self._clocks[stream] for stream in streams))

    def host_is_behind(self, stream: int, mark: Mark) -> bool:
        """Whether the host has waited for all that this stream had done at a mark."""
        return self._clocks[HOST][stream] >= mark[stream]

    def _host_waits(self, *clocks: Sequence[int]) -> None:
        for clock in clocks:
            _merge(self._clocks[HOST], clock)
        for pool in tuple(self.ghosts):
            self._lay_to_rest(pool)

    # ------------------------------------------------------------- operations

    def operate(  # noqa: C901 -- the path of every operation, not cut into calls
        self,
        stream: int,
        reads: Sequence[Operand],
        writes: Sequence[Operand],
        place: Any,
    ) -> Sequence[Race]:
        """One operation, checked against all earlier ones and kept for later ones.

        Args:
            stream: Where it runs; `HOST` for an access from the host.

            reads: What it reads, each as storage, first byte, byte behind the last,
                and layout: `None` if dense, else byte offset, sizes, byte strides
                and item size.

            writes: What it writes, likewise; what it changes is in both.

            place: The caller's token for the place in the code, stored as it is.
        """
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
                accesses.join(stream)
            kept = accesses.reads
            kept[stream, low, high, layout] = access
            if len(kept) > KEPT:
                trim(accesses, self._clocks[HOST])
        for accesses, low, high, layout in writes:
            kept = accesses.writes
            if layout is None and low <= 0 and high >= accesses.size_bytes:
                # Whoever comes after this write comes after all before it as well.
                accesses.reads.clear()
                kept.clear()
                accesses.stream = stream
            elif accesses.stream != stream:
                accesses.join(stream)
            kept[stream, low, high, layout] = access
            if len(kept) > KEPT:
                trim(accesses, self._clocks[HOST])
        return races

    def _races(
        self,
        stream: int,
        reads: Sequence[Operand],
        writes: Sequence[Operand],
        place: Any,
    ) -> Sequence[Race]:
        clock, host = self._clocks[stream], self._clocks[HOST]
        found: list[_Conflict] = []
        for writing, operands in ((False, reads), (True, writes)):
            for accesses, low, high, layout in operands:
                if accesses.stream in (stream, NOBODY):
                    continue
                loose = [(True, *each) for each in _loose(accesses.writes, clock, host)]
                if writing and accesses.reads:
                    earlier = _loose(accesses.reads, clock, host)
                    loose += [(False, *each) for each in earlier]
                if loose:
                    later = stream, low, high, layout
                    found += _conflicts(loose, later, writing, place)
        return self._reported(stream, found) if found else ()

    def _reported(self, stream: int, found: list[_Conflict]) -> list[Race]:
        """The races that stay when each is cured by a wait, the latest first."""
        clock, races = self._clocks[stream], []
        while found:
            worst = max(found, key=lambda conflict: conflict.number)
            races.append(worst.race)
            _merge(clock, self._clocks[worst.race.earlier_stream])
            found = [
                conflict
                for conflict in found
                if conflict.number > clock[conflict.race.earlier_stream]
            ]
        return races

    # ----------------------------------------------------------------- memory

    def forget(self, accesses: Accesses) -> None:
        """The storage is gone, and its memory comes back only after all work on it."""
        accesses.reads.clear()
        accesses.writes.clear()
        accesses.stream = NOBODY

    def released(
        self,
        accesses: Accesses,
        address: int,
        size: int,
        stream: int,
        recorded_streams: Iterable[int] = (),
    ) -> None:
        """The storage is gone, and its memory is back in a pool.

        Args:
            accesses: The storage's.

            address: Where it lay.

            size: How many bytes it had there.

            stream: The stream that it was allocated for, `HOST` for pinned memory.
                What this stream has behind it cannot disturb the next owner.

            recorded_streams: Streams for which the allocator waits before it hands
                the memory out again.
        """
        if accesses.stream not in (stream, NOBODY):
            covering = [
                self._clocks[each] for each in (HOST, stream, *recorded_streams)
            ]
            left = [
                _Ghost(writes, moved(span, 0, size, address), access)
                for writes, span, access in accesses.kept()
                if all(access[0] > clock[span[0]] for clock in covering)
            ]
            if left:
                pool = self.ghosts.setdefault(stream, [])
                pool += left
                del pool[:-_GHOSTS]
        self.forget(accesses)

    def reused(self, address: int, size: int, stream: int) -> Accesses:
        """The accesses of a new storage at this address of the stream's pool."""
        accesses = Accesses(size)
        if address in self.vacancies:
            self._move_in(accesses, address, stream)
        if stream in self.ghosts:
            self._haunt(accesses, address, stream)
        return accesses

    def vacated(self, accesses: Accesses, address: int, stream: int) -> None:
        """The storage is gone, and only the stream it was allocated for has used it.

        That stream cannot disturb itself. But if another is the first to use what
        lies there next, it has to wait; only a storage at the same address is seen.
        """
        last = max((access for *_, access in accesses.kept()), default=None, key=_first)
        if last is not None and last[0] > self._clocks[HOST][stream]:
            self.vacancies[address] = stream, last[0], last[1]
            if len(self.vacancies) > _VACANCIES:
                del self.vacancies[next(iter(self.vacancies))]

    def _move_in(self, accesses: Accesses, address: int, stream: int) -> None:
        """Hand the last use of vacated memory on to the storage that lies there now."""
        former, number, place = self.vacancies.pop(address)
        if former == stream:
            span = stream, 0, accesses.size_bytes, None
            accesses.writes[span] = number, place, False
            accesses.stream = stream

    def _haunt(self, accesses: Accesses, address: int, pool: int) -> None:
        """Hand a pool's old accesses at this address on to the new storage."""
        self._lay_to_rest(pool)
        end = address + accesses.size_bytes
        elsewhere = []
        # Cut to the same bytes, two accesses of a stream are one: the later.
        ghosts = sorted(self.ghosts.pop(pool, ()), key=lambda ghost: ghost.access[0])
        for writes, span, (number, place, _) in ghosts:
            stream, low, high, layout = span
            if low < end and address < high:
                kept = accesses.writes if writes else accesses.reads
                kept[moved(span, address, end, -address)] = number, place, True
                accesses.stream = SEVERAL
            elsewhere += [
                _Ghost(writes, (stream, *rest, layout), (number, place, True))
                for rest in ((low, min(high, address)), (max(low, end), high))
                if rest[0] < rest[1]
            ]
        if elsewhere:
            self.ghosts[pool] = elsewhere

    def _lay_to_rest(self, pool: int) -> None:
        """Forget what can disturb nobody any more, wherever the pool is used next."""
        host, owner = self._clocks[HOST], self._clocks[pool]
        left = [
            ghost
            for ghost in self.ghosts[pool]
            if ghost.access[0] > owner[ghost.span[0]]
            and ghost.access[0] > host[ghost.span[0]]
        ]
        if left:
            self.ghosts[pool] = left
        else:
            del self.ghosts[pool]


def _merge(clock: list[int], other: Sequence[int]) -> None:
    """The clock after waiting for all that the other has behind it."""
    for stream, number in enumerate(other):
        if number > clock[stream]:  # noqa: PLR1730 - max() takes three times as long
            clock[stream] = number


def _loose(
    spans: dict[Span, Access], clock: list[int], host: list[int]
) -> list[tuple[Span, Access]]:
    """The accesses that neither of two clocks has behind it."""
    return [
        item
        for item in spans.items()
        if item[1][0] > clock[item[0][0]] and item[1][0] > host[item[0][0]]
    ]


def _conflicts(
    loose: Iterable[tuple[bool, Span, Access]],
    later: Span,
    later_writes: bool,  # noqa: FBT001 - as in the record
    place: Any,
) -> Iterator[_Conflict]:
    """The unordered accesses that have bytes in common with the later one."""
    stream, low, high, layout = later
    for writes, span, (number, earlier_place, former) in loose:
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


def _first(access: Access) -> int:
    return access[0]
