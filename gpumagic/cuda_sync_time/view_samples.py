"""Many runs: the middle, how sure it is, and every sample in a picture."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gpumagic.cuda_sync_time.digits import (
    floor_text,
    measured,
    nearly_same,
    ratio_text,
    times_text,
)
from gpumagic.cuda_sync_time.report import FlagKind, Mode
from gpumagic.cuda_sync_time.view_flags import notes
from gpumagic.cuda_sync_time.view_how import setting_facts
from gpumagic.cuda_sync_time.view_roofline import (
    roof_details,
    roof_notes,
    roof_picture,
    roof_table,
)
from gpumagic.drawing import (
    Details,
    Grid,
    Histogram,
    Note,
    Paragraph,
    Range,
    Ranges,
    Sparkline,
    how_measured,
)
from gpumagic.report import robust
from gpumagic.report.robust import Verdict, inverse
from gpumagic.report.units import count_text, seconds_text, share_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpumagic.cuda_sync_time.report import (
        ComparisonReport,
        RepeatedReport,
        Samples,
        Setting,
    )
    from gpumagic.drawing import Cell, Part
    from gpumagic.report.robust import Comparison

_DRAWN = 4  # samples; fewer are told one by one
_MODES = {
    Mode.LATENCY: "each call is waited for (latency)",
    Mode.THROUGHPUT: "many calls, then one wait (throughput)",
}
_SAME = 0.01
# Where all samples are one figure, more of them would be the same one.
_OF_STATISTICS = frozenset(
    {FlagKind.FEW, FlagKind.OUT_OF_TIME, FlagKind.VALUES_TOOK, FlagKind.CORRELATED}
)
_DUST = 1e-6  # of a time, on a clock of whole nanoseconds
_MODES_OF_PAIRS = {
    Mode.LATENCY: "each call was waited for (latency)",
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
    if _alike(report):
        return f"{said}, the same in each run"
    if samples.interval is None:
        return f"{said}, the median of {count_text(len(samples.seconds), 'sample')}"
    return f"{said} (median; 95 % interval: {_interval(samples, text)})"


def samples_parts(report: RepeatedReport) -> Iterator[Part]:
    """The samples in a picture, the figures that matter, and what to doubt."""
    samples, text = report.samples, text_of(report)
    drawn = len(samples.seconds) >= _DRAWN and not _alike(report)
    roof, table = roof_picture(report.roofline), None
    if report.roofline is not None:
        table = roof_table(report.roofline)
    order = Sparkline("Samples in order", samples.seconds, text)
    sizes = Histogram("Samples by size", samples.seconds, text)
    first, other = (order, sizes) if _moved(report) else (sizes, order)
    if roof is not None:
        yield roof
    elif drawn:
        yield first
    if table is not None:
        yield table
    elif figures := tuple(_figures_in_sight(report, text)):
        yield Grid("One call", figures)
    exact = _alike(report)
    told = (
        flag for flag in report.flags if not (exact and flag.kind in _OF_STATISTICS)
    )
    yield from notes(told, report.setting)
    if report.roofline is not None:
        yield from roof_notes(report.roofline)
    if samples.seconds:
        every = Grid("", tuple(_figures(report, text)))
        pictures = (first, other) if roof is not None else (other,)
        yield Details("All figures", (every, *(pictures if drawn else ())), "times")
    if report.roofline is not None:
        yield from roof_details(report.roofline)
    yield how_measured(
        Paragraph(" ".join(_how(samples))), Grid("", tuple(_facts(report)))
    )


def _moved(report: RepeatedReport) -> bool:
    """Whether the order of the samples tells more than their sizes."""
    told = {FlagKind.DRIFT, FlagKind.TWO_HUMPS, FlagKind.UNSTEADY}
    return any(flag.kind in told for flag in report.flags)


def _figures_in_sight(
    report: RepeatedReport, text: Callable[[float], str]
) -> Iterator[tuple[str, Cell]]:
    samples = report.samples
    if samples.seconds and not _alike(report):
        low, high = samples.quartiles
        yield "fastest", text(min(samples.seconds))
        if text(low) != text(high):
            yield "middle half", f"{text(low)} to {text(high)}"
    if samples.first_s is not None and samples.seconds:
        yield "the very first call", _first(report)


def text_of(report: RepeatedReport) -> Callable[[float], str]:
    """Writes the time of one call; the floor is shared by the calls of a sample."""
    return partial(measured, floor_s=_floor_of_a_call(report, report.samples.calls))


def _floor_of_a_call(
    report: RepeatedReport | ComparisonReport, calls: int
) -> float | None:
    floor_s = report.setting.floor_s
    return None if floor_s is None else floor_s / max(calls, 1)


def _figures(
    report: RepeatedReport, text: Callable[[float], str]
) -> Iterator[tuple[str, Cell]]:
    samples = report.samples
    if _alike(report):
        yield "each call", text(samples.median_s)
        yield "samples", _counted(samples)
        return
    yield (
        "median, 95 % interval",
        f"{text(samples.median_s)} [{_interval(samples, text)}]",
    )
    low, high = samples.quartiles
    spread = "" if samples.spread is None else f" ({share_text(samples.spread)})"
    wide = f"{_difference(high - low, report)}{spread}"
    yield "fastest", text(min(samples.seconds))
    yield "middle half", f"{text(low)} to {text(high)}: {wide}"
    yield "samples", _counted(samples)
    yield "outliers", _outliers(samples)


def _alike(report: RepeatedReport) -> bool:
    """Whether there is nothing to tell apart, as on a simulated clock."""
    seconds = report.samples.seconds
    return bool(seconds) and nearly_equal(seconds, report.setting)


def nearly_equal(seconds: Sequence[float], setting: Setting) -> bool:
    """Whether times differ in nothing but what rounding leaves on a model's clock."""
    least, most = min(seconds), max(seconds)
    return least == most or (bool(setting.label) and most - least <= _DUST * most)


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
    finest = (_floor_of_a_call(report, report.samples.calls) or 0.0) / 10
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
    others = "the others" if _alike(report) else "the median"
    return f"{said}, before any warming up: {times_text(ratio)} times {others}"


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
    runs = count_text(samples.runs, "time")
    yield f"The code ran {runs} altogether, and has changed as often what it changes."


