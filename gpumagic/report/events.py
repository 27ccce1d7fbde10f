"""What was seen to happen while a block of code ran, and sums over its spans.

In a sum each moment counts once, whatever ran at the time.

The records are made by `devices` and `simulator`, kept in reports, and drawn by
views; so they are part of the vocabulary that all of them share.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from heapq import nlargest
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

from gpumagic.report.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpumagic.report.places import CodeLine


@dataclass(frozen=True)
class SyncCall(Record):
    """A call that made the host wait for a device, or could have."""

    what: str  # the call in the user's words: `.item()`, `copy to the host`
    # where the user's code made it; None if it did not come from there
    line: CodeLine | None
    # how long the host stood still; None where it cannot be told
    waited_s: float | None = None
    ended_ns: int | None = None  # when the host went on, by the clock of the runtime
    # the line of the cell or block by which that line was come to; None where it is
    # the same
    caller: CodeLine | None = None


@dataclass(frozen=True)
class SeenRace(Record):
    """Two accesses of the same memory that nothing orders."""

    problem: str  # what is wrong, with both places, in one sentence
    hint: str  # what to type, and where
    earlier: CodeLine | None = None  # the line of the access that was made first
    later: CodeLine | None = None  # the line of the access that does not wait for it


class SpanKind(enum.Enum):
    """What takes the time of a span; the first three are done by a device."""

    KERNEL = "kernel"
    COPY = "copy"
    FILL = "fill"  # a memset
    HOST = "host"  # an operation of torch, as the host sees it
    LAUNCH = "launch"  # the host submits work
    WAIT = "wait"  # the host stands still until a device has come far enough


DEVICE_KINDS = frozenset({SpanKind.KERNEL, SpanKind.COPY, SpanKind.FILL})


@dataclass(frozen=True, slots=True)
class GroupPlace(Record):
    """Which collective of a group of processes something is."""

    group: str  # what torch calls the group
    number: int  # how many it had called before
    name: str  # what is done, such as `AllReduce`
    ranks: tuple[int, ...]  # who does it
    nbytes: int  # what it moves: the tensor that is reduced or sent, or all parts


@dataclass(frozen=True, slots=True)
class TraceSpan(Record):
    """Something that took time, on the host or on a device."""

    name: str  # the kernel, the copy, the operation or the call
    kind: SpanKind  # what it is
    start_s: float  # when it began, counted from the beginning of what was traced
    end_s: float  # when it ended
    device: int | None = None  # which device did it; None for the host
    stream: int | None = None  # which stream of the device, as its owner numbers them
    # which thread of the host; 0 is the one that ran the code
    thread: int | None = None
    nbytes: int | None = None  # how much was copied, where that is known
    # since when it was in the queue of its stream, put there by a call
    launched_s: float | None = None
    # what it spends its time on, in words, where a model knows: `bandwidth`, `too few
    # tiles: 16 for 108 multiprocessors`
    bound: str | None = None
    place: GroupPlace | None = None  # of a collective, where a model knows it


@dataclass(frozen=True, slots=True)
class OperatorTime(Record):
    """What an operator of torch took on the host, all its calls together."""

    name: str  # as torch calls it, such as `aten::addmm`
    count: int  # how often it was called, by the code or by other operators
    total_s: float  # from its beginning to its end
    self_s: float  # the same without the operators that it has called


@dataclass(frozen=True)
class Trace(Record):
    """What host and devices did, from all idle to all idle."""

    spans: tuple[TraceSpan, ...]  # in order of their beginning
    length_s: float  # how long it took altogether, on the clock of the spans
    problem: str | None = None  # why devices are missing from it, if they are
    hint: str | None = None  # what to do about it
    # what the operators took on the host, the dearest by themselves first; none where
    # the host is not traced
    operators: tuple[OperatorTime, ...] = ()
    # whether more was done after it, of which nothing was to be kept
    is_cut: bool = False
    # when it began, in nanoseconds since 1970, to a microsecond; None where its clock
    # is a model's
    began_unix_ns: int | None = None


Interval: TypeAlias = "tuple[float, float]"


class Window:
    """From all idle to all idle; spans are cut to it.

    Args:
        length_s: How long it is.
    """

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s

    def cut(self, span: TraceSpan) -> Interval:
        """The part of a span that lies inside; it may have no length."""
        start_s = min(max(span.start_s, 0.0), self._length_s)
        return start_s, max(min(span.end_s, self._length_s), start_s)

    def merged(self, spans: Iterable[TraceSpan]) -> list[Interval]:
        """When at least one of them ran: intervals apart from each other, in order."""
        return merged(map(self.cut, spans))


_Number = TypeVar("_Number", int, float)


def merged(
    intervals: Iterable[tuple[_Number, _Number]],
) -> list[tuple[_Number, _Number]]:
    """When at least one of them was: intervals apart from each other, in order."""
    apart: list[tuple[_Number, _Number]] = []
    for start, end in sorted(intervals):
        if not apart or start > apart[-1][1]:
            apart.append((start, end))
        elif end > apart[-1][1]:
            apart[-1] = apart[-1][0], end
    return apart


def length(apart: Iterable[tuple[_Number, _Number]]) -> _Number:
    """How long intervals are together that are apart from each other."""
    return sum(end - start for start, end in apart)


def without(
    spans: Iterable[tuple[int, int]], others: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """The parts of spans that none of the others covers."""
    left, place = [], 0
    for start, end in spans:
        while place < len(others) and others[place][1] <= start:
            place += 1
        at, following = start, place
        while following < len(others) and others[following][0] < end:
            if others[following][0] > at:
                left.append((at, others[following][0]))
            at = max(at, others[following][1])
            following += 1
        if at < end:
            left.append((at, end))
    return left


def within(
    apart: Sequence[tuple[_Number, _Number]], since: _Number, until: _Number
) -> list[tuple[_Number, _Number]]:
    """What of intervals, apart from each other and in order, lies in another."""
    first = bisect_right(apart, since, key=itemgetter(1))
    behind = bisect_left(apart, until, lo=first, key=itemgetter(0))
    its = apart[first:behind]
    return [(max(start, since), min(end, until)) for start, end in its]


def length_within(
    apart: Sequence[tuple[_Number, _Number]], since: _Number, until: _Number
) -> _Number:
    """How much of intervals, apart from each other and in order, lies in another."""
    return length(within(apart, since, until))


def bridged(
    groups: Sequence[Sequence[tuple[_Number, _Number]]], most: int
) -> list[list[tuple[_Number, _Number]]]:
    """Intervals with so many gaps at most: the narrowest of all count as part.

    >>> bridged([[(0, 1), (2, 3), (9, 10)], [(4, 5), (7, 8)]], 1)
    [[(0, 3), (9, 10)], [(4, 8)]]

    Args:
        groups: Each apart from each other, in order.

        most: How many gaps all groups have together.
    """
    gaps = [after[0] - each[1] for group in groups for each, after in pairwise(group)]
    if len(gaps) <= most:
        return list(map(list, groups))
    widest = nlargest(most + 1, gaps)
    narrow = widest.pop()
    left = widest.count(narrow)  # of those that are just as wide
    found: list[list[tuple[_Number, _Number]]] = []
    for spans in groups:
        its = list(spans[:1])
        for start, end in spans[1:]:
            gap = start - its[-1][1]
            if gap > narrow or (gap == narrow and left > 0):
                left -= gap == narrow
                its.append((start, end))
            else:
                its[-1] = its[-1][0], end
        found.append(its)
    return found


def stretches(spans: Sequence[Any], shortest_s: float) -> Iterator[list[Any]]:
    """The spans of one lane in groups: a long one alone, short ones by the stretch."""
    short: list[Any] = []
    for span in spans:
        is_long = span.end_s - span.start_s >= shortest_s
        if short and (is_long or span.end_s - short[0].start_s > shortest_s):
            yield short
            short = []
        if is_long:
            yield [span]
        else:
            short.append(span)
    if short:
        yield short


_Kind = TypeVar("_Kind")


class Piece(NamedTuple, Generic[_Kind]):
    """A span that is not worth a record yet, as there may be very many."""

    name: str
    kind: _Kind
    start_s: float
    end_s: float


# What a piece is, also where it has not even that name, and counts nanoseconds.
PieceRow: TypeAlias = "tuple[str, _Kind, _Number, _Number]"


def pooled(
    pieces: Sequence[PieceRow[_Kind, _Number]], most: int
) -> list[PieceRow[_Kind, _Number]]:
    """About so many pieces at most, that keep a lane as busy as it was, and where.

    The short ones of a stretch become one for each kind, as long as they were together.
    What was exact stays so where there are few.
    """
    if len(pieces) <= most:
        return list(pieces)
    kinds = len({kind for _, kind, _, _ in pieces})
    shortest = (pieces[-1][3] - pieces[0][2]) * kinds / most
    found: list[PieceRow[_Kind, _Number]] = []
    short: dict[_Kind, _Number] = {}
    names: dict[_Kind, set[str]] = {}
    since = pieces[0][2]

    def one_of_each() -> None:
        at = since
        for kind, took in short.items():
            its = names[kind]
            name = its.pop() if len(its) == 1 else f"{len(its)} names"
            found.append((name, kind, at, at + took))
            at += took
        short.clear()

    for name, kind, start, end in pieces:
        took = end - start
        if short and (took >= shortest or end - since > shortest):
            one_of_each()
        if took >= shortest:
            found.append((name, kind, start, end))
            continue
        if not short:
            since = start
        if kind in short:
            short[kind] += took
            names[kind].add(name)
        else:
            short[kind] = took
            names[kind] = {name}
    one_of_each()
    return found


def seconds_busy(groups: Iterable[Sequence[Interval]], *, at_once: int) -> float:
    """How long at least so many of the groups, each merged, were busy at once."""
    steps = [
        step
        for group in groups
        for start_s, end_s in group
        for step in ((start_s, 1), (end_s, -1))
    ]
    steps.sort()
    seconds, busy = 0.0, 0
    for (moment_s, step), (next_s, _) in pairwise(steps):
        busy += step
        if busy >= at_once:
            seconds += next_s - moment_s
    return seconds
