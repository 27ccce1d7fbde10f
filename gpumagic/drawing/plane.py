"""Points under lines, where both quantities span many powers of ten."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.drawing import svg
from gpumagic.drawing.html import INSET, Html, element, words
from gpumagic.drawing.ink import ink
from gpumagic.drawing.palette import BLUE, GREY, TRACK, VERMILLION
from gpumagic.drawing.tabular import caption_ink, indented

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions, RenderResult

Spot = tuple[float, float]

_WIDTH, _HEIGHT = 360, 180
_MARGIN = 8


@dataclass(frozen=True)
class Plane:
    """Lines and one point on logarithmic axes; all sizes are above zero.

    Args:
        caption: What is shown.

        line: Corners of the line, from left to right.

        point: What is held against it.

        across: What the axis to the right is, and from where to where it is drawn.

        upward: The same of the other axis.

        told: What the picture shows, in one sentence.
    """

    caption: str
    line: tuple[Spot, ...]
    point: Spot
    across: str
    upward: str
    told: str

    @property
    def _bounds(self) -> tuple[Spot, Spot]:
        """The corners of the picture, as powers of ten."""
        spots = (*self.line, self.point)
        lows, highs = (
            tuple(pick(math.log10(spot[axis]) for spot in spots) for axis in (0, 1))
            for pick in (min, max)
        )
        return (lows[0], lows[1]), (highs[0], highs[1])

    def _place(self, spot: Spot) -> Spot:
        (left, low), (right, high) = self._bounds
        x = (math.log10(spot[0]) - left) / max(right - left, 1e-9)
        y = (math.log10(spot[1]) - low) / max(high - low, 1e-9)
        return (
            _MARGIN + x * (_WIDTH - 2 * _MARGIN),
            _MARGIN + (1 - y) * (_HEIGHT - 2 * _MARGIN),
        )

    def html(self) -> Html:
        """Caption, picture, and what the axes are."""
        picture = svg.picture(_WIDTH, _HEIGHT, self.caption, *self._shapes())
        return element(
            "p",
            element("strong", words(self.caption), style="font-weight:600"),
            element("br"),
            svg.image(picture, f"{self.caption}: {self.told}", _WIDTH, _HEIGHT),
            element("br"),
            *(part for text in self._lines() for part in (words(text), element("br"))),
            style=f"margin:0 0 .9em {INSET};line-height:1.6",
        )

    def _shapes(self) -> Iterator[Html]:
        yield from map(_rule, self._rules())
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(self._place, self.line))
        yield svg.polyline(corners, BLUE)
        x, y = self._place(self.point)
        below = [self._place(spot)[1] for spot in self._under()]
        if below:
            yield svg.path(f"M{x - 0.5:.1f} {below[0]:.1f}h1V{y:.1f}h-1z", GREY)
        yield svg.path(f"M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z", VERMILLION)

    def _under(self) -> Iterator[Spot]:
        """Where the line is above the point."""
        x = math.log10(self.point[0])
        for (x0, y0), (x1, y1) in zip(self.line, self.line[1:], strict=False):
            left, right = math.log10(x0), math.log10(x1)
            if left <= x <= right and right > left:
                share = (x - left) / (right - left)
                yield self.point[0], y0 * (y1 / y0) ** share
                return

    def _rules(self) -> Iterator[tuple[float, float, float, float]]:
        """A hair at each power of ten."""
        (left, low), (right, high) = self._bounds
        for power in range(math.ceil(left), math.floor(right) + 1):
            x, _ = self._place((10.0**power, 10.0**low))
            yield x, 0, 1, _HEIGHT
        for power in range(math.ceil(low), math.floor(high) + 1):
            _, y = self._place((10.0**left, 10.0**power))
            yield 0, y, _WIDTH, 1

    def _lines(self) -> tuple[str, str]:
        return f"to the right: {self.across}", f"upward: {self.upward}"

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from caption_ink(self.caption, options)
        for text in (self.told, *self._lines()):
            yield indented(ink(text, options))


def _rule(box: tuple[float, float, float, float]) -> Html:
    x, y, width, height = box
    return svg.path(f"M{x:.1f} {y:.1f}h{width}v{height}h-{width}z", TRACK)
