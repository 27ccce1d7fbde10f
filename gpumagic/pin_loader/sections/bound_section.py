"""The most that can be won: the slowest part, and what each remedy gives at most."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.drawing import Bar, BarPair, Column, Paragraph, Table
from gpumagic.drawing.palette import BLUE, VERMILLION
from gpumagic.pin_loader.records.bound import Remedy
from gpumagic.pin_loader.sections.phrases import time_text, times_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.drawing import Cell, Part
    from gpumagic.pin_loader.records.bound import Bound, Gain
    from gpumagic.pin_loader.records.bound import Part as StepPart

_MOST_TIMES = 100
_INSTANT = (
    "That of workers is for so many that loading takes no time, which `--workers auto` "
    "finds out."
)
_SYNTHETIC = (
    "Compute is synthetic: it is as long as the slowest other part, for which feeding "
    "gains the most; your own step gains this or less (`--step FN` measures it)."
)


def bound_parts(bound: Bound) -> Iterator[Part]:
    """A step beside its parts, then the remedies."""
    yield _bars(bound)
    if bound.gains:
        yield _gains(bound)
    yield Paragraph(" ".join(_sentences(bound)))


def _bars(bound: Bound) -> BarPair:
    how = "measured" if bound.now_measured else "estimated"
    now = Bar(
        "a step as it is", bound.now_s, f"{time_text(bound.now_s)}, {how}", VERMILLION
    )
    parts = (
        Bar(part.value, seconds, time_text(seconds) + _mark(bound, part), BLUE)
        for part, seconds in bound.parts
    )
    return BarPair("A step, and each part of it on its own", (now, *parts))


def _mark(bound: Bound, part: StepPart) -> str:
    return ", slowest" if part is bound.binding else ""


def _gains(bound: Bound) -> Table:
    return Table(
        "What each remedy can give at most",
        (
            Column("Remedy"),
            Column("A step, at least", number=True),
            Column("At most", number=True),
        ),
        tuple(_gain_row(bound, each) for each in bound.gains),
    )


def _gain_row(bound: Bound, gain: Gain) -> tuple[Cell, ...]:
    times = bound.now_s / gain.step_s if gain.step_s > 0 else None
    if times is not None and times > _MOST_TIMES:
        return gain.remedy.value, time_text(gain.step_s), f"over {_MOST_TIMES}x"
    return gain.remedy.value, time_text(gain.step_s), times_text(times)


def _sentences(bound: Bound) -> Iterator[str]:
    instant = any(_is_instant(bound, each) for each in bound.gains)
    loading = "as loading is now, " if instant else ""
    yield (
        f"No step can be shorter than its slowest part: {bound.binding.value}, "
        f"{time_text(bound.best_s)}, so that {loading}the most is "
        f"{times_text(bound.most)}."
    )
    if instant:
        yield _INSTANT
    if not bound.now_measured:
        yield "The step as it is was not measured, but added up from the parts."
    if bound.synthetic_step:
        yield _SYNTHETIC


def _is_instant(bound: Bound, gain: Gain) -> bool:
    """Whether it is better than loading, as fast as it was measured, allows for."""
    return gain.remedy is Remedy.WORKERS and gain.step_s < bound.best_s
