"""What a lane tells where the pointer rests on it.

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

from gpumagic.drawing.clean import clean
from gpumagic.drawing.html import Html, element
from gpumagic.drawing.strokes import strokes
from gpumagic.units import count_text, seconds_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpumagic.drawing.spans import Lane, Scale, Span

_MOST_NAMES = 2

# Names of kernels run to hundreds of letters, and a table has them in full.
_LONGEST_NAME = 60


@dataclass(frozen=True)
class Hover:
    """A stretch of the lane, in pixels, and what it tells; nothing if empty."""

    left: int
    right: int
    title: str


def hovers_html(hovers: Iterable[Hover], width: int, height: int) -> Html:
    """The boxes, side by side over the picture of this size that stands before them."""
    hovers = list(hovers)
    boxes = [_box(each.title, each.right - each.left) for each in hovers]
    if not any("title=" in box for box in boxes):
        return Html("")
    if rest := width - max(each.right for each in hovers):
        boxes.append(_box("", rest))
    # Boxes that share the room shrink with the picture, and let it shrink. Of a width
    # in pixels they would keep the table wide, and its last column off the paper.
    style = f"display:flex;max-width:{width}px;height:{height}px;margin-top:-{height}px"
    return element("div", *boxes, style=style)


def _box(title: str, share: int) -> Html:
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
        times = (
            seconds_text(scale.length_s * at / count) for at in (number, number + 1)
        )
        told = f"{' to '.join(times)}: {_counted(spans)}" if spans else ""
        yield Hover(left, right, told)


def _told(spans: Sequence[Span], scale: Scale) -> str:
    if len(spans) > 1:
        return _counted(spans)
    return "".join(
        f"{_name(span)}: {seconds_text(span.end_s - span.start_s)},"
        f" from {seconds_text(span.start_s - scale.start_s)} on"
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
