"""Stretches as bars under each other, all to one scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from gpumagic.drawing import svg
from gpumagic.drawing.html import Html, words
from gpumagic.drawing.ink import GAP, glyphs_for, ink, widest
from gpumagic.drawing.lanes import axis_html
from gpumagic.drawing.palette import BLUE, TRACK, WHITE
from gpumagic.drawing.table import INDENT, caption_ink, pictures_html, rows_ink

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_WIDTH, _HEIGHT, _LEAST, _PERCENT = 360, 14, 3, 90
_HOLES = 2


@dataclass(frozen=True)
class Extent:
    """One stretch."""

    name: str  # whose it is
    start: float  # where it begins
    stop: float  # where it ends; exclusive. Without a length nothing is drawn.
    dense: bool  # whether it is filled
    said: str  # the same in words


@dataclass(frozen=True)
class Extents:
    """Stretches of one line."""

    caption: str  # what the line is
    lanes: tuple[Extent, ...]  # from top to bottom
    total: float  # how long the line is
    ends: tuple[str, str]  # what stands at its two ends
    # what stands over the names and over the words
    heads: tuple[str, str] = ("name", "where")

    def html(self) -> Html:
        """A table with a picture for each lane."""
        name, said = map(words, self.heads)
        head = name, axis_html(self.ends), said
        rows = ((lane.name, self._picture(lane), lane.said) for lane in self.lanes)
        return pictures_html(self.caption, head, rows, size=_PERCENT)

    def _picture(self, lane: Extent) -> Html:
        left, right = self._reach(lane, _WIDTH, _LEAST)
        inside = _HEIGHT - 2
        shapes = [svg.path(f"M0 0h{_WIDTH}v{_HEIGHT}h-{_WIDTH}z", TRACK)]
        if right > left:
            bar = f"M{left} 1h{right - left}v{inside}h-{right - left}z"
            shapes.append(svg.path(bar, BLUE))
        places = () if lane.dense else range(left + 3, right - 2, 6)
        if holes := "".join(f"M{at} 1h2v{inside}h-2z" for at in places):
            shapes.append(svg.path(holes, WHITE))
        drawn = svg.picture(_WIDTH, _HEIGHT, lane.name, *shapes)
        return svg.image(drawn, f"{lane.name}: {lane.said}", _WIDTH, _HEIGHT)

    def _reach(self, lane: Extent, width: int, least: int) -> tuple[int, int]:
        """Where the lane begins and ends on a line; never less than a mark."""
        if lane.stop <= lane.start:
            return 0, 0
        total = self.total or 1
        left = min(int(lane.start * width // total), width - least)
        right = int(-(-lane.stop * width // total))
        return left, min(max(right, left + least), width)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from caption_ink(self.caption, options)
        names = [ink(lane.name, options) for lane in self.lanes]
        said = [ink(lane.said, options) for lane in self.lanes]
        room = options.max_width - INDENT - 2 * len(GAP)
        name = min(widest(text.plain for text in names), max(room // 4, 1))
        told = min(widest(text.plain for text in said), max(room // 3, 1))
        width, glyphs = room - name - told, glyphs_for(options)
        bars = []
        for lane in self.lanes:
            left, right = self._reach(lane, width, 1)
            mark = glyphs.kinds[0 if lane.dense else _HOLES]
            bar = glyphs.gap * left + mark * (right - left)
            bars.append(Text(bar + glyphs.gap * (width - right)))
        first, last = self.ends
        axis = Text(f"{first}{last:>{max(width - len(first), 1)}}", overflow="fold")
        rows = [*zip(names, bars, said, strict=True), (Text(), axis, Text())]
        yield from rows_ink(rows, (name, width, told), console)
