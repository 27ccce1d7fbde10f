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

import enum
from dataclasses import dataclass
from math import gcd
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from gpumagic.report.record import Record
from gpumagic.report.units import bytes_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

HOST = 0  # the host is the stream that was there first
_STEPS = 65_536  # spent on finding out whether two views overlap

# Byte offset, sizes, byte strides and item size of a strided view.
Layout: TypeAlias = "tuple[int, tuple[int, ...], tuple[int, ...], int]"
# First byte, byte behind the last, and how what lies between is used: None is all.
Bytes: TypeAlias = "tuple[int, int, Layout | None]"
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


class Kind(enum.Enum):
    """Which order was needed and not given."""

    READ_AFTER_WRITE = "read after write"
    WRITE_AFTER_READ = "write after read"
    WRITE_AFTER_WRITE = "write after write"
    MEMORY_REUSED = "memory reused"  # the earlier access was a former owner's
    CHANGED_UNSEEN = "changed unseen"  # later is where the change was noticed


@dataclass(frozen=True)
class Race(Record):
    """Two accesses of the same bytes that nothing orders.

    Earlier and later are meant as typed. The places are the caller's own tokens.
    The bytes count from the start of the storage; between strided views they are
    the bounds within which the two meet.
    """

    kind: Kind
    earlier_stream: int
    earlier_place: Any
    earlier_writes: bool
    later_stream: int
    later_place: Any
    later_writes: bool
    low: int
    high: int


_KINDS = {  # by whether the earlier and the later access write
    (True, False): Kind.READ_AFTER_WRITE,
    (False, True): Kind.WRITE_AFTER_READ,
    (True, True): Kind.WRITE_AFTER_WRITE,
}


_VERBS = {True: "writes", False: "reads"}


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
    if layout:
        layout = (layout[0] + by, *layout[1:])
    return stream, max(low, first) + by, min(high, end) + by, layout


def _merge(clock: list[int], other: Sequence[int]) -> None:
    """The clock after waiting for all that the other has behind it."""
    for stream, number in enumerate(other):
        if number > clock[stream]:  # noqa: PLR1730 - max() takes three times as long
            clock[stream] = number


# ----------------------------------------------------------------- a race in words


def problem_and_hint(
    race: Race,
    stream_name: Callable[[int], str],
    place_name: Callable[[Any], str],
) -> tuple[str, str]:
    """What is wrong, with both places, in one sentence; and what to type where."""
    later, earlier = place_name(race.later_place), place_name(race.earlier_place)
    size, other = bytes_text(race.high - race.low), stream_name(race.earlier_stream)
    on_host = race.later_stream == HOST
    where = "the host" if on_host else stream_name(race.later_stream)
    verb, before = _VERBS[race.later_writes], _VERBS[race.earlier_writes]
    said = (
        f"{later} {verb} {size} on {where} that {earlier} {before} on {other}, and "
        "nothing makes it wait"
    )
    filler = later
    if race.kind is Kind.MEMORY_REUSED:
        said = (
            f"{later} {verb} {size} on {where} that were given back while another "
            f"stream still used them: {earlier} {before} them on {other}"
        )
        if on_host:
            return said, f"{other}.synchronize() before the tensor is deleted"
        return said, (
            f"x.record_stream({other}) while x, the deleted tensor, is still there; or "
            f"{where}.wait_stream({other}) before deleting it"
        )
    if race.kind is Kind.CHANGED_UNSEEN:
        filler = "anything"
        said = (
            f"{later} finds that the host changed some of the {size} of pinned memory "
            f"of {earlier} before {other} {before} them"
        )
    if not on_host:
        return said, f"{where}.wait_stream({other}) before {later}"
    if race.later_writes:
        return said, (
            f"event = {other}.record_event() after {earlier}, and event.synchronize() "
            f"before {filler} fills the buffer again; or take turns with two buffers"
        )
    return said, (
        f"{other}.synchronize() before {later}, since a non_blocking copy returns "
        f"before the data is there"
    )


# ----------------------------------------------------------------- shared bytes


def overlap(one: Bytes, other: Bytes) -> bool:
    """Whether two views of one storage have a byte in common.

    The answer is exact unless it would take unreasonably many steps; then it is yes.
    """
    if max(one[0], other[0]) >= min(one[1], other[1]):
        return False
    if not (one[2] or other[2]):
        return True
    steps = enumerate(_search(_comb(one), _comb(other)))
    return any(met or step >= _STEPS for step, met in steps)


class _Comb(NamedTuple):
    """Runs of bytes at regular distances."""

    start: int
    run: int
    teeth: tuple[tuple[int, int], ...]  # distance and count, the nearest first

    def end(self) -> int:
        """The byte behind the last."""
        reach = sum(distance * (count - 1) for distance, count in self.teeth)
        return self.start + self.run + reach

    def pieces(self, start: int, end: int) -> Iterator[_Comb]:
        """The comb without its widest distance, where it may meet these bytes."""
        *teeth, (distance, count) = self.teeth
        size = self.end() - self.start - distance * (count - 1)
        first = max(0, (start - self.start - size) // distance + 1)
        last = min(count - 1, (end - self.start - 1) // distance)
        for index in range(first, last + 1):
            yield _Comb(self.start + index * distance, self.run, tuple(teeth))


def _comb(view: Bytes) -> _Comb:
    """The bytes of a view, neighbours joined."""
    low, high, layout = view
    if not layout:
        return _Comb(low, high - low, ())
    start, sizes, strides, run = layout
    teeth = []
    for distance, count in sorted(zip(map(abs, strides), sizes, strict=True)):
        if distance <= run:
            run += distance * (count - 1)
        elif count > 1:
            teeth.append((distance, count))
    start += sum(min(0, step) * (n - 1) for step, n in zip(strides, sizes, strict=True))
    return _Comb(start, run, tuple(teeth))


def _search(one: _Comb, other: _Comb) -> Iterator[bool]:
    """Look for a common byte, one answer for each pair of parts looked at."""
    if one.start >= other.end() or other.start >= one.end() or _apart(one, other):
        yield False
    elif not one.teeth and not other.teeth:
        yield True
    else:
        yield False
        if one.teeth[-1:] < other.teeth[-1:]:
            one, other = other, one
        for piece in one.pieces(other.start, other.end()):
            yield from _search(piece, other)


def _apart(one: _Comb, other: _Comb) -> bool:
    """Whether the two never meet because they are out of step, like two columns."""
    pitch = gcd(*(distance for distance, _ in one.teeth + other.teeth))
    if pitch == 0:
        return False
    lead = (other.start - one.start) % pitch
    return one.run <= lead and lead + other.run <= pitch
