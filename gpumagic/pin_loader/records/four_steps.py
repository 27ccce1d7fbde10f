"""Four steps before and after, as they are drawn."""

from __future__ import annotations

from dataclasses import dataclass

from gpumagic.report.record import Record


@dataclass(frozen=True)
class StepSpan(Record):
    """A part of a step in the picture."""

    lane: str  # "load", "copy", "compute"
    step: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class FourSteps(Record):
    """Four steps before and after, worked out from the rates.

    Attributes:
        before: Of the loop as it is.

        after: Of the loop with a prefetcher.
    """

    before: tuple[StepSpan, ...]
    after: tuple[StepSpan, ...]
