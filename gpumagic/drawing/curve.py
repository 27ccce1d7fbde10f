"""A series of values as characters and as a line; gaps stay gaps."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from gpumagic.drawing import svg

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpumagic.drawing.html import Html

Points = list[float | None]

# The line is two wide; a margin keeps its extremes inside the picture.
_MARGIN = 2.0


def peaks(points: Sequence[float | None], most: int) -> Points:
    """At most that many points, each the highest of its share: a peak is news."""
    if len(points) <= most:
        return list(points)
    cuts = [round(place * len(points) / most) for place in range(most + 1)]
    return [
        max((value for value in points[start:stop] if value is not None), default=None)
        for start, stop in pairwise(cuts)
    ]


def levels(points: Points, characters: str) -> str:
    """The points as one character each, by height."""
    top = len(characters) - 1
    heights = _heights(points)
    return "".join(
        " " if height is None else characters[round(height * top)] for height in heights
    ).rstrip()


def curve_svg(title: str, points: Points, width: int, height: int, colour: str) -> str:
    """The points as lines; one between two gaps is a dot."""
    drawn = _heights(peaks(points, width // 2))
    step = (width - 2 * _MARGIN) / max(len(drawn) - 1, 1)
    room = height - 2 * _MARGIN
    places = [
        (_MARGIN + number * step, None if at is None else _MARGIN + (1 - at) * room)
        for number, at in enumerate(drawn)
    ]
    runs = groupby(places, key=lambda place: place[1] is not None)
    shapes = [
        _shape([(x, y) for x, y in run if y is not None], colour)
        for known, run in runs
        if known
    ]
    return svg.picture(width, height, title, *shapes)


def _shape(run: list[tuple[float, float]], colour: str) -> Html:
    if len(run) == 1:
        return svg.circle(*run[0], colour)
    return svg.polyline(" ".join(f"{x:.0f},{y:.1f}" for x, y in run), colour)


def _heights(points: Points) -> Points:
    """Each point between the lowest (0) and the highest (1); a flat line is in mid."""
    known = [value for value in points if value is not None]
    lowest, highest = min(known, default=0.0), max(known, default=0.0)
    # Halved first: the distance of two huge values of either sign overflows.
    extent = highest / 2 - lowest / 2
    if not extent:
        return [None if value is None else 0.5 for value in points]
    return [
        None if value is None else (value / 2 - lowest / 2) / extent for value in points
    ]
