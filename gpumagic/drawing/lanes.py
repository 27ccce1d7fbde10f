"""One lane of a timeline: as a row of HTML with a picture, and as characters."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from gpumagic.drawing import svg
from gpumagic.drawing.clean import clean
from gpumagic.drawing.hovers import hovers_html, of_stretches, of_strokes
from gpumagic.drawing.html import Html, unbroken, words
from gpumagic.drawing.palette import FILLS, GREY, TRACK, text_on
from gpumagic.drawing.strokes import heights, stacked, strokes
from gpumagic.drawing.tabular import cell_of, row_html

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpumagic.drawing.glyphs import Glyphs
    from gpumagic.drawing.spans import Lane, Scale
    from gpumagic.drawing.strokes import Stroke

LINE_WIDTH = 480
_HEIGHT = 20
_COLUMN_WIDTH = 5
_MOST_STRETCHES = 24

KIND_FILLS = (*FILLS, GREY)
"""The colours of kinds; the last one is for all kinds beyond."""

# Generous for a letter of the label's font: what fits by this, fits.
_LETTER_WIDTH = 7

# From this width on, a stroke can spare a pixel that sets it off from the next.
_WITH_HAIR = 4

# A span and its gap need two characters to be seen apart.
_PITCH = 2


def lane_html(
    lane: Lane, scale: Scale, kinds: Mapping[str, int], *, stretches: int
) -> Html:
    """A row: the lane's name, its picture, how many spans it has, how busy it was.

    Args:
        lane: What is drawn.

        scale: The time that it is drawn against.

        kinds: The number of each kind's colour.

        stretches: Where spans are too fine to be drawn one by one: of how many
            stretches the pointer is told at most; else 0.
    """
    if stretches:
        shapes = _hills(lane, scale, kinds)
        count = min(stretches, _MOST_STRETCHES)
        hovers = of_stretches(lane, scale, LINE_WIDTH, count)
    else:
        shapes = _boxes(lane, scale, kinds)
        hovers = of_strokes(lane, scale, LINE_WIDTH)
    track = svg.path(f"M0 0h{LINE_WIDTH}v{_HEIGHT}h-{LINE_WIDTH}z", TRACK)
    picture = svg.picture(LINE_WIDTH, _HEIGHT, lane.name, track, *shapes)
    image = svg.image(picture, lane.words(scale), LINE_WIDTH, _HEIGHT)
    return row_html(
        words(lane.name),
        cell_of(Html(image + hovers_html(hovers, LINE_WIDTH, _HEIGHT))),
        cell_of(words(str(len(lane.drawn))), right=True),
        cell_of(unbroken(scale.share(lane)), right=True),
    )


def too_fine(lane: Lane, width: int) -> bool:
    """Whether so many characters cannot show the lane's spans one by one."""
    return len(lane.drawn) * _PITCH > width


def lane_ink(
    lane: Lane, scale: Scale, kinds: Mapping[str, int], width: int, glyphs: Glyphs
) -> Text:
    """The lane as a line of characters: a kind's own, or heights where too fine."""
    drawn = strokes(lane, scale, width)
    if too_fine(lane, width):
        return Text(_heights_text(lane, scale, kinds, width, glyphs))
    row = [glyphs.gap] * width
    for stroke in drawn:
        character = glyphs.kinds[kinds[stroke.kind]]
        row[stroke.left : stroke.right] = character * stroke.width
    line = Text("".join(row))
    for stroke in drawn:
        line.stylize(KIND_FILLS[kinds[stroke.kind]], stroke.left, stroke.right)
    return line


def _heights_text(
    lane: Lane, scale: Scale, kinds: Mapping[str, int], width: int, glyphs: Glyphs
) -> str:
    *_, total = stacked(heights(lane, scale, width, kinds)).values()
    top = len(glyphs.levels) - 1
    return "".join(glyphs.levels[round(at * top)] if at else glyphs.gap for at in total)


def _boxes(lane: Lane, scale: Scale, kinds: Mapping[str, int]) -> Iterator[Html]:
    drawn = strokes(lane, scale, LINE_WIDTH)
    for kind, number in kinds.items():
        data = "".join(_box(stroke) for stroke in drawn if stroke.kind == kind)
        if data:
            yield svg.path(data, KIND_FILLS[number])
    for stroke in drawn:
        label = clean(stroke.label)
        if label and cell_len(label) * _LETTER_WIDTH + 6 <= stroke.width:
            fill = text_on(KIND_FILLS[kinds[stroke.kind]])
            yield svg.words(label, stroke.left + 4, _HEIGHT - 6, fill)


def _box(stroke: Stroke) -> str:
    width = stroke.width - (1 if stroke.width >= _WITH_HAIR else 0)
    return f"M{stroke.left} 1h{width}v{_HEIGHT - 2}h-{width}z"


def _hills(lane: Lane, scale: Scale, kinds: Mapping[str, int]) -> Iterator[Html]:
    """The highest first: what is stacked below is then drawn over it."""
    columns = LINE_WIDTH // _COLUMN_WIDTH
    tops = stacked(heights(lane, scale, columns, kinds))
    used = {span.kind for span in lane.drawn}
    for kind, top in reversed(tops.items()):
        if kind in used:
            yield svg.path(_outline(top), KIND_FILLS[kinds[kind]])


def _outline(tops: list[float]) -> str:
    steps = (
        f"V{level}h{len(list(run)) * _COLUMN_WIDTH}"
        for level, run in groupby(_HEIGHT - round(top * _HEIGHT) for top in tops)
    )
    return f"M0 {_HEIGHT}{''.join(steps)}V{_HEIGHT}z"
