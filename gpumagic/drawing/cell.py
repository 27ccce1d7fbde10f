"""What may stand in a cell of a table or grid."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing.badge import Badge
from gpumagic.drawing.html import Html, unbroken, words
from gpumagic.drawing.ink import ink
from gpumagic.drawing.meter import Meter
from gpumagic.units import UNKNOWN

if TYPE_CHECKING:
    from rich.console import ConsoleOptions
    from rich.text import Text

Cell = str | Badge | Meter | None
"""None is what could not be found out; it is drawn as "unknown"."""


def cell_html(cell: Cell, *, number: bool = False) -> Html:
    """The cell's content as HTML; a number stays with its unit."""
    if cell is None:
        return words(UNKNOWN)
    if isinstance(cell, Badge | Meter):
        return cell.html()
    return unbroken(cell) if number else words(cell)


def cell_ink(cell: Cell, options: ConsoleOptions) -> Text:
    """The cell's content as console text."""
    if cell is None:
        return ink(UNKNOWN, options, "dim")
    if isinstance(cell, Badge | Meter):
        return cell.ink(options)
    return ink(cell, options)
