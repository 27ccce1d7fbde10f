"""What happened when: spans of time in lanes, and the scale they share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from gpumagic.units import count_text, seconds_text, share_text

# More spans than this are told by their number, not one by one.
_FEW = 6

# Thirty thousand years: beyond it, and for NaN, a time is a mistake.
_FOREVER_S = 1e12


@dataclass(frozen=True)
class Span:
    """Something that took time.

    Args:
        start_s: When it began, on any clock that all lanes share.

        end_s: When it ended.

        label: What it was.

        kind: What it counts as, such as "kernel" or "copy"; kinds get colours.
    """

    start_s: float
    end_s: float
    label: str = ""
    kind: str = ""

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
    """The time that all lanes are drawn against, from its own zero on."""

    start_s: float
    end_s: float

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
        return [seconds_text(self.length_s * share) for share in shares]

    def words(self, span: Span) -> str:
        """A span with its times."""
        start, end = (time - self.start_s for time in (span.start_s, span.end_s))
        name = span.label or span.kind or "span"
        return f"{name} ({seconds_text(start)} to {seconds_text(end)})"
