"""How far something long has come."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Protocol, Self

from gpumagic.drawing.document import Drawing
from gpumagic.drawing.table import Meter
from gpumagic.report.units import seconds_text, share_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_FEWEST_S_BETWEEN = 0.25
# Nobody needs to be told how far a second has come.
SHOWN_AFTER_S = 2.0


class Place(Protocol):
    """Somewhere on the screen: an output of a notebook, a line of a terminal."""

    def show(self, drawing: Drawing, *, is_last: bool = False) -> None:
        """Draw this in place of what was there."""

    def clear(self) -> None:
        """Take away what was there."""

    def become(self, answer: object) -> bool:
        """Put an answer in its place; False where it has none, and is gone."""


class Progress:
    """Counts steps, and draws them in one place, four times a second at most.

    Front ends flicker, and lag, with more drawings than that. It is gone once all is
    done, as the answer stands there then; where the work was stopped, it says how far
    it had come. `total` is None where only shares of all are known. For
    `begins_after_s` nothing is drawn: what ends before is never shown.
    """

    def __init__(
        self,
        total: int | None,
        label: str,
        place: Place,
        *,
        clock: Callable[[], float] = time.monotonic,
        begins_after_s: float = SHOWN_AFTER_S,
    ) -> None:
        self.done: float = 0
        self._total, self._are_steps = 1 if total is None else total, total is not None
        self._label, self._place, self._clock = label, place, clock
        self._begins_after_s = begins_after_s
        self._started_s = self._published_s = clock()
        self._is_shown, self._note = False, ""

    def __enter__(self) -> Self:
        self._started_s = self._published_s = self._clock()
        if not self._begins_after_s:
            self._show_state()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._is_shown:
            return
        if kind is None:
            self._place.clear()
            return
        took = seconds_text(self._elapsed_s)
        outcome = f"stopped at {share_text(self.share)} after {took}"
        # What went wrong in the work is what the user must see, not what
        # went wrong in drawing it.
        with contextlib.suppress(Exception):
            self._show(outcome, self._count, is_last=True)

    def advance(self, n: int = 1, note: str = "") -> None:
        """Count steps as done."""
        self._come_to(self.done + n, note)

    def reach(self, share: float, note: str = "") -> None:
        """Tell how much of all is done now; what is less than before is not told."""
        self._come_to(max(self.done, share * self._total), note)

    def _come_to(self, done: float, note: str) -> None:
        self.done, self._note = done, note or self._note
        waits = self._clock() - self._published_s < _FEWEST_S_BETWEEN
        if self._elapsed_s >= self._begins_after_s and not waits:
            self._show_state()

    @property
    def share(self) -> float:
        """How much is done; nothing to do is all done."""
        return min(self.done / self._total, 1.0) if self._total > 0 else 1.0

    @property
    def _elapsed_s(self) -> float:
        return self._clock() - self._started_s

    @property
    def _count(self) -> str:
        return f"{self.done:,} of {self._total:,}" if self._are_steps else ""

    def _show_state(self) -> None:
        left = ""
        if 0 < self.done < self._total:
            left_s = self._elapsed_s / self.done * (self._total - self.done)
            left = f"an estimated {seconds_text(left_s)} left"
        self._show(share_text(self.share), self._count, left, self._note)

    def _show(self, *said: str, is_last: bool = False) -> None:
        self._published_s, self._is_shown = self._clock(), True
        line = f"{self._label}: {', '.join(filter(None, said))}"
        meter = Meter(self.share, share_text(self.share))
        self._place.show(Drawing(line, (meter,)), is_last=is_last)
