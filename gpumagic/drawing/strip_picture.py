"""A row of pieces as shapes: heights where pieces are finer than a pixel."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from gpumagic.drawing import svg
from gpumagic.drawing.lanes import KIND_FILLS
from gpumagic.drawing.palette import TRACK
from gpumagic.drawing.strip_rows import coverage, fine_cells, levelled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.drawing.html import Html
    from gpumagic.drawing.strip_rows import StripRow

WIDTH, HEIGHT = 480, 18

# Heights in steps, so that a picture of thousands of pieces stays small.
_STEP_PX = 2
_NEARLY_ALL = 0.999

# A narrower piece is drawn by its share of the pixels round it.
_FINE_PX, _LEVEL_PX = 2, 8

# From here on there is a pixel to spare that sets it off from the next.
_WITH_HAIR_PX, _WITH_GAP_PX = 6, 6


def has_fine(row: StripRow, scale: float) -> bool:
    """Whether some pieces cannot be drawn one by one."""
    return bool(fine_cells(row, scale, WIDTH, _FINE_PX))


def shapes_of(row: StripRow, scale: float, kinds: tuple[str, ...]) -> Iterator[Html]:
    """The track, then the kinds upon each other; the highest is drawn first."""
    yield svg.path(_track(row, scale), TRACK)
    shares = coverage(row, scale, WIDTH, kinds)
    fine = fine_cells(row, scale, WIDTH, _FINE_PX)
    hairs = _hairs(row, scale)
    below, drawn = [0.0] * WIDTH, []
    for number, its in enumerate(shares.values()):
        if not any(its):
            continue
        own = levelled(its, fine, _LEVEL_PX)
        below = list(map(sum, zip(below, own, strict=True)))
        # Where there is none of it, what lies below needs no path of this colour.
        tops = [top if share else 0.0 for top, share in zip(below, own, strict=True)]
        drawn.append(svg.path(_outline(tops, hairs), KIND_FILLS[number]))
    yield from reversed(drawn)


def _track(row: StripRow, scale: float) -> str:
    """What the pieces lie on: a box for each stretch that is set off."""
    boxes = []
    for start, end in row.stretches(scale):
        left, right = round(start), max(round(end), round(start) + 1)
        gap = 2 if right - left >= _WITH_GAP_PX else 0
        boxes.append(f"M{left} 0h{right - left - gap}v{HEIGHT}H{left}z")
    return "".join(boxes)


def _hairs(row: StripRow, scale: float) -> set[int]:
    """The pixels that are left out between pieces that are wide enough."""
    hairs = set()
    for _, start, end in row.places(scale):
        if round(end) - round(start) >= _WITH_HAIR_PX:
            hairs.add(round(end) - 1)
    for start, end in row.stretches(scale):
        if round(end) - round(start) >= _WITH_GAP_PX:
            hairs.update((round(end) - 2, round(end) - 1))
    return hairs


def _outline(tops: list[float], hairs: set[int]) -> str:
    levels = (
        HEIGHT if pixel in hairs else HEIGHT - _height(top)
        for pixel, top in enumerate(tops)
    )
    steps = (f"V{level}h{len(list(run))}" for level, run in groupby(levels))
    return f"M0 {HEIGHT}{''.join(steps)}V{HEIGHT}z"


def _height(share: float) -> int:
    """In steps; what is there at all can be seen, and what is not full as well."""
    if share <= 0 or share >= _NEARLY_ALL:
        return 0 if share <= 0 else HEIGHT
    step = round(share * HEIGHT / _STEP_PX) * _STEP_PX
    return min(max(step, _STEP_PX), HEIGHT - _STEP_PX)
