"""Text as a console draws it: cleaned, encodable, laid out in columns."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from rich.text import Text

from gpumagic.drawing.clean import clean
from gpumagic.drawing.glue import glued, loose

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, ConsoleOptions

GAP = "  "


def ink(text: str, options: ConsoleOptions, style: str = "") -> Text:
    """The text in characters that this console can encode."""
    encoding = options.encoding
    shown = clean(text).encode(encoding, "replace").decode(encoding)
    return Text(shown, style=style, overflow="fold")


def side_by_side(
    cells: Sequence[Text],
    widths: Sequence[int],
    console: Console,
    *,
    right: Sequence[bool] = (),
) -> Iterator[Text]:
    """One row of cells as lines: each cell wrapped in its width, nothing cut."""
    columns = [
        _wrapped(cell, width, console)
        for cell, width in zip(cells, widths, strict=True)
    ]
    for pieces in zip_longest(*columns):
        line = Text(overflow="fold")
        for place, (piece, width) in enumerate(zip(pieces, widths, strict=True)):
            shown = piece or Text()
            shown.rstrip()
            shown.align("right" if right and right[place] else "left", width)
            line.append(GAP if place else "").append_text(shown)
        line.rstrip()
        yield line


def _wrapped(cell: Text, width: int, console: Console) -> list[Text]:
    whole = cell.copy()
    whole.plain = glued(cell.plain)
    lines = list(whole.wrap(console, width, overflow="fold"))
    for line in lines:
        line.plain = loose(line.plain)
    return lines


def underline(widths: Sequence[int], rule: str) -> Text:
    """A rule under each column."""
    return Text(GAP.join(rule * width for width in widths))
