"""What ran beside what: spans of time in lanes, drawn to one scale."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

from gpumagic.drawing.palette import Swatch, swatches
from gpumagic.drawing.spans import Line, Mark, Spans
from gpumagic.drawing.table import DrawnAs
from gpumagic.report.units import count_text, seconds_text, share_text, shortened

if TYPE_CHECKING:
    from collections.abc import Iterator

# Thirty thousand years: beyond it, and for NaN, a time is a mistake.
_FOREVER_S = 1e12

MOST_LANES, _LONGEST_NAME = 12, 60
_MOST_EM = 120  # as wide as the output


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
        """The lane in one sentence, for the ear."""
        busy, length = seconds_text(self.busy_s), seconds_text(scale.length_s)
        count = count_text(len(self.drawn), "span")
        return f"{self.name}: busy {busy} of {length}, {count}"


@dataclass(frozen=True)
class Scale:
    """The time that all lanes are drawn against."""

    start_s: float  # what is drawn at the left
    end_s: float  # what is drawn at the right

    @classmethod
    def of(cls, lanes: tuple[Lane, ...], window: Span | None = None) -> Scale:
        """The shortest scale that all spans fit on, and the window if there is one."""
        spans = [span for lane in lanes for span in lane.drawn]
        if window is not None and window.drawable:
            spans.append(window)
        start = min((span.start_s for span in spans), default=0.0)
        return cls(start, max((span.end_s for span in spans), default=start))

    @property
    def length_s(self) -> float:
        """From the first beginning to the last end."""
        return self.end_s - self.start_s

    def place(self, time_s: float) -> float:
        """Where a time is, as a share of the scale."""
        return (time_s - self.start_s) / self.length_s if self.length_s > 0 else 0.0

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
        """A time from the beginning on."""
        return seconds_text(time_s - self.start_s)

    def words(self, span: Span) -> str:
        """A span with its times; tables have long names in full."""
        name = shortened(span.label or span.kind or "span", _LONGEST_NAME)
        return f"{name} ({self.told(span.start_s)} to {self.told(span.end_s)})"


@dataclass(frozen=True)
class Timeline(DrawnAs):
    """Lanes of spans on one scale."""

    caption: str  # what is shown
    lanes: tuple[Lane, ...]  # from top to bottom
    # the kinds of spans in the order in which they are told, where two timelines are
    # to be compared; by default as they appear
    kinds: tuple[str, ...] = ()
    # the time that is shown even where nothing happened; by default from the first
    # span to the last
    window: Span | None = None

    @property
    def shown(self) -> tuple[Lane, ...]:
        """The lanes that are drawn."""
        return self.lanes[:MOST_LANES]

    @cached_property
    def scale(self) -> Scale:
        """The time that they share."""
        return Scale.of(self.shown, self.window)

    def drawn(self) -> Spans:
        """A line for each lane, with how much of the time it was busy."""
        drawn = [span.kind for lane in self.shown for span in lane.drawn]
        kinds = swatches((*self.kinds, *drawn))
        alike: dict[Swatch, list[str]] = {}
        for kind, swatch in kinds.items():
            if kind and kind in drawn:
                alike.setdefault(swatch, []).append(kind)
        return Spans(
            self.caption,
            [self._line(lane) for lane in self.shown],
            kinds,
            [(its[0], ", ".join(its[1:])) for its in alike.values()],
            ticks=self.scale.ticks(),
            heads=("lane", "busy"),
            remarks=tuple(self._remarks()),
            noun="span",
            size_text=seconds_text,
            most_em=_MOST_EM,
        )

    def _line(self, lane: Lane) -> Line:
        scale = self.scale
        marks = [
            Mark(
                scale.place(span.start_s),
                scale.place(span.end_s),
                span.kind,
                span.label,
                size=span.end_s - span.start_s,
                tell=partial(scale.words, span),
            )
            for span in lane.drawn
        ]
        return Line(lane.name, marks, scale.share(lane), lane.words(scale))

    def _remarks(self) -> Iterator[str]:
        """What the picture does not show."""
        spans = sum(len(lane.spans) for lane in self.shown)
        drawable = sum(len(lane.drawn) for lane in self.shown)
        if not drawable:
            yield "nothing to draw"
        if drawable < spans:
            yield f"{count_text(spans - drawable, 'span')} left out: no usable times"
        if more := len(self.lanes) - len(self.shown):
            yield f"... and {count_text(more, 'lane')} more"
