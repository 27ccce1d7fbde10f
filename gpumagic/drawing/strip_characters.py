"""A row of pieces as characters: heights where one holds several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from gpumagic.drawing.lanes import KIND_FILLS
from gpumagic.drawing.strip_rows import coverage, fine_cells

if TYPE_CHECKING:
    from gpumagic.drawing.glyphs import Glyphs
    from gpumagic.drawing.strip_rows import StripRow

_NEARLY_ALL = 0.999
_NEARLY_NONE = 0.001
_HALF = 0.5
_WITH_MARK = 3  # characters, so that one is to spare


def line_of(
    row: StripRow, scale: float, cells: int, kinds: tuple[str, ...], glyphs: Glyphs
) -> Text:
    """The row as so many characters at most: of each the kind that has most of it.

    Args:
        row: What is drawn.

        scale: Characters for each unit of size.

        cells: How many there are.

        kinds: In the order of their colours.

        glyphs: What is drawn with.
    """
    shares = coverage(row, scale, cells, kinds)
    fine = fine_cells(row, scale, cells, 1)
    top, line = len(glyphs.levels) - 1, Text()
    for cell in range(min(max(round(row.length * scale), 1), cells)):
        its = [shares[kind][cell] for kind in kinds]
        together = min(sum(its), 1.0)
        number = max(range(len(its)), key=its.__getitem__)
        if together < (_NEARLY_NONE if cell in fine else _HALF):
            line.append(glyphs.gap)
        elif cell in fine and together < _NEARLY_ALL:
            level = glyphs.levels[min(round(together * top), top - 1)]
            line.append(level, style=KIND_FILLS[number])
        else:
            line.append(glyphs.kinds[number], style=KIND_FILLS[number])
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
