"""Several tensors over one large piece of memory, drawn to scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from gpumagic.drawing import svg
from gpumagic.drawing.html import Html, element, words
from gpumagic.drawing.ink import GAP, glyphs_for, ink, side_by_side, widest
from gpumagic.drawing.palette import BLUE, TRACK, WHITE
from gpumagic.drawing.table import (
    INDENT,
    caption_ink,
    cell_of,
    head_html,
    indented,
    row_html,
    table_html,
)
from gpumagic.report.units import bytes_text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_WIDTH, _HEIGHT = 360, 18
_LEAST = 3
_HOLES = 2


@dataclass(frozen=True)
class BarLane:
    """One tensor's stretch of a memory.

    Args:
        name: Which tensor.

        first_byte: Where it begins.

        last_byte: Where it ends; exclusive.

        dense: Whether it fills its stretch; None if unknown.

        said: Its share in words.
    """

    name: str
    first_byte: int
    last_byte: int
    dense: bool | None
    said: str


@dataclass(frozen=True)
class LaneBars:
    """Lanes over one memory, to its scale.

    Args:
        caption: Which memory.

        lanes: From top to bottom.

        total_bytes: How long the memory is.
    """

    caption: str
    lanes: tuple[BarLane, ...]
    total_bytes: int

    def html(self) -> Html:
        """A table with a picture for each lane."""
        axis = element(
            "div",
            *(element("span", words(mark)) for mark in self._marks()),
            style="display:flex;justify-content:space-between;font-weight:normal",
        )
        names = ((words("name"), False), (axis, False), (words("where"), False))
        rows = (
            row_html(
                words(lane.name),
                cell_of(self._picture(lane)),
                cell_of(words(lane.said)),
            )
            for lane in self.lanes
        )
        return table_html(self.caption, rows, head=head_html(names))

    def _marks(self) -> tuple[str, str]:
        return bytes_text(0), bytes_text(self.total_bytes)

    def _picture(self, lane: BarLane) -> Html:
        left, right = self._ends(lane, _WIDTH, _LEAST)
        track = svg.path(f"M0 0h{_WIDTH}v{_HEIGHT}h-{_WIDTH}z", TRACK)
        inside = _HEIGHT - 4
        bar = svg.path(f"M{left} 2h{right - left}v{inside}h-{right - left}z", BLUE)
        holes = "".join(
            f"M{at} 2h2v{inside}h-2z" for at in range(left + 3, right - 2, 6)
        )
        shapes = (track, bar) if lane.dense else (track, bar, svg.path(holes, WHITE))
        drawn = svg.picture(_WIDTH, _HEIGHT, lane.name, *shapes)
        return svg.image(drawn, f"{lane.name}: {lane.said}", _WIDTH, _HEIGHT)

    def _ends(self, lane: BarLane, width: int, least: int) -> tuple[int, int]:
        """Where the lane begins and ends on a line; never less than a mark."""
        total = max(self.total_bytes, 1)
        left = min(lane.first_byte * width // total, width - least)
        right = -(-lane.last_byte * width // total)
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
        marks = self._marks()
        axis = f"{marks[0]}{marks[1]:>{max(widths[1] - len(marks[0]), 1)}}"
        rows.append((Text(), Text(axis, overflow="fold"), Text()))
        for row in rows:
            for line in side_by_side(row, widths, console):
                yield indented(line)

    def _ink(self, lane: BarLane, width: int, options: ConsoleOptions) -> Text:
        glyphs = glyphs_for(options)
        left, right = self._ends(lane, width, 1)
        mark = glyphs.kinds[0 if lane.dense else _HOLES]
        bar = mark * (right - left) + glyphs.gap * (width - right)
        return Text(glyphs.gap * left + bar)
