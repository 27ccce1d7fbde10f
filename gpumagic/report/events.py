"""What was seen to happen while a block of code ran, and sums over its spans.

In a sum each moment counts once, whatever ran at the time.

The records are made by `devices` and `simulator`, kept in reports, and drawn by
views; so they are part of the vocabulary that all of them share.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from gpumagic.report.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


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
    """

    what: str
    line: CodeLine | None
    waited_s: float | None = None


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
    bound: str | None = None


@dataclass(frozen=True)
class Trace(Record):
    """What host and devices did, from all idle to all idle.

    Attributes:
        spans: In order of their beginning.

        length_s: How long it took altogether, on the clock of the spans.

        problem: Why devices are missing from it, if they are.

        hint: What to do about it.
    """

    spans: tuple[TraceSpan, ...]
    length_s: float
    problem: str | None = None
    hint: str | None = None


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
