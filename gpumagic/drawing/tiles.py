"""A matrix of tiles: a picture of few shapes in HTML, characters in text.

A picture cannot know the theme around it, so it brings a fill for all of its text. A
shape for each fill, and a group for each colour of text, keep a picture at a third of
what a shape for each tile would take.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.drawing.html import (
    INSET,
    Html,
    element,
    escape,
    image,
    picture,
    texts,
    words,
)
from gpumagic.drawing.ink import GAP, clean, ink, side_by_side, widest
from gpumagic.drawing.palette import GREY, text_on
from gpumagic.drawing.table import INDENT, caption_ink, indented
from gpumagic.report.units import shortened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

# What text stands on that belongs to no element, and what headings stand on.
LIGHT, HEAD = "#E0E0E0", "#595959"

_WIDTH, _LETTER, _PADDING, _NARROWEST = 720, 6.6, 10, 26
_HIGH, _BETWEEN = 20, 6
_MOST_NAME = 28

# What a console without these characters is shown in their place.
_IN_ASCII = str.maketrans({"\N{MULTIPLICATION SIGN}": "x", "\N{MIDDLE DOT}": "."})


class Tile(NamedTuple):
    """One cell of a figure; without text and fill it is not drawn."""

    text: str = ""
    fill: str = ""  # of an element


BLANK = Tile()
UNUSED = Tile("\N{MIDDLE DOT}")
SKIPPED = Tile("...")


class Row(NamedTuple):
    """Tiles beside each other, and what stands before them."""

    name: str
    tiles: tuple[Tile, ...]


def pieces(widths: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Where to cut columns that do not fit: into few pieces, if possible alike.

    A column that is too wide for the room has a piece of its own.

    >>> pieces([30] * 24, 660)
    [(0, 12), (12, 24)]
    """
    starts = [0]
    for number in range(1, len(widths)):
        if sum(widths[starts[-1] : number + 1]) > room:
            starts.append(number)
    each = -(-len(widths) // len(starts))
    alike = list(range(0, len(widths), each))
    for cuts in (alike, starts):
        found = list(zip(cuts, [*cuts[1:], len(widths)], strict=True))
        if all(sum(widths[start:stop]) <= room for start, stop in found):
            return found
    return found


@dataclass(frozen=True)
class Figure:
    """Rows of tiles under common headings."""

    caption: str  # what a tile is
    corner: str  # what the headings are; stands before them
    heads: tuple[str, ...]  # one for each column; all may be empty
    rows: tuple[Row, ...]  # from top to bottom, one tile for each column
    keys: tuple[str, ...] = ()  # how to read it, and what is not drawn

    def _lines(self) -> list[list[Tile]]:
        """All that is drawn: each row behind its name, below the headings."""
        lines = [[Tile(row.name, HEAD), *row.tiles] for row in self.rows]
        if any(self.heads):
            lines.insert(0, [Tile(head, HEAD) for head in (self.corner, *self.heads)])
        return lines

    def html(self) -> Html:
        """Caption, picture, and how to read it."""
        drawn, width, height = self._svg()
        legend = "; ".join(self.keys)
        alt = ". ".join(filter(None, (self.caption, legend)))
        return element(
            "p",
            element("strong", words(self.caption), style="font-weight:600"),
            element("br"),
            image(drawn, alt, width, height),
            *((element("br"), words(legend)) if legend else ()),
            style=f"margin:0 0 .9em {INSET};line-height:1.8",
        )

    def _svg(self) -> tuple[str, int, int]:
        """The picture, its width and its height."""
        # A name is as short as a picture needs it; the text has it whole.
        lines = [
            [Tile(shortened(clean(name.text), _MOST_NAME), HEAD), *tiles]
            for name, *tiles in self._lines()
        ]
        first, *wide = (
            max(_NARROWEST * bool(at), *(_room(tile.text) for tile in column))
            for at, column in enumerate(zip(*lines, strict=True))
        )
        boxes: dict[str, list[str]] = defaultdict(list)
        labels: dict[str, list[Html]] = defaultdict(list)
        right, top = 0, 1
        for start, stop in pieces(wide, _WIDTH - first):
            for name, *tiles in lines:
                left = 1
                widths = (first, *wide[start:stop])
                for tile, width in zip((name, *tiles[start:stop]), widths, strict=True):
                    fill = tile.fill or LIGHT
                    if tile.text:
                        boxes[fill].append(f"M{left} {top}h{width}v{_HIGH}h-{width}z")
                        x, y = left + width // 2, top + _HIGH // 2 + 4
                        text = element("text", escape(tile.text), x=x, y=y)
                        labels[text_on(fill)].append(text)
                    left += width
                right, top = max(right, left), top + _HIGH
            top += _BETWEEN
        shapes = [
            element("path", d="".join(data), fill=fill, stroke=GREY)
            for fill, data in boxes.items()
        ]
        shapes += (texts(each, colour) for colour, each in labels.items())
        width, height = right + 1, top - _BETWEEN + 1
        return picture(width, height, self.caption, *shapes), width, height

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from caption_ink(self.caption, options)
        room = options.max_width - INDENT
        lines = [[_tile_ink(each, options) for each in line] for line in self._lines()]
        first, *wide = (
            widest(cell.plain for cell in column) for column in zip(*lines, strict=True)
        )
        first = min(first, max(room // 3, 1))
        left = max(room - first - len(GAP), 1)
        wide = [min(width, left) for width in wide]
        right = [False, *(True for _ in wide)]
        with_gaps = [width + len(GAP) for width in wide]
        for start, stop in pieces(with_gaps, left + len(GAP)):
            widths = (first, *wide[start:stop])
            for name, *tiles in lines:
                cells = (name, *tiles[start:stop])
                drawn = side_by_side(cells, widths, console, right=right)
                yield from map(indented, drawn)
        for said in self.keys:
            yield indented(_tile_ink(Tile(said), options, ""))


def _room(text: str) -> int:
    return max(_NARROWEST, round(len(text) * _LETTER) + _PADDING) if text else 0


def _tile_ink(tile: Tile, options: ConsoleOptions, style: str = "dim") -> Text:
    """A tile in characters that this console can encode."""
    text = tile.text.translate(_IN_ASCII) if options.ascii_only else tile.text
    is_element = tile.fill not in ("", HEAD)
    return ink(
        text, options, f"{text_on(tile.fill)} on {tile.fill}" if is_element else style
    )
