"""Many runs: the middle, how sure it is, and every sample in a picture."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time.digits import floor_text, measured, nearly_same, times_text
from gpumagic.cuda_sync_time.flag_words import notes
from gpumagic.cuda_sync_time.records.samples import Mode
from gpumagic.cuda_sync_time.roof_section import roof_parts
from gpumagic.cuda_sync_time.run_section import surroundings
from gpumagic.drawing import (
    Details,
    Grid,
    Histogram,
    Paragraph,
    Sparkline,
)
from gpumagic.report.units import count_text, seconds_text, share_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.cuda_sync_time.records.samples import Samples
    from gpumagic.cuda_sync_time.report import RepeatedReport
    from gpumagic.drawing import Cell, Part

_DRAWN = 4  # samples; fewer are told one by one
_MODES = {
    Mode.LATENCY: "each call is waited for (latency)",
    Mode.THROUGHPUT: "many calls, then one wait (throughput)",
}


def samples_headline(report: RepeatedReport) -> str:
    """The median, and where the true one lies."""
    samples, name = report.samples, report.code.name
    before = f"{name}: " if name else ""
    if not samples.seconds:
        return f"{before}no sample was taken"
    text = text_of(report)
    said = f"{before}{text(samples.median_s)} a call"
    if samples.interval is None:
        return f"{said}, the median of {count_text(len(samples.seconds), 'sample')}"
    if _alike(samples):
        return f"{said}, in each of {len(samples.seconds)} samples"
    return f"{said} (median; 95 % interval: {_interval(samples, text)})"


def samples_parts(report: RepeatedReport) -> Iterator[Part]:
    """The figures, the samples in order and by size, and what to doubt."""
    samples = report.samples
    if samples.seconds:
        text = text_of(report)
        yield Grid("One call", tuple(_figures(report, text)))
        if len(samples.seconds) >= _DRAWN and not _alike(samples):
            yield Sparkline("Samples in order", samples.seconds, text)
            yield Histogram("Samples by size", samples.seconds, text)
    yield Paragraph(" ".join(_how(samples)))
    yield from notes(report.flags, report.setting)
    if report.roofline is not None:
        yield from roof_parts(report.roofline)
    facts = tuple(_facts(report))
    if facts:
        yield Details("How it was measured", (Grid("", facts),))


def text_of(report: RepeatedReport) -> Callable[[float], str]:
    """Writes the time of one call; the floor is shared by the calls of a sample."""
    floor_s = report.setting.floor_s
    each = None if floor_s is None else floor_s / max(report.samples.calls, 1)
    return partial(measured, floor_s=each)


def _figures(
    report: RepeatedReport, text: Callable[[float], str]
) -> Iterator[tuple[str, Cell]]:
    samples = report.samples
    yield (
        "median, 95 % interval",
        f"{text(samples.median_s)} [{_interval(samples, text)}]",
    )
    yield "fastest", text(min(samples.seconds))
    low, high = samples.quartiles
    spread = "" if samples.spread is None else f" ({share_text(samples.spread)})"
    wide = f"{_difference(high - low, report)}{spread}"
    yield "middle half", f"{text(low)} to {text(high)}: {wide}"
    yield "samples", _counted(samples)
    if samples.first_s is not None:
        yield "the very first call", _first(report)
    yield "outliers", _outliers(samples)


def _alike(samples: Samples) -> bool:
    """Whether there is nothing to tell apart, as on a simulated clock."""
    return min(samples.seconds) == max(samples.seconds)


def _interval(samples: Samples, text: Callable[[float], str]) -> str:
    """From where to where the true median lies, or how near the one found is."""
    interval = samples.interval
    if interval is None:
        return "too few samples for an interval"
    low, high = text(interval.low), text(interval.high)
    if low != high:
        return f"{low} to {high}"
    if interval.low == interval.high or not samples.median_s:
        return "the interval is this one value"
    away = max(interval.high - samples.median_s, samples.median_s - interval.low)
    return f"within {share_text(away / samples.median_s)} of it"


def _difference(seconds: float, report: RepeatedReport) -> str:
    """How far apart two samples are; less than a tenth of the floor is nothing."""
    floor_s = report.setting.floor_s
    finest = 0.0 if floor_s is None else floor_s / max(report.samples.calls, 1) / 10
    if seconds == 0:
        return "they are the same"
    if seconds <= finest:
        return f"an interquartile range below {seconds_text(finest)}"
    return f"an interquartile range of {measured(seconds, finest)}"


def _counted(samples: Samples) -> str:
    count = count_text(len(samples.seconds), "sample")
    if samples.calls == 1:
        return f"{count} of 1 call"
    calls = len(samples.seconds) * samples.calls
    return f"{count} of {samples.calls:,} calls each, {calls:,} calls together"


def _first(report: RepeatedReport) -> str:
    samples = report.samples
    said = measured(samples.first_s, report.setting.floor_s)
    if not samples.median_s or samples.first_s is None:
        return said
    ratio = samples.first_s / samples.median_s
    if nearly_same(ratio) or ratio < 1:
        return f"{said}, before any warming up"
    return f"{said}, before any warming up: {times_text(ratio)} times the median"


def _outliers(samples: Samples) -> str:
    inner, outer = samples.outliers
    if not inner:
        return "none"
    far = f", {outer} of them far" if outer else ""
    return f"{inner} of {len(samples.seconds)}{far}; all are kept"


def _how(samples: Samples) -> Iterator[str]:
    # Of one call both modes wait alike.
    mode = samples.mode if samples.calls > 1 else Mode.LATENCY
    yield f"One sample: {_MODES[mode]}."
    yield (
        "Caches were flushed before each sample (cold)."
        if samples.cold
        else "Caches were left as the call before had left them (hot)."
    )
    yield (
        f"The code ran {count_text(samples.runs, 'time')} altogether; what it changes, "
        "it has changed as often."
    )


def _facts(report: RepeatedReport) -> Iterator[tuple[str, Cell]]:
    samples, floor_s = report.samples, report.setting.floor_s
    if samples.warmup_calls:
        calls = count_text(samples.warmup_calls, "call")
        yield "warming up", f"{calls} in {seconds_text(samples.warmup_s)}"
    if floor_s is not None:
        floor = f"measured as {floor_text(floor_s)}; nothing is subtracted"
        yield "an empty cell", floor
    yield from surroundings(report.setting)