def _facts(report: RepeatedReport) -> Iterator[tuple[str, Cell]]:
    samples = report.samples
    if samples.warmup_calls:
        calls = count_text(samples.warmup_calls, "call")
        yield "warming up", f"{calls} in {seconds_text(samples.warmup_s)}"
    yield from _where(report.setting)


def _where(setting: Setting) -> Iterator[tuple[str, Cell]]:
    if setting.floor_s is not None:
        floor = f"measured as {floor_text(setting.floor_s)}; nothing is subtracted"
        yield "an empty cell", floor
    yield from setting_facts(setting)


# -------------------------------------------------------------- two codes in turn


def comparison_headline(report: ComparisonReport) -> str:
    """The verdict on the newer code, with its interval."""
    new, base = _names(report)
    result = report.result
    match result.verdict:
        case Verdict.FASTER:
            said = f"{_speed(result)} times as fast as {base}{_between(result)}"
            return f"{new} is {said}"
        case Verdict.SLOWER:
            said = f"{_time(result)} times as long as {base}{_between(result)}"
            return f"{new} takes {said}"
        case Verdict.SAME:
            return f"{new} and {base} take the same time, within 1 %"
        case Verdict.CANNOT_TELL:
            return f"cannot tell whether {new} or {base} is faster{_more(result)}"


def comparison_parts(report: ComparisonReport) -> Iterator[Part]:
    """The interval in a picture, both times, and what to doubt."""
    exact = _is_exact(report)
    if not exact:
        yield _picture(report)
    yield Grid("One call", tuple(_times_of_pairs(report)))
    if report.result.verdict is Verdict.CANNOT_TELL:
        text = "the interval is too wide for an answer"
        yield Note("note", text, "--budget 5s, or -r with more samples, narrows it")
    if report.noise is not None and not exact:
        yield _noise(report, report.noise)
    yield from notes(report.flags, report.setting)
    parts: list[Part] = [Grid("", tuple(_figures_of_pairs(report)))]
    if len(report.result.pairs) >= _DRAWN and not exact:
        ratios = [_quotient(newer, base) for base, newer in report.result.pairs]
        caption = "Pairs in order: time of the newer code over that of the base"
        parts.append(Sparkline(caption, ratios, ratio_text))
    yield Details("All figures", tuple(parts), "times")
    yield how_measured(
        Paragraph(" ".join(_how_paired(report))),
        Grid("", tuple(_where(report.setting))),
    )


def _is_exact(report: ComparisonReport) -> bool:
    """Whether both codes take the same time in each pair, as on a model's clock."""
    pairs = report.result.pairs
    return bool(pairs) and all(
        nearly_equal(seconds, report.setting) for seconds in zip(*pairs, strict=True)
    )


