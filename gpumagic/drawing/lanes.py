"""One lane of a timeline: its strokes, what the pointer is told, what its colours mean.

A notebook that nobody trusts keeps neither `<svg>` nor the names that image maps are
found by, but it keeps `title`. So a row of empty boxes lies over the picture, as wide
as what they tell of; where styles are stripped, they are nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from gpumagic.drawing import svg
from gpumagic.drawing.html import Html, element, label, unbroken, words
from gpumagic.drawing.ink import GAP, clean, glyphs_for, ink
from gpumagic.drawing.palette import TRACK, Swatch, text_on
from gpumagic.drawing.table import cell_of, row_html
from gpumagic.report.units import count_text, seconds_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rich.console import ConsoleOptions

    from gpumagic.drawing.ink import Glyphs
    from gpumagic.drawing.timeline import Lane, Scale, Span

_MOST_NAMES = 2
# Names of kernels run to hundreds of letters, and a table has them in full.
_LONGEST_NAME = 60
LINE_WIDTH = 480
_MOST_EM = 120  # as wide as the output
_HEIGHT = 20
_COLUMN_WIDTH = 5
_MOST_STRETCHES = 24
# Generous for a letter of the label's font: what fits by this, fits.
_LETTER_WIDTH = 7
# From this width on, a stroke can spare a pixel that sets it off from the next.
_WITH_HAIR = 4
# A span and its gap need two characters to be seen apart.
_PITCH = 2


@dataclass(frozen=True)
class Stroke:
    """Where one span is drawn."""

    left: int
    right: int
    kind: str
    label: str = ""

    @property
    def width(self) -> int:
        """At least one: what happened can be seen, however short it was."""
        return self.right - self.left


def strokes(lane: Lane, scale: Scale, width: int) -> list[Stroke]:
    """The spans of a lane one by one, on a line of that width."""
    drawn = []
    for span in lane.drawn:
        left = min(int(scale.place(span.start_s, width)), width - 1)
        right = min(max(round(scale.place(span.end_s, width)), left + 1), width)
        drawn.append(Stroke(left, right, span.kind, span.label))
    return drawn


def heights(
    lane: Lane, scale: Scale, columns: int, kinds: Iterable[str]
) -> dict[str, list[float]]:
    """The share of each column's time that a kind was running.

    This is how a lane is drawn whose spans are finer than the line: one by one
    they would cover each other, and a lane that idles half of the time would
    look busy.
    """
    shares = {kind: [0.0] * columns for kind in kinds}
    for span in lane.drawn:
        start, end = (scale.place(at, columns) for at in (span.start_s, span.end_s))
        for column in range(int(start), min(math.ceil(end), columns)):
            overlap = min(end, column + 1) - max(start, column)
            shares[span.kind][column] += overlap
    return shares


def stacked(shares: dict[str, list[float]]) -> dict[str, list[float]]:
    """For each kind the heights of it and of all kinds before it, one at most."""
    below: list[float] | None = None
    tops = {}
    for kind, its in shares.items():
        sums = its if below is None else list(map(sum, zip(its, below, strict=True)))
        below = tops[kind] = [min(height, 1.0) for height in sums]
    return tops


@dataclass(frozen=True)
class Hover:
    """A stretch of the lane, in pixels, and what it tells; nothing if empty."""

    left: int
    right: int
    title: str


def hovers_html(hovers: Iterable[Hover], width: int, height: int) -> Html:
    """The boxes, side by side over the picture of this size that stands before them."""
    hovers = list(hovers)
    boxes = [_title_box(each.title, each.right - each.left) for each in hovers]
    if not any("title=" in box for box in boxes):
        return Html("")
    if rest := width - max(each.right for each in hovers):
        boxes.append(_title_box("", rest))
    # Boxes that share the room are as wide as the picture, however wide that is.
    style = f"display:flex;height:{height}px;margin-top:-{height}px"
    return element("div", *boxes, style=style)


def _title_box(title: str, share: int) -> Html:
    return element("span", title=title, style=f"flex:{share}")


def of_strokes(lane: Lane, scale: Scale, width: int) -> Iterator[Hover]:
    """What each pixel of the line shows, where spans are drawn one by one."""
    owners: list[list[int]] = [[] for _ in range(width)]
    for number, stroke in enumerate(strokes(lane, scale, width)):
        for pixel in range(stroke.left, stroke.right):
            owners[pixel].append(number)
    left = 0
    for numbers, run in groupby(owners):
        right = left + len(list(run))
        yield Hover(left, right, _told([lane.drawn[at] for at in numbers], scale))
        left = right


def of_stretches(lane: Lane, scale: Scale, width: int, count: int) -> Iterator[Hover]:
    """What each of a few equal stretches holds, where spans are finer than the line."""
    held: list[list[Span]] = [[] for _ in range(count)]
    for span in lane.drawn:
        start, end = (scale.place(at, count) for at in (span.start_s, span.end_s))
        first = min(int(start), count - 1)
        for stretch in range(first, max(math.ceil(end), first + 1)):
            held[stretch].append(span)
    for number, spans in enumerate(held):
        left, right = (at * width // count for at in (number, number + 1))
        step_s = scale.length_s / count
        times = (scale.told(scale.start_s + step_s * at) for at in (number, number + 1))
        told = f"{' to '.join(times)}: {_counted(spans)}" if spans else ""
        yield Hover(left, right, told)


def _told(spans: Sequence[Span], scale: Scale) -> str:
    if len(spans) > 1:
        return _counted(spans)
    return "".join(
        f"{_name(span)}: {seconds_text(span.end_s - span.start_s)},"
        f" from {scale.told(span.start_s)} on"
        for span in spans
    )


def _counted(spans: Sequence[Span]) -> str:
    """How many there are, and which names took most of their time."""
    taken: Counter[str] = Counter()
    times: Counter[str] = Counter()
    for span in spans:
        name = _name(span)
        taken[name] += round((span.end_s - span.start_s) * 1e12)
        times[name] += 1
    shown = [name for name, _ in taken.most_common(_MOST_NAMES)]
    named = [name if times[name] == 1 else f"{times[name]} x {name}" for name in shown]
    if more := len(taken) - len(shown):
        named.append(count_text(more, "other name"))
    return f"{count_text(len(spans), 'span')}: {', '.join(named)}"


def _name(span: Span) -> str:
    name = clean(span.label or span.kind or "span")
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}..."


def axis_html(marks: Iterable[str]) -> Html:
    """What a picture is measured by: its beginning, its middle and its end."""
    spans = (element("span", words(mark)) for mark in marks)
    style = "display:flex;justify-content:space-between;font-weight:normal"
    return element("div", Html(" ".join(spans)), style=style)


def axis_text(marks: list[str], width: int) -> str:
    """The same in so many characters."""
    if len(marks) == 1:
        return marks[0]
    first, *middle, last = marks
    room = max(width - len(first) - len(last), 0)
    row = f"{first}{' '.join(middle):^{room}}{last}"
    return row if len(row) <= width else f"{first} to {last}"


def legend_html(said: Iterable[tuple[Swatch, str]]) -> Html:
    """A patch and its words for each kind, in a row.

    The patch is a picture like those that it explains: where a site takes colours
    from the page, it leaves them in pictures.
    """
    return Html(" &nbsp; ".join(_entry(swatch, text) for swatch, text in said))


def legend_ink(
    said: Iterable[tuple[Swatch, str]], options: ConsoleOptions, *last: str
) -> Iterator[Text]:
    """The same as lines of text, none of which breaks where another one could begin."""
    glyphs, line = glyphs_for(options), Text()
    entries = [
        Text.assemble((glyphs.of(swatch), swatch.style), " ", ink(text, options))
        for swatch, text in said
    ]
    for entry in (*entries, *(ink(text, options) for text in last)):
        if line and line.cell_len + len(GAP) + entry.cell_len > options.max_width:
            yield line
            line = Text()
        line = line.append(GAP if line else "").append_text(entry)
    if line:
        yield line


def _entry(swatch: Swatch, text: str) -> Html:
    """Patch and words; a browser would break the line between the two."""
    first, *rest = text.split(" ", 1)
    held = svg.patch(swatch) + Html("\N{NO-BREAK SPACE}") + words(first)
    begun = element("span", Html(held), style="white-space:nowrap")
    return Html(" ".join((begun, *map(words, rest))))


def lane_html(
    lane: Lane, scale: Scale, kinds: Mapping[str, Swatch], *, stretches: int
) -> Html:
    """A row: the lane's name, its picture, how busy it was."""
    if stretches:
        shapes = _hills(lane, scale, kinds)
        count = min(stretches, _MOST_STRETCHES)
        hovers = of_stretches(lane, scale, LINE_WIDTH, count)
    else:
        shapes = _boxes(lane, scale, kinds)
        hovers = of_strokes(lane, scale, LINE_WIDTH)
    track = svg.path(f"M0 0h{LINE_WIDTH}v{_HEIGHT}h-{LINE_WIDTH}z", TRACK)
    picture = svg.wide_picture(LINE_WIDTH, _HEIGHT, lane.name, track, *shapes)
    over = hovers_html(hovers, LINE_WIDTH, _HEIGHT)
    said = lane.words(scale)
    return row_html(
        label(lane.name),
        cell_of(
            svg.wide_image(picture, said, LINE_WIDTH, _HEIGHT, over, most_em=_MOST_EM)
        ),
        cell_of(unbroken(scale.share(lane)), right=True),
    )


