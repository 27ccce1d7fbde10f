"""What stands round a picture: axes, what its colours mean, what the pointer is told.

A notebook that nobody trusts keeps neither `<svg>` nor the names that image maps are
found by, but it keeps `title`. So a row of empty boxes lies over the picture, as wide
as what they tell of; where styles are stripped, they are nothing.
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

from gpumagic.drawing.cells import Key
from gpumagic.drawing.html import INSET, WIDEST_EM, Html, element, words
from gpumagic.drawing.ink import GAP, clean, ink
from gpumagic.report.units import shortened

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import ConsoleOptions

    from gpumagic.drawing.palette import Swatch

    Entry = tuple[Swatch, str]

_LONGEST_TITLE = 100


class Hover(NamedTuple):
    """A stretch of a picture, in pixels, and what it tells; nothing if empty."""

    left: int
    right: int
    title: str


def hovers_html(hovers: Iterable[Hover], width: int, height: int) -> Html:
    """The boxes, side by side over the picture of this size that stands before them."""
    boxes, at = [], 0
    for left, right, title in hovers:
        if left > at:
            boxes.append(_box("", left - at))
        boxes.append(_box(shortened(clean(title), _LONGEST_TITLE), right - left))
        at = right
    if not boxes:
        return Html("")
    if at < width:
        boxes.append(_box("", width - at))
    # Boxes that share the room are as wide as the picture, however wide that is.
    style = f"display:flex;height:{height}px;margin-top:-{height}px"
    return element("div", *boxes, style=style)


def _box(title: str, share: int) -> Html:
    return element("span", title=title, style=f"flex:{share}")


def axis_html(marks: Iterable[str]) -> Html:
    """What a picture is measured by: its beginning, its middle and its end."""
    spans = (element("span", words(mark)) for mark in marks)
    style = "display:flex;justify-content:space-between;font-weight:normal"
    return element("div", Html(" ".join(spans)), style=style)


def axis_ink(marks: Iterable[str], width: int, options: ConsoleOptions) -> Text:
    """The same in so many characters."""
    first, *rest = (ink(mark, options).plain for mark in marks)
    row = first
    if rest:
        *middle, last = rest
        room = max(width - len(first) - len(last), 0)
        row = f"{first}{' '.join(middle):^{room}}{last}"
        row = row if len(row) <= width else f"{first} to {last}"
    return Text(row, overflow="fold")


def foot_html(legend: Iterable[Entry], remarks: Iterable[str], *last: str) -> Html:
    """What the colours mean, and a line for each remark."""
    keys = " &nbsp; ".join((*(Key(*each).html() for each in legend), *map(words, last)))
    said = [line for line in (keys, *map(words, remarks)) if line]
    style = f"margin:0 0 .9em {INSET};max-width:{WIDEST_EM}em"
    return element("p", Html("<br/>".join(said)), style=style) if said else Html("")


def foot_ink(
    legend: Iterable[Entry],
    remarks: Iterable[str],
    options: ConsoleOptions,
    *last: str,
) -> Iterator[Text]:
    """The same as lines of text."""
    keys = (Key(*each).ink(options) for each in legend)
    yield from in_lines((*keys, *(ink(text, options) for text in last)), options)
    for remark in remarks:
        yield ink(remark, options)


def in_runs(characters: Iterable[tuple[str, str]]) -> Text:
    """Characters with a style each, as few pieces: rich draws piece by piece."""
    text = Text()
    for style, run in groupby(characters, key=itemgetter(1)):
        text.append("".join(character for character, _ in run), style)
    return text


def in_lines(entries: Iterable[Text], options: ConsoleOptions) -> Iterator[Text]:
    """As many to a line as it has room for."""
    line = Text(overflow="fold")
    for entry in entries:
        if line and line.cell_len + len(GAP) + entry.cell_len > options.max_width:
            yield line
            line = Text(overflow="fold")
        line = line.append(GAP if line else "").append_text(entry)
    if line:
        yield line
