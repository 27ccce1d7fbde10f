"""Four steps before and after, on one scale: what runs beside what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Lane, Span, Timeline
from gpumagic.report.units import count_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpumagic.drawing import Part
    from gpumagic.pin_loader.records.four_steps import FourSteps, StepSpan

_LANES = ("load", "copy", "compute")


def steps_parts(four: FourSteps) -> Iterator[Part]:
    """Two timelines; the longer one gives both their scale."""
    every = (*four.before, *four.after)
    if not every:
        return
    window = Span(
        min(span.start_s for span in every), max(span.end_s for span in every)
    )
    steps = count_text(len({span.step for span in every}), "step")
    before = f"Before: {steps}, worked out from the rates; launching is left out"
    yield _timeline(before, four.before, window)
    yield _timeline("After, with a prefetcher, on the same scale", four.after, window)


def _timeline(caption: str, spans: Sequence[StepSpan], window: Span) -> Timeline:
    lanes = dict.fromkeys((*_LANES, *(span.lane for span in spans)))
    numbers = {
        step: number
        for number, step in enumerate(sorted({span.step for span in spans}), start=1)
    }
    return Timeline(
        caption,
        tuple(Lane(lane, tuple(_its(lane, spans, numbers))) for lane in lanes),
        kinds=_LANES,
        window=window,
    )


def _its(
    lane: str, spans: Sequence[StepSpan], numbers: dict[int, int]
) -> Iterator[Span]:
    for span in spans:
        if span.lane == lane:
            yield Span(span.start_s, span.end_s, f"#{numbers[span.step]}", lane)
