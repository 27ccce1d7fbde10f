"""What a row of pieces tells where the pointer rests on it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpumagic.drawing.clean import clean
from gpumagic.drawing.hovers import Hover

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.drawing.strip_rows import Piece, StripRow

_LEAST_PX = 3  # narrower ones are hard to point at
_LONGEST = 90
_ROUNDING_PX = 1e-3


def of_pieces(
    row: StripRow, scale: float, most: int, told: Callable[[list[Piece]], str]
) -> Iterator[Hover]:
    """Boxes of whole pixels over the row; what is narrow shares one.

    Args:
        row: What is drawn.

        scale: Pixels for each unit of size.

        most: How many boxes there may be.

        told: What is said of the pieces in one box.
    """
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
