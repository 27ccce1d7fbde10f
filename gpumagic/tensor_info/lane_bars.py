"""Draws stretches as bars under each other, all to one scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from gpumagic.drawing import svg
from gpumagic.drawing.html import Html, words
from gpumagic.drawing.ink import GAP, glyphs_for, ink, side_by_side, widest
from gpumagic.drawing.lanes import axis_html
from gpumagic.drawing.palette import BLUE, TRACK, WHITE
from gpumagic.drawing.table import (
    INDENT,
    caption_ink,
    indented,
    pictures_html,
)

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_WIDTH, _HEIGHT = 360, 14
_LEAST, _PERCENT = 3, 90
_HOLES = 2


@dataclass(frozen=True)
class BarLane:
    """One stretch."""

    name: str  # whose it is
    start: float  # where it begins
    stop: float  # where it ends; exclusive. Without a length nothing is drawn.
    dense: bool | None  # whether it is filled; None if unknown
    said: str  # the same in words


@dataclass(frozen=True)
class LaneBars:
    """Stretches of one line."""

    caption: str  # what the line is
    lanes: tuple[BarLane, ...]  # from top to bottom
    total: float  # how long the line is
    ends: tuple[str, str]  # what stands at its two ends
    # what stands over the names and over the words
    heads: tuple[str, str] = ("name", "where")

    def html(self) -> Html:
        """A table with a picture for each lane."""
        axis = axis_html(self.ends)
        name, said = map(words, self.heads)
        rows = ((lane.name, self._picture(lane), lane.said) for lane in self.lanes)
        return pictures_html(self.caption, (name, axis, said), rows, size=_PERCENT)

    def _picture(self, lane: BarLane) -> Html:
        left, right = self._reach(lane, _WIDTH, _LEAST)
        inside = _HEIGHT - 2
        shapes = [svg.path(f"M0 0h{_WIDTH}v{_HEIGHT}h-{_WIDTH}z", TRACK)]
        if right > left:
            bar = f"M{left} 1h{right - left}v{inside}h-{right - left}z"
            shapes.append(svg.path(bar, BLUE))
        holes = "".join(
            f"M{at} 1h2v{inside}h-2z" for at in range(left + 3, right - 2, 6)
        )
        if holes and not lane.dense:
            shapes.append(svg.path(holes, WHITE))
        drawn = svg.picture(_WIDTH, _HEIGHT, lane.name, *shapes)
        return svg.image(drawn, f"{lane.name}: {lane.said}", _WIDTH, _HEIGHT)

    def _reach(self, lane: BarLane, width: int, least: int) -> tuple[int, int]:
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
        widths = (name, room - name - told, told)
        rows = [
            (each, self._ink(lane, widths[1], options), words)
            for each, lane, words in zip(names, self.lanes, said, strict=True)
        ]
        first, last = self.ends
        axis = f"{first}{last:>{max(widths[1] - len(first), 1)}}"
        rows.append((Text(), Text(axis, overflow="fold"), Text()))
        for row in rows:
            for line in side_by_side(row, widths, console):
                yield indented(line)

    def _ink(self, lane: BarLane, width: int, options: ConsoleOptions) -> Text:
        glyphs = glyphs_for(options)
        left, right = self._reach(lane, width, 1)
        mark = glyphs.kinds[0 if lane.dense else _HOLES]
        bar = mark * (right - left) + glyphs.gap * (width - right)
        return Text(glyphs.gap * left + bar)
