"""Where tiles, headings and arrows are collected, to become few SVG shapes.

A shape for each fill, and a group for each colour of text, keep a picture at a
third of what a shape for each tile would take.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from gpumagic.drawing.html import Html, element, escape
from gpumagic.drawing.palette import BLACK, GREY, WHITE, text_on

if TYPE_CHECKING:
    from gpumagic.tensor_info.diagram.tiles import Tile

LIGHT = "#E0E0E0"
"""What text stands on that belongs to no element; black reads well on it."""

HEAD = "#595959"
"""What headings stand on; white reads well on it."""

_HATCH = "url(#h)"


class Box(NamedTuple):
    """A rectangle in pixels."""

    left: int
    top: int
    width: int
    height: int

    @property
    def data(self) -> str:
        """The rectangle as the data of a path."""
        return f"M{self.left} {self.top}h{self.width}v{self.height}h-{self.width}z"

    def inset(self, by: int) -> Box:
        """The rectangle within this one."""
        return Box(
            self.left + by, self.top + by, self.width - 2 * by, self.height - 2 * by
        )


class Canvas:
    """Collects what is drawn, by how it looks."""

    def __init__(self) -> None:
        self._filled: dict[str, list[str]] = defaultdict(list)
        self._chips: list[str] = []
        self._dashed: list[str] = []
        self._doubled: list[str] = []
        self._lines: list[str] = []
        self._points: list[str] = []
        self._texts: dict[str, list[Html]] = defaultdict(list)

    def head(self, box: Box, text: str) -> None:
        """A heading: white on grey."""
        self._filled[HEAD].append(box.data)
        self._text(box, text, HEAD)

    def chip(self, box: Box, text: str) -> None:
        """A label over whatever is below it."""
        self._chips.append(box.data)
        self._text(box, text, HEAD)

    def tile(self, box: Box, tile: Tile) -> None:
        """A tile as its look demands."""
        if tile.look in ("unused", "gap"):
            self._filled[_HATCH].append(box.data)
            if tile.look == "gap":
                self._filled[LIGHT].append(box.inset(4).data)
                self._text(box, tile.text, LIGHT)
            return
        fill = tile.fill or (WHITE if tile.look == "ghost" else LIGHT)
        if tile.look == "ghost":
            self._dashed.append(box.inset(1).data)
        else:
            self._filled[fill].append(box.data)
        if tile.look == "shared":
            self._doubled.append(box.inset(3).data)
        self._text(box, tile.text, fill)

    def arrow(self, points: tuple[tuple[int, int], ...]) -> None:
        """A line through points, with a head at its last."""
        self._lines.append("M" + "L".join(f"{x} {y}" for x, y in points))
        (before, above), (x, y) = points[-2:]
        if before == x:
            back = -6 if y > above else 6
            self._points.append(f"M{x} {y}l-4 {back}h8z")

    def shapes(self) -> list[Html]:
        """Everything, in the order in which it covers what was there before."""
        drawn = [_hatch()] if _HATCH in self._filled else []
        for fill, boxes in sorted(self._filled.items(), key=_light_last):
            stroke = "none" if fill == LIGHT else (WHITE if fill == HEAD else GREY)
            drawn.append(_path(boxes, fill, stroke))
        drawn += [
            _path(self._dashed, WHITE, BLACK, stroke_dasharray="3 2"),
            _path(self._doubled, "none", BLACK),
            _path(self._lines, "none", GREY, stroke_width=2),
            _path(self._points, GREY, "none"),
            _path(self._chips, HEAD, WHITE),
        ]
        drawn += [_group(ink, texts) for ink, texts in self._texts.items()]
        return [shape for shape in drawn if shape]

    def _text(self, box: Box, text: str, fill: str) -> None:
        if text:
            x, y = box.left + box.width // 2, box.top + box.height // 2 + 4
            self._texts[text_on(fill)].append(element("text", escape(text), x=x, y=y))


def _light_last(item: tuple[str, list[str]]) -> bool:
    return item[0] == LIGHT


def _path(boxes: list[str], fill: str, stroke: str, **more: str | int) -> Html:
    if not boxes:
        return Html("")
    return element("path", d="".join(boxes), fill=fill, stroke=stroke, **more)


def _group(ink: str, texts: list[Html]) -> Html:
    return element(
        "g",
        *texts,
        fill=ink,
        font_size=11,
        font_family="sans-serif",
        text_anchor="middle",
    )


def _hatch() -> Html:
    return element(
        "pattern",
        element("path", d="M0 0h7v7h-7z", fill=LIGHT),
        element("path", d="M0 0h2v7h-2z", fill=GREY),
        id="h",
        width=7,
        height=7,
        patternUnits="userSpaceOnUse",
        patternTransform="rotate(45)",
    )
