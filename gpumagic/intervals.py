"""Sums over the spans of a trace: each moment counts once, whatever ran at the time."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpumagic.observed import TraceSpan

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
