"""What a comparison, or a search for workers, comes to, in half a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumagic.pin_loader.sections.phrases import (
    device_text,
    inverse,
    loader_text,
    median_of,
    times_text,
)
from gpumagic.report.robust import Verdict
from gpumagic.report.units import count_text

if TYPE_CHECKING:
    from gpumagic.pin_loader.records.workers import WorkerTrial
    from gpumagic.pin_loader.report import LoaderReport
    from gpumagic.report.robust import Comparison

WORTH_IT = 1.05
"""Below this, a gain is none: so says the rule that stops before rebuilding."""


def faster_text(newer: str, report: LoaderReport) -> str:
    """The verdict on the new loader, with its interval, and with which step."""
    if report.end_to_end is None:
        return f"{newer} is ready; how much faster it is was not measured"
    step = report.rates.step
    said = _verdict(newer, report, report.end_to_end.result)
    return f"{said}, with a synthetic step" if step and step.synthetic else said


def _verdict(newer: str, report: LoaderReport, result: Comparison) -> str:
    older, where = loader_text(report.loader), device_text(report.setting)
    if report.out is not None and report.out == report.loader.name:  # --inplace
        older = f"the old {older}"
    match result.verdict:
        case Verdict.FASTER:
            times = times_text(inverse(result.ratio))
            return f"{newer} feeds {where} {times} as fast as {older}{_between(result)}"
        case Verdict.SLOWER:
            times = times_text(result.ratio)
            return f"{newer} takes {times} as long a step as {older}{_between(result)}"
        case Verdict.SAME:
            return f"no measurable difference between {newer} and {older}, within 1 %"
        case Verdict.CANNOT_TELL if result.interval is None:
            return f"too few runs to tell how {newer} compares with {older}"
        case Verdict.CANNOT_TELL:
            return f"no measurable difference between {newer} and {older}"


def _between(result: Comparison) -> str:
    if result.interval is None:
        return ""
    ends = result.interval.low, result.interval.high
    if result.verdict is Verdict.FASTER:
        low, high = (times_text(inverse(end)) for end in reversed(ends))
    else:
        low, high = map(times_text, ends)
    return "" if low == high else f" ({low.removesuffix('x')} to {high})"


def workers_text(report: LoaderReport) -> str:
    """What workers alone bring the new loader, where they bring something."""
    search = report.workers
    if search is None or search.chosen is None:
        return ""
    times = {
        each.workers: batch_s
        for each in search.trials
        if (batch_s := _batch_s(each)) is not None
    }
    now = report.loader.workers
    base = now if now in times else next(iter(times), None)
    newer = times.get(search.chosen)
    older = None if base is None else times.get(base)
    if not older or not newer or older / newer < WORTH_IT:
        return ""
    workers = count_text(search.chosen, "worker")
    against = "" if base == now else f" as with {base or 'none'}"
    return f"loads {times_text(older / newer)} as fast with {workers}{against}"


def _batch_s(trial: WorkerTrial) -> float | None:
    return None if trial.loading is None else median_of(trial.loading.between)
