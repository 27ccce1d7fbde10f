"""How often a quantity had which size."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from rich.text import Text

from gpumagic.drawing import svg
from gpumagic.drawing.glyphs import glyphs_for
from gpumagic.drawing.html import INSET, Html, element, words
from gpumagic.drawing.ink import ink
from gpumagic.drawing.palette import BLUE
from gpumagic.drawing.tabular import INDENT, caption_ink, indented
from gpumagic.units import count_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console, ConsoleOptions, RenderResult

_WIDTH, _HEIGHT = 300, 48
_FEWEST_BINS, _MOST_BINS = 5, 30

# Sizes beyond the middle half by more than so many of its widths are counted, not
# drawn: one slow sample would squeeze all others into one column.
_FAR = 3.0
_FURTHEST = 1e100


@dataclass(frozen=True)
class Histogram:
    """Columns as high as the count of values in them.

    Args:
        caption: What is counted.

        values: In any order; what is no size is left out.

        text_of: Writes a value with its unit.
    """

    caption: str
    values: Sequence[float]
    text_of: Callable[[float], str] = field(default="{:g}".format)

    @cached_property
    def _known(self) -> list[float]:
        return sorted(each for each in self.values if -_FURTHEST < each < _FURTHEST)

    @cached_property
    def _edges(self) -> tuple[float, float]:
        """From where to where columns are drawn."""
        known = self._known
        low, high = known[len(known) // 4], known[(3 * len(known)) // 4]
        reach = _FAR * (high - low)
        drawn = [each for each in known if low - reach <= each <= high + reach]
        return drawn[0], drawn[-1]

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """How many values each column holds; one column if all are the same."""
        if not self._known:
            return ()
        low, high = self._edges
        drawn = [value for value in self._known if low <= value <= high]
        if not high > low:
            return (len(drawn),)
        most = round(2 * math.sqrt(len(drawn)))
        bins = min(max(most, _FEWEST_BINS), _MOST_BINS)
        counts = [0] * bins
        for value in drawn:
            counts[min(int((value - low) / (high - low) * bins), bins - 1)] += 1
        return tuple(counts)

    def words(self) -> str:
        """What the columns show, in one line of numbers."""
        if not self._known:
            return "no values"
        low, high = self._edges
        said = [
            f"from {self.text_of(low)} to {self.text_of(high)}",
            f"at most {max(self.counts)} of {len(self._known)} in one column",
        ]
        if beyond := len(self._known) - sum(self.counts):
            furthest = self._known[-1] if self._known[-1] > high else self._known[0]
            said.append(
                f"{count_text(beyond, 'value')} beyond the picture,"
                f" as far as {self.text_of(furthest)}"
            )
        return ", ".join(said)

    def html(self) -> Html:
        """Caption, picture and numbers."""
        return element(
            "p",
            element("strong", words(self.caption), style="font-weight:600"),
            element("br"),
            *self._picture(),
            words(self.words()),
            style=f"margin:0 0 .9em {INSET};line-height:1.6",
        )

    def _picture(self) -> tuple[Html, ...]:
        if not self.counts:
            return ()
        wide, tallest = _WIDTH / len(self.counts), max(self.counts)
        data = "".join(
            f"M{at * wide:.1f} {_HEIGHT}v-{max(count * _HEIGHT / tallest, 1):.1f}"
            f"h{max(wide - 1, 1):.1f}V{_HEIGHT}z"
            for at, count in enumerate(self.counts)
            if count
        )
        picture = svg.picture(_WIDTH, _HEIGHT, self.caption, svg.path(data, BLUE))
        alt = f"{self.caption}: columns, {self.words()}"
        return (svg.image(picture, alt, _WIDTH, _HEIGHT), element("br"))

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from caption_ink(self.caption, options)
        if self.counts:
            levels = glyphs_for(options).levels
            top, tallest = len(levels) - 1, max(self.counts)
            row = "".join(
                levels[math.ceil(count / tallest * top)] if count else " "
                for count in self.counts
            )
            room = max(options.max_width - INDENT, 1)
            yield indented(Text(row[:room], style=BLUE))
        yield indented(ink(self.words(), options))
