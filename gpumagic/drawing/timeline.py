"""What ran beside what: spans of time in lanes, drawn to one scale."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from rich.text import Text

from gpumagic.drawing.html import INSET, Html, element, lines, words
from gpumagic.drawing.ink import GAP, glyphs_for, ink, widest
from gpumagic.drawing.lanes import (
    LINE_WIDTH,
    axis_html,
    axis_text,
    lane_html,
    lane_ink,
    legend_html,
    legend_ink,
    too_fine,
)
from gpumagic.drawing.palette import Swatch, swatches
from gpumagic.drawing.table import (
    INDENT,
    caption_ink,
    head_html,
    indented,
    narrower,
    rows_ink,
    table_html,
    wide_row_html,
)
from gpumagic.report.units import count_text, seconds_text, share_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions, RenderResult

    from gpumagic.drawing.ink import Glyphs

# More spans than this are told by their number, not one by one.
_FEW = 6

# Thirty thousand years: beyond it, and for NaN, a time is a mistake.
_FOREVER_S = 1e12

MOST_LANES = 12
_COLUMNS = 3
# About 100 bytes of HTML each, most of it what the pointer finds there.
MOST_STROKES = 240
# A span and its gap need as many pixels to be seen apart.
_PITCH = 4
_TOO_FINE = (
    "where spans are too fine to draw one by one,"
    " the height is the share of time that was busy"
)


@dataclass(frozen=True)
class Span:
    """Something that took time."""

    start_s: float  # when it began, on any clock that all lanes share
    end_s: float  # when it ended
    label: str = ""  # what it was
    kind: str = ""  # what it counts as, such as "kernel" or "copy"; kinds get colours

    @property
    def drawable(self) -> bool:
        """Whether its times are some that a clock can show, and in order."""
        return -_FOREVER_S < self.start_s <= self.end_s < _FOREVER_S


@dataclass(frozen=True)
class Lane:
    """What one stream, engine or thread did."""

    name: str
    spans: tuple[Span, ...] = ()

    @cached_property
    def drawn(self) -> list[Span]:
        """The spans that have a place on the scale, in order of time."""
        spans = [span for span in self.spans if span.drawable]
        return sorted(spans, key=lambda span: (span.start_s, span.end_s))

    @cached_property
    def busy_s(self) -> float:
        """How long at least one span was running."""
        busy, until = 0.0, -math.inf
        for span in self.drawn:
            busy += max(span.end_s - max(span.start_s, until), 0.0)
            until = max(until, span.end_s)
        return busy

    def words(self, scale: Scale) -> str:
        """The lane in one sentence: for the ear, and for the text form."""
        spans = self.drawn
        count = count_text(len(spans), "span")
        if not spans:
            return f"{self.name}: {count}"
        said = (
            f"{self.name}: busy {seconds_text(self.busy_s)}"
            f" of {seconds_text(scale.length_s)}, {count}"
        )
        if len(spans) > _FEW or not any(span.label for span in spans):
            return said
        return f"{said}: {', '.join(scale.words(span) for span in spans)}"


@dataclass(frozen=True)
class Scale:
    """The time that all lanes are drawn against."""

    start_s: float  # what is drawn at the left
    end_s: float  # what is drawn at the right
    zero_s: float  # what times are told from

    @classmethod
    def of(
        cls,
        lanes: tuple[Lane, ...],
        window: Span | None = None,
        zero_s: float | None = None,
    ) -> Scale:
        """The shortest scale that all spans fit on, and the window if there is one."""
        spans = [span for lane in lanes for span in lane.drawn]
        if window is not None and window.drawable:
            spans.append(window)
        start = min((span.start_s for span in spans), default=0.0)
        end = max((span.end_s for span in spans), default=start)
        return cls(start, end, start if zero_s is None else zero_s)

    @property
    def length_s(self) -> float:
        """From the first beginning to the last end."""
        return self.end_s - self.start_s

    def place(self, time_s: float, width: float) -> float:
        """Where a time is on a line of that width."""
        if self.length_s <= 0:
            return 0.0
        # A share first: it is 1 at the end, where a product may round beyond the line.
        return width * ((time_s - self.start_s) / self.length_s)

    def share(self, lane: Lane) -> str:
        """How much of the scale the lane was busy, as text."""
        if self.length_s <= 0:
            return share_text(None)
        return share_text(min(lane.busy_s / self.length_s, 1.0))

    def ticks(self) -> list[str]:
        """The times at the beginning, in the middle and at the end."""
        shares = (0, 0.5, 1) if self.length_s > 0 else (0,)
        return [self.told(self.start_s + self.length_s * share) for share in shares]

    def told(self, time_s: float) -> str:
        """A time on the clock that starts at zero."""
        return seconds_text(time_s - self.zero_s)

    def words(self, span: Span) -> str:
        """A span with its times."""
        name = span.label or span.kind or "span"
        return f"{name} ({self.told(span.start_s)} to {self.told(span.end_s)})"


@dataclass(frozen=True)
class Timeline:
    """Lanes of spans on one scale."""

    caption: str  # what is shown
    lanes: tuple[Lane, ...]  # from top to bottom
    # the kinds of spans in the order in which they are told, where two timelines are
    # to be compared; by default as they appear
    kinds: tuple[str, ...] = ()
    # the time that is shown even where nothing happened; by default from the first
    # span to the last
    window: Span | None = None
    # from when on times are told; by default from the beginning
    zero_s: float | None = None
    share: str = "busy"  # of what the share stands beside each lane

    @property
    def shown(self) -> tuple[Lane, ...]:
        """The lanes that are drawn."""
        return self.lanes[:MOST_LANES]

    @cached_property
    def scale(self) -> Scale:
        """The time that they share."""
        return Scale.of(self.shown, self.window, self.zero_s)

    def one_by_one(self, lane: Lane) -> bool:
        """Whether the picture has room for each of the lane's spans."""
        return len(lane.drawn) <= min(LINE_WIDTH // _PITCH, self._strokes_each)

    @property
    def _strokes_each(self) -> int:
        return MOST_STROKES // len(self.shown)

    @cached_property
    def swatches(self) -> dict[str, Swatch]:
        """How each kind is drawn."""
        spans = (span for lane in self.shown for span in lane.drawn)
        return swatches((*self.kinds, *(span.kind for span in spans)))

    def legend(self) -> Iterator[tuple[Swatch, str]]:
        """What is drawn how, with the kinds that share it."""
        used = {span.kind for lane in self.shown for span in lane.drawn if span.kind}
        alike: dict[Swatch, list[str]] = {}
        for kind, swatch in self.swatches.items():
            if kind in used:
                alike.setdefault(swatch, []).append(kind)
        yield from ((swatch, ", ".join(kinds)) for swatch, kinds in alike.items())

    def remarks(self, *, heights: bool) -> Iterator[str]:
        """What the picture does not show as it was."""
        spans = sum(len(lane.spans) for lane in self.shown)
        drawable = sum(len(lane.drawn) for lane in self.shown)
        if not drawable:
            yield "nothing to draw"
        if heights:
            yield _TOO_FINE
        if drawable < spans:
            yield f"{count_text(spans - drawable, 'span')} left out: no usable times"
        if more := len(self.lanes) - len(self.shown):
            yield f"... and {count_text(more, 'lane')} more"

    def html(self) -> Html:
        """A table with one picture for each lane, then what the colours mean."""
        rows = [
            lane_html(
                lane,
                self.scale,
                self.swatches,
                stretches=0 if self.one_by_one(lane) else self._strokes_each,
            )
            for lane in self.shown
        ] or [wide_row_html("none", _COLUMNS)]
        marks = axis_html(self.scale.ticks())
        names = (words("lane"), marks, words(self.share))
        head = head_html(zip(names, (False, False, True), strict=True))
        return lines((table_html(self.caption, rows, head=head), self._foot_html()))

    def _foot_html(self) -> str:
        heights = not all(map(self.one_by_one, self.shown))
        remarks = map(words, self.remarks(heights=heights))
        said = [line for line in (legend_html(self.legend()), *remarks) if line]
        style = f"margin:0 0 .9em {INSET}"
        return element("p", Html("<br/>".join(said)), style=style) if said else ""

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from caption_ink(self.caption, options)
        names = [ink(lane.name, options) for lane in self.shown]
        shares = [Text(self.scale.share(lane)) for lane in self.shown]
        widths = _widths(names, shares, options.max_width - INDENT - 2 * len(GAP))
        lanes = self._lanes_ink(widths[1], glyphs_for(options))
        axis = Text(axis_text(self.scale.ticks(), widths[1]))
        rows = [*zip(names, lanes, shares, strict=True), (Text(), axis, Text())]
        yield from rows_ink(rows, widths, console, right=(False, False, True))
        yield from map(indented, self._told(options, widths[1]))

    def _lanes_ink(self, width: int, glyphs: Glyphs) -> Iterator[Text]:
        for lane in self.shown:
            yield lane_ink(lane, self.scale, self.swatches, width, glyphs)

    def _told(self, options: ConsoleOptions, width: int) -> Iterator[Text]:
        yield from legend_ink(self.legend(), narrower(options))
        heights = any(too_fine(lane, width) for lane in self.shown)
        for remark in self.remarks(heights=heights):
            yield ink(remark, options)


def _widths(names: list[Text], shares: list[Text], room: int) -> tuple[int, int, int]:
    share = widest(text.plain for text in shares)
    name = max(min(widest(text.plain for text in names), room // 3), 2)
    return name, max(room - name - share, 1), share
