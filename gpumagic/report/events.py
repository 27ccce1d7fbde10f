"""What was seen to happen while a block of code ran, and sums over its spans.

In a sum each moment counts once, whatever ran at the time.

The records are made by `devices` and `simulator`, kept in reports, and drawn by
views; so they are part of the vocabulary that all of them share.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, TypeVar

from gpumagic.report.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


@dataclass(frozen=True)
class CodeLine(Record):
    """A line of the user's own code.

    Attributes:
        where: The place in words, such as `In [3], line 2` or `train.py, line 40`.

        source: The line as it was typed, without its indentation; None if it is gone.
    """

    where: str
    source: str | None = None


@dataclass(frozen=True)
class Code(Record):
    """Code that was run to be looked at.

    Attributes:
        text: As it was typed, or the name of the function.

        name: What the user called it.

        cell: The number of the cell; None outside of a notebook.
    """

    text: str
    name: str | None = None
    cell: int | None = None

    @property
    def title(self) -> str:
        """The name, or the first line."""
        first = next((line for line in self.text.splitlines() if line.strip()), "")
        return self.name or first.strip()


@dataclass(frozen=True)
class SyncCall(Record):
    """A call that made the host wait for a device, or could have.

    Attributes:
        what: The call in the user's words: `.item()`, `copy to the host`.

        line: Where the user's code made it; None if it did not come from there.

        waited_s: How long the host stood still; None where it cannot be told.

        ended_ns: When the host went on, by the clock of the runtime.
    """

    what: str
    line: CodeLine | None
    waited_s: float | None = None
    ended_ns: int | None = None


@dataclass(frozen=True)
class SeenRace(Record):
    """Two accesses of the same memory that nothing orders.

    Attributes:
        problem: What is wrong, with both places, in one sentence.

        hint: What to type, and where.

        earlier: The line of the access that was made first.

        later: The line of the access that does not wait for it.
    """

    problem: str
    hint: str
    earlier: CodeLine | None = None
    later: CodeLine | None = None


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
class TraceSpan(Record):
    """Something that took time, on the host or on a device.

    Attributes:
        name: The kernel, the copy, the operation or the call.

        kind: What it is.

        start_s: When it began, counted from the beginning of what was traced.

        end_s: When it ended.

        device: Which device did it; None for the host.

        stream: Which stream of the device, as its owner numbers them.

        thread: Which thread of the host; 0 is the one that ran the code.

        nbytes: How much was copied, where that is known.

        launched_s: Since when it was in the queue of its stream, where a call of its
            own put it there; the kernels of a graph have no such call.

        forward: The number of the node of autograd whose backward launched it.

        bound: What it spends its time on, in words, where a model knows: `bandwidth`,
            `too few tiles: 16 for 108 multiprocessors`.
    """

    name: str
    kind: SpanKind
    start_s: float
    end_s: float
    device: int | None = None
    stream: int | None = None
    thread: int | None = None
    nbytes: int | None = None
    launched_s: float | None = None
    forward: int | None = None
    bound: str | None = None


@dataclass(frozen=True, slots=True)
class OperatorTime(Record):
    """What an operator of torch took on the host, all its calls together.

    Attributes:
        name: As torch calls it, such as `aten::addmm`.

        count: How often it was called, by the code or by other operators.

        total_s: From its beginning to its end.

        self_s: The same without the operators that it has called.
    """

    name: str
    count: int
    total_s: float
    self_s: float


@dataclass(frozen=True)
class Trace(Record):
    """What host and devices did, from all idle to all idle.

    Attributes:
        spans: In order of their beginning.

        length_s: How long it took altogether, on the clock of the spans.

        problem: Why devices are missing from it, if they are.

        hint: What to do about it.

        operators: What the operators took on the host, the dearest by themselves
            first; none where the host is not traced.
    """

    spans: tuple[TraceSpan, ...]
    length_s: float
    problem: str | None = None
    hint: str | None = None
    operators: tuple[OperatorTime, ...] = ()


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
        merged: list[Interval] = []
        for start_s, end_s in sorted(map(self.cut, spans)):
            if merged and start_s <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(merged[-1][1], end_s)
            else:
                merged.append((start_s, end_s))
        return merged


class _Timed(Protocol):
    @property
    def start_s(self) -> float: ...
    @property
    def end_s(self) -> float: ...


_T = TypeVar("_T", bound=_Timed)


def stretches(spans: Sequence[_T], shortest_s: float) -> Iterator[list[_T]]:
    """The spans of one lane in groups: a long one alone, short ones by the stretch.

    Args:
        spans: One after the other.

        shortest_s: How long a span is that stands alone, and how long a stretch.
    """
    short: list[_T] = []
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


class Piece(NamedTuple):
    """A span that is not worth a record yet, as there may be very many."""

    name: str
    kind: SpanKind
    start_s: float
    end_s: float


def pooled(pieces: Sequence[Piece], most: int) -> list[Piece]:
    """About so many pieces at most, that keep a lane as busy as it was, and where.

    The short ones of a stretch become one for each kind, as long as they were together.
    What was exact stays so where there are few.

    Args:
        pieces: Of one lane, so one after the other.

        most: How many there may be.
    """
    if len(pieces) <= most:
        return list(pieces)
    length_s = pieces[-1].end_s - pieces[0].start_s
    groups = stretches(pieces, length_s * len(SpanKind) / most)
    return [piece for group in groups for piece in _one_of_each(group)]


def _one_of_each(group: Sequence[Piece]) -> Iterator[Piece]:
    if len(group) == 1:
        yield group[0]
        return
    at_s = group[0].start_s
    for kind in dict.fromkeys(piece.kind for piece in group):
        its = [piece for piece in group if piece.kind is kind]
        seconds = sum(piece.end_s - piece.start_s for piece in its)
        names = {piece.name for piece in its}
        name = names.pop() if len(names) == 1 else f"{len(names)} names"
        yield Piece(name, kind, at_s, at_s + seconds)
        at_s += seconds


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