def _names(report: ComparisonReport) -> tuple[str, str]:
    base = report.base.name or "the base"
    new = report.code.name or "this code"
    return (new, base) if new != base else (f"the newer {new}", f"the older {base}")


def _width(result: Comparison) -> float:
    interval = result.interval
    return 0.0 if interval is None else interval.high - interval.low


def _time(result: Comparison) -> str:
    return ratio_text(result.ratio, _width(result))


def _speed(result: Comparison) -> str:
    return ratio_text(inverse(result.ratio), _width(result))


def _between(result: Comparison) -> str:
    """The interval, in the words of the verdict; nothing where it has no width."""
    if result.interval is None or result.interval.low == result.interval.high:
        return ""
    ends = [result.interval.low, result.interval.high]
    if result.verdict is Verdict.FASTER:
        ends = [end for at in reversed(ends) if (end := inverse(at)) is not None]
    low, high = (ratio_text(end, _width(result)) for end in (ends[0], ends[-1]))
    return f" ({low} to {high})"


def _more(result: Comparison) -> str:
    if result.more_pairs is None:
        return ""
    return f": about {count_text(result.more_pairs, 'more pair')} might"


def _picture(report: ComparisonReport) -> Ranges:
    new, base = _names(report)
    ranges = [_range(f"{new} over {base}", report.result)]
    if report.noise is not None:
        ranges.append(_range(f"noise: {base} over itself", report.noise))
    return Ranges(
        "Time of one over the other",
        tuple(ranges),
        mark=1.0,
        band=(1 - _SAME, 1 + _SAME),
        remark="left is faster; the line is 1, and within 1 % of it counts as the same",
    )


def _range(label: str, result: Comparison) -> Range:
    text = ratio_text(result.ratio, _width(result))
    if result.interval is None:
        return Range(label, result.ratio, result.ratio, result.ratio, text)
    low, high, _ = result.interval
    return Range(label, low, result.ratio, high, f"{text} [{_ends(result)}]")


def _ends(result: Comparison) -> str:
    low, high, _ = result.interval or (None, None, None)
    return " to ".join(ratio_text(each, _width(result)) for each in (low, high))


def _times_of_pairs(report: ComparisonReport) -> Iterator[tuple[str, Cell]]:
    """Both medians; where all pairs are the same, each time itself."""
    new, base = _names(report)
    each = _floor_of_a_call(report, report.calls)
    middle = "" if _is_exact(report) else ", median"
    if pairs := report.result.pairs:
        newer = robust.median([after for _, after in pairs])
        older = robust.median([before for before, _ in pairs])
        yield f"{new}{middle}", measured(newer, each)
        yield f"{base}{middle}", measured(older, each)


def _figures_of_pairs(report: ComparisonReport) -> Iterator[tuple[str, Cell]]:
    result = report.result
    if result.interval is not None and not _is_exact(report):
        text = ratio_text(result.ratio, _width(result))
        yield "time of one over the other", f"{text} [{_ends(result)}]"
    calls = f"{count_text(report.calls, 'call')} of either in each"
    yield "pairs, in turn", f"{len(result.pairs):,}, with {calls}"
    yield "runs altogether", f"{report.runs:,}"


def _how_paired(report: ComparisonReport) -> Iterator[str]:
    mode = report.mode if report.calls > 1 else Mode.LATENCY
    yield f"In one sample {_MODES_OF_PAIRS[mode]}."
    if report.result.interval is None:
        yield "There were too few pairs for an interval."
    elif not _is_exact(report):
        yield "The interval holds the true ratio with 95 % confidence."
    yield (
        "Faster or slower is said where the interval leaves out 1. "
        "A difference of up to 1 % counts as the same."
    )


def _noise(report: ComparisonReport, noise: Comparison) -> Note:
    _, base = _names(report)
    if noise.interval is None:
        return Note("note", f"{base} against itself: too few pairs for an interval")
    low, high, _ = noise.interval
    said = f"{base} against itself came out as {_ends(noise)} just now"
    if noise.verdict in (Verdict.FASTER, Verdict.SLOWER):
        return Note(
            "warning",
            f"{said}, though it is the same code: this machine is not steady enough",
            "--budget 5s, or a machine that nobody else uses",
        )
    ratio = report.result.ratio
    if low <= ratio <= high and report.result.verdict is not Verdict.SAME:
        return Note("note", f"{said}: the difference is within that, so it is noise")
    return Note("note", f"{said}: a difference within that would mean nothing")


def _quotient(newer: float, base: float) -> float | None:
    return newer / base if base > 0 else None
