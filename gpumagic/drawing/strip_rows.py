"""A row of pieces on a line of pixels or characters, where many may share one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING

from rich.text import Text

from gpumagic.drawing import svg
from gpumagic.drawing.ink import clean
from gpumagic.drawing.lanes import Hover
from gpumagic.drawing.palette import TRACK, Swatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from gpumagic.drawing.html import Html
    from gpumagic.drawing.ink import Glyphs

_FURTHEST = 1e100
_HALF = 0.5

_LEAST_PX = 3  # narrower ones are hard to point at
_LONGEST = 90
_ROUNDING_PX = 1e-3
_NEARLY_ALL = 0.999
_NEARLY_NONE = 0.001
_WITH_MARK = 3  # characters, so that one is to spare
WIDTH, HEIGHT = 480, 18
# Heights in steps, so that a picture of thousands of pieces stays small.
_STEP_PX = 2
# A narrower piece is drawn by its share of the pixels round it.
_FINE_PX, _LEVEL_PX = 2, 8
# From here on there is a pixel to spare that sets it off from the next.
_WITH_HAIR_PX, _WITH_GAP_PX = 6, 6


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a row."""

    kind: str  # what it is; empty for what is not in use
    size: float  # how long it is
    name: str = ""  # what it belongs to, if anything
    # says all there is to it alone; asked only where that is drawn
    tell: Callable[[], str] | None = None
    starts: bool = False  # whether something new begins with it that is to be set off


@dataclass(frozen=True)
class StripRow:
    """Pieces one behind the other."""

    label: str  # what they belong to; may be empty where it is the one above
    pieces: tuple[Piece, ...]  # from left to right
    text: str  # the row as it is read, in numbers

    @cached_property
    def drawn(self) -> list[Piece]:
        """The pieces that have a size."""
        return [piece for piece in self.pieces if 0 < piece.size < _FURTHEST]

    @property
    def length(self) -> float:
        """All pieces together."""
        return sum(piece.size for piece in self.drawn)

    def stretches(self, scale: float) -> Iterator[tuple[float, float]]:
        """From where to where there is no piece that is to be set off."""
        start = end = 0.0
        for piece, left, right in self.places(scale):
            if piece.starts and left > start:
                yield start, left
                start = left
            end = right
        yield start, end

    def places(self, scale: float) -> Iterator[tuple[Piece, float, float]]:
        """Each piece with where it begins and ends, where one unit is `scale` long."""
        at = 0.0
        for piece in self.drawn:
            end = at + piece.size * scale
            yield piece, at, end
            at = end


def coverage(
    row: StripRow, scale: float, cells: int, kinds: Iterable[str]
) -> dict[str, list[float]]:
    """Of each cell of the line the share that each kind covers."""
    shares = {kind: [0.0] * cells for kind in kinds}
    for piece, start, end in row.places(scale):
        its = shares.get(piece.kind)
        if its is None:
            continue
        first, last = int(start), min(math.ceil(end), cells)
        for cell in range(first, last):
            its[cell] += min(end, cell + 1) - max(start, cell)
    return shares


def fine_cells(row: StripRow, scale: float, cells: int, least: float) -> set[int]:
    """The cells in which lies a piece that is narrower than `least` of them."""
    fine: set[int] = set()
    for _, start, end in row.places(scale):
        if end - start < least:
            first = min(int(start), cells - 1)
            fine.update(range(first, min(max(int(end), first) + 1, cells)))
    return fine


def levelled(shares: list[float], fine: set[int], width: int) -> list[float]:
    """The shares as heights: all or nothing, but evenly over groups of fine cells."""
    heights = [1.0 if share >= _HALF else 0.0 for share in shares]
    for group in {cell // width for cell in fine}:
        cells = range(group * width, min((group + 1) * width, len(shares)))
        mean = sum(shares[cell] for cell in cells) / len(cells)
        for cell in cells:
            heights[cell] = mean
    return heights


def of_pieces(
    row: StripRow, scale: float, most: int, told: Callable[[list[Piece]], str]
) -> Iterator[Hover]:
    """Boxes of whole pixels over the row; what is narrow shares one."""
    width = row.length * scale
    least = max(width / most, _LEAST_PX)
    left = 0
    held: list[Piece] = []
    for piece, start, end in row.places(scale):
        # A wide piece is told alone, whatever narrow ones lie before it.
        if held and end - start >= least and int(start) > left:
            yield Hover(left, int(start), _shortened(told(held)))
            left, held = int(start), []
        held.append(piece)
        if end - left >= least and math.floor(end) > left:
            yield Hover(left, math.floor(end), _shortened(told(held)))
            left, held = math.floor(end), []
    right = math.ceil(width - _ROUNDING_PX)
    if held and right > left:
        yield Hover(left, right, _shortened(told(held)))


def _shortened(title: str) -> str:
    title = clean(title)
    return title if len(title) <= _LONGEST else f"{title[: _LONGEST - 3]}..."


def line_of(
    row: StripRow, scale: float, cells: int, kinds: Mapping[str, Swatch], glyphs: Glyphs
) -> Text:
    """The row as so many characters at most: of each the kind that has most of it."""
    shares = coverage(row, scale, cells, kinds)
    fine = fine_cells(row, scale, cells, 1)
    top, line = len(glyphs.levels) - 1, Text()
    for cell in range(min(max(round(row.length * scale), 1), cells)):
        its = [shares[kind][cell] for kind in kinds]
        together = min(sum(its), 1.0)
        swatch = kinds[max(kinds, key=lambda kind: shares[kind][cell])]
        if together < (_NEARLY_NONE if cell in fine else _HALF):
            line.append(glyphs.gap)
        elif cell in fine and together < _NEARLY_ALL:
            level = glyphs.levels[min(round(together * top), top - 1)]
            line.append(level, style=swatch.style)
        else:
            line.append(glyphs.of(swatch), style=swatch.style)
    return _set_off(line, row, scale)


def _set_off(line: Text, row: StripRow, scale: float) -> Text:
    """The line with a mark where something new begins that has room for it."""
    characters = list(line.plain)
    for start, end in row.stretches(scale):
        if int(start) and int(end) - int(start) >= _WITH_MARK:
            characters[int(start)] = "|"
    marked = Text("".join(characters))
    marked.spans = line.spans
    return marked


def has_fine(row: StripRow, scale: float) -> bool:
    """Whether some pieces cannot be drawn one by one."""
    return bool(fine_cells(row, scale, WIDTH, _FINE_PX))


def shapes_of(
    row: StripRow, scale: float, kinds: Mapping[str, Swatch]
) -> Iterator[Html]:
    """The track, then the kinds upon each other; the highest is drawn first."""
    yield svg.path(_track(row, scale), TRACK)
    shares = coverage(row, scale, WIDTH, kinds)
    fine = fine_cells(row, scale, WIDTH, _FINE_PX)
    hairs = _hairs(row, scale)
    below, drawn = [0.0] * WIDTH, []
    for kind, its in shares.items():
        if not any(its):
            continue
        own = levelled(its, fine, _LEVEL_PX)
        below = list(map(sum, zip(below, own, strict=True)))
        # Where there is none of it, what lies below needs no path of this colour.
        tops = [top if share else 0.0 for top, share in zip(below, own, strict=True)]
        drawn.append(svg.filled(_outline(tops, hairs), kinds[kind]))
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
