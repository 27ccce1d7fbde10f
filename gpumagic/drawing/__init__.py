"""The kit that every view is made of: a report's parts, as HTML and as text.

Imported by views only, and so only when something is about to be displayed:
loading the extension must not pay for rich.
"""

from __future__ import annotations

from gpumagic.drawing import rich_import  # noqa: F401 -- before all that use rich

# isort: split
from gpumagic.drawing.badge import Badge
from gpumagic.drawing.bars import Bar, BarPair
from gpumagic.drawing.cell import Cell
from gpumagic.drawing.details import Details
from gpumagic.drawing.document import Drawing
from gpumagic.drawing.grid import Grid
from gpumagic.drawing.histogram import Histogram
from gpumagic.drawing.meter import Meter
from gpumagic.drawing.note import Note, NoteKind
from gpumagic.drawing.paragraph import Paragraph
from gpumagic.drawing.part import Part
from gpumagic.drawing.plane import Plane
from gpumagic.drawing.progress import Progress
from gpumagic.drawing.ranges import Range, Ranges
from gpumagic.drawing.spans import Lane, Span
from gpumagic.drawing.sparkline import Sparkline
from gpumagic.drawing.stacks import Stack, Stacks
from gpumagic.drawing.strips import Piece, StripRow, Strips
from gpumagic.drawing.table import Column, Table
from gpumagic.drawing.timeline import Timeline
from gpumagic.drawing.tone import Tone

__all__ = [
    "Badge",
    "Bar",
    "BarPair",
    "Cell",
    "Column",
    "Details",
    "Drawing",
    "Grid",
    "Histogram",
    "Lane",
    "Meter",
    "Note",
    "NoteKind",
    "Paragraph",
    "Part",
    "Piece",
    "Plane",
    "Progress",
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
]