def too_fine(lane: Lane, width: int) -> bool:
    """Whether so many characters cannot show the lane's spans one by one."""
    return len(lane.drawn) * _PITCH > width


def lane_ink(
    lane: Lane, scale: Scale, kinds: Mapping[str, Swatch], width: int, glyphs: Glyphs
) -> Text:
    """The lane as a line of characters: a kind's own, or heights where too fine."""
    drawn = strokes(lane, scale, width)
    if too_fine(lane, width):
        return Text(_heights_text(lane, scale, kinds, width, glyphs))
    row = [glyphs.gap] * width
    for stroke in drawn:
        character = glyphs.of(kinds[stroke.kind])
        row[stroke.left : stroke.right] = character * stroke.width
    line = Text("".join(row))
    for stroke in drawn:
        line.stylize(kinds[stroke.kind].style, stroke.left, stroke.right)
    return line


def _heights_text(
    lane: Lane, scale: Scale, kinds: Mapping[str, Swatch], width: int, glyphs: Glyphs
) -> str:
    *_, total = stacked(heights(lane, scale, width, kinds)).values()
    top = len(glyphs.levels) - 1
    return "".join(glyphs.levels[round(at * top)] if at else glyphs.gap for at in total)


def _boxes(lane: Lane, scale: Scale, kinds: Mapping[str, Swatch]) -> Iterator[Html]:
    drawn = strokes(lane, scale, LINE_WIDTH)
    for kind, swatch in kinds.items():
        data = "".join(_box(stroke) for stroke in drawn if stroke.kind == kind)
        if data:
            yield svg.filled(data, swatch)
    for stroke in drawn:
        name, swatch = clean(stroke.label), kinds[stroke.kind]
        # Letters can be read on a plain fill only.
        fits = cell_len(name) * _LETTER_WIDTH + 6 <= stroke.width
        if name and fits and not swatch.pattern:
            fill = text_on(swatch.fill)
            left, share = stroke.left / LINE_WIDTH, stroke.width / LINE_WIDTH
            yield svg.label(name, left, share, _HEIGHT - 6, fill)


def _box(stroke: Stroke) -> str:
    width = stroke.width - (1 if stroke.width >= _WITH_HAIR else 0)
    return f"M{stroke.left} 1h{width}v{_HEIGHT - 2}h-{width}z"


def _hills(lane: Lane, scale: Scale, kinds: Mapping[str, Swatch]) -> Iterator[Html]:
    """The highest first: what is stacked below is then drawn over it."""
    columns = LINE_WIDTH // _COLUMN_WIDTH
    tops = stacked(heights(lane, scale, columns, kinds))
    used = {span.kind for span in lane.drawn}
    for kind, top in reversed(tops.items()):
        if kind in used:
            yield svg.filled(_outline(top), kinds[kind])


def _outline(tops: list[float]) -> str:
    steps = (
        f"V{level}h{len(list(run)) * _COLUMN_WIDTH}"
        for level, run in groupby(_HEIGHT - round(top * _HEIGHT) for top in tops)
    )
    return f"M0 {_HEIGHT}{''.join(steps)}V{_HEIGHT}z"
