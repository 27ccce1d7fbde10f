"""The kit that every view is made of: a report's parts, as HTML and as text.

Imported by views only, and so only when something is about to be displayed:
loading the extension must not pay for rich.
"""

from __future__ import annotations

from gpumagic.drawing import rich_import  # noqa: F401 -- before all that use rich

# isort: split
from gpumagic.drawing.areas import Areas, Layer
from gpumagic.drawing.bars import Bar, BarPair, Stack, Stacks
from gpumagic.drawing.cells import Badge, Cell, Key, Meter
from gpumagic.drawing.distributions import Histogram, Range, Ranges
from gpumagic.drawing.document import (
    Details,
    Drawing,
    Note,
    NoteKind,
    NoteText,
    Paragraph,
    Part,
    how_measured,
    one_screen,
)
from gpumagic.drawing.palette import Tone
from gpumagic.drawing.progress import Progress
from gpumagic.drawing.series import Curve, Plane, Sparkline
from gpumagic.drawing.strips import Piece, StripRow, Strips
from gpumagic.drawing.table import Column, Grid, Property, Table
from gpumagic.drawing.timeline import Lane, Span, Timeline
from gpumagic.drawing.tree import AllLevels, Branch, Tree

__all__ = [
    "AllLevels",
    "Areas",
    "Badge",
    "Bar",
    "BarPair",
    "Branch",
    "Cell",
    "Column",
    "Curve",
    "Details",
    "Drawing",
    "Grid",
    "Histogram",
    "Key",
    "Lane",
    "Layer",
    "Meter",
    "Note",
    "NoteKind",
    "NoteText",
    "Paragraph",
    "Part",
    "Piece",
    "Plane",
    "Progress",
    "Property",
    "Range",
    "Ranges",
    "Span",
    "Sparkline",
    "Stack",
    "Stacks",
    "StripRow",
    "Strips",
    "Table",
    "Timeline",
    "Tone",
    "Tree",
    "how_measured",
    "one_screen",
]
