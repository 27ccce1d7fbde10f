"""The kit that every view is made of: a report's parts, as HTML and as text.

Imported by views only, and so only when something is about to be displayed:
loading the extension must not pay for rich. A picture is imported by the first view
that has one, since each costs a millisecond or two of the first answer.
"""

from __future__ import annotations

import importlib
import random
from typing import TYPE_CHECKING, Any

try:
    # On its import rich takes a number from Python's own generator: whoever has called
    # `random.seed(0)` would get other numbers from the first report on.
    _state = random.getstate()
    import rich.style  # noqa: F401 -- it is this module that takes the number
finally:
    random.setstate(_state)

from gpumagic.drawing.document import (
    Details,
    Drawing,
    Note,
    NoteKind,
    Paragraph,
    Part,
    how_measured,
    one_screen,
)
from gpumagic.drawing.palette import Tone
from gpumagic.drawing.table import (
    Badge,
    Cell,
    Column,
    Grid,
    Key,
    Meter,
    Property,
    Table,
)

if TYPE_CHECKING:
    from gpumagic.drawing.curves import Areas, Curve, Histogram, Layer
    from gpumagic.drawing.progress import Progress
    from gpumagic.drawing.spans import (
        Extent,
        Extents,
        Piece,
        Stack,
        Stacks,
        StripRow,
        Strips,
    )
    from gpumagic.drawing.timeline import Lane, Span, Timeline
    from gpumagic.drawing.tree import Branch, Tree

__all__ = [
    "Areas",
    "Badge",
    "Branch",
    "Cell",
    "Column",
    "Curve",
    "Details",
    "Drawing",
    "Extent",
    "Extents",
    "Grid",
    "Histogram",
    "Key",
    "Lane",
    "Layer",
    "Meter",
    "Note",
    "NoteKind",
    "Paragraph",
    "Part",
    "Piece",
    "Progress",
    "Property",
    "Span",
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

_PARTS_OF = {
    "curves": "Areas Curve Histogram Layer",
    "progress": "Progress",
    "spans": "Extent Extents Piece Stack Stacks StripRow Strips",
    "timeline": "Lane Span Timeline",
    "tree": "Branch Tree",
}
_HOMES = {part: home for home, parts in _PARTS_OF.items() for part in parts.split()}


def __getattr__(name: str) -> Any:
    """A part of a picture is imported when a view asks for it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    part = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = part  # from now on it is found at once
    return part
