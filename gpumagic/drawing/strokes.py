"""The spans of a lane on a line of pixels or characters, one by one or as heights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpumagic.drawing.spans import Lane, Scale


@dataclass(frozen=True)
class Stroke:
    """Where one span is drawn."""

    left: int
    right: int
    kind: str
    label: str = ""

    @property
    def width(self) -> int:
        """At least one: what happened can be seen, however short it was."""
        return self.right - self.left


def strokes(lane: Lane, scale: Scale, width: int) -> list[Stroke]:
    """The spans of a lane one by one, on a line of that width."""
    drawn = []
    for span in lane.drawn:
        left = min(int(scale.place(span.start_s, width)), width - 1)
        right = min(max(round(scale.place(span.end_s, width)), left + 1), width)
        drawn.append(Stroke(left, right, span.kind, span.label))
    return drawn


def heights(
    lane: Lane, scale: Scale, columns: int, kinds: Iterable[str]
) -> dict[str, list[float]]:
    """The share of each column's time that a kind was running.

    This is how a lane is drawn whose spans are finer than the line: one by one
    they would cover each other, and a lane that idles half of the time would
    look busy.
    """
    shares = {kind: [0.0] * columns for kind in kinds}
    for span in lane.drawn:
        start, end = (scale.place(at, columns) for at in (span.start_s, span.end_s))
        for column in range(int(start), min(math.ceil(end), columns)):
            overlap = min(end, column + 1) - max(start, column)
            shares[span.kind][column] += overlap
    return shares


def stacked(shares: dict[str, list[float]]) -> dict[str, list[float]]:
    """For each kind the heights of it and of all kinds before it, one at most."""
    below: list[float] | None = None
    tops = {}
    for kind, its in shares.items():
        sums = its if below is None else list(map(sum, zip(its, below, strict=True)))
        below = tops[kind] = [min(height, 1.0) for height in sums]
    return tops
