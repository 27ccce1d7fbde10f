"""How long does a call take, and how sure is that? It ran many times."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from gpumagic.cuda_sync_time.findings import floor_text, measured, notes, where_measured
from gpumagic.cuda_sync_time.records import FlagKind, Mode
from gpumagic.report.record import Report
from gpumagic.report.units import count_text, seconds_text, share_text, times_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.cuda_sync_time.records import Flag, Samples, Setting
    from gpumagic.report.places import Code

    Text = Callable[[float], str]

_DRAWN = 4  # samples; fewer are told one by one
_WAITS = {
    Mode.LATENCY: "each call is waited for (latency)",
    Mode.THROUGHPUT: "many calls, then one wait (throughput)",
}
_DUST = 1e-6  # of a time, on a clock of whole nanoseconds


@dataclass(frozen=True)
class RepeatedReport(Report):
    """Many runs of a cell."""

    code: Code
    setting: Setting
    samples: Samples
    flags: tuple[Flag, ...] = ()

    @property
    def headline(self) -> str:
        """The median, and where the true one lies."""
        samples, text = self.samples, self.text
        name = f"{self.code.name}: " if self.code.name else ""
        if not samples.seconds:
            return f"{name}no sample was taken"
        said = f"{name}{text(samples.median_s)} a call"
        if self.is_exact:
            return f"{said}, the same in each run"
        if samples.interval is None:
            return f"{said}, the median of {count_text(len(samples.seconds), 'sample')}"
        return f"{said} (median; 95 % interval: {_interval(samples, text)})"

    @property
    def is_exact(self) -> bool:
        """Whether there is nothing to tell apart, as on a simulated clock."""
        seconds = self.samples.seconds or (0.0,)
        apart_s = max(seconds) - min(seconds)
        # On a model's clock times differ in what rounding leaves.
        return apart_s <= (_DUST * max(seconds) if self.setting.label else 0.0)

    @property
    def text(self) -> Text:
        """Writes the time of a call; the floor is shared by the calls of a sample."""
        floor_s, calls = self.setting.floor_s, max(self.samples.calls, 1)
        return partial(measured, floor_s=None if floor_s is None else floor_s / calls)

    def drawing(self) -> Any:
        """The samples in a picture, the figures that matter, and what to doubt."""
        from gpumagic.drawing import Drawing, one_screen

        return Drawing(self.headline, one_screen(_parts(self)), self.setting.label)


def sample_facts(
    mode: Mode, calls: int, setting: Setting
) -> Iterator[tuple[str, str | None]]:
    """What a sample is, and where it was taken."""
    yield "one sample", _WAITS[mode if calls > 1 else Mode.LATENCY]
    if setting.floor_s is not None:
        floor = f"measured as {floor_text(setting.floor_s)}; nothing is subtracted"
        yield "an empty cell", floor
    yield from where_measured(setting).items()


def _parts(report: RepeatedReport) -> Iterator[Any]:
    from gpumagic.drawing import Grid, Histogram, Paragraph, how_measured

    samples, text = report.samples, report.text
    drawn = len(samples.seconds) >= _DRAWN and not report.is_exact
    if drawn:
        yield Histogram("Samples by size", samples.seconds, text)
    if figures := tuple(_figures(report)):
        yield Grid("One call", figures)
    # Where all samples are one figure, more of them would be the same one.
    told = [
        flag
        for flag in report.flags
        if not (report.is_exact and flag.kind is FlagKind.OUT_OF_TIME)
    ]
    yield from notes(told, report.setting)
    runs = count_text(samples.runs, "time")
    warm = f"{samples.warmup_calls:,} in {seconds_text(samples.warmup_s)}"
    yield how_measured(
        Paragraph(
            f"The code ran {runs} altogether, and has changed as often what it changes."
        ),
        Grid(
            "",
            (
                ("samples", f"{len(samples.seconds):,} of {samples.calls:,} calls"),
                ("calls to warm up", warm),
                *sample_facts(samples.mode, samples.calls, report.setting),
            ),
        ),
    )


def _figures(report: RepeatedReport) -> Iterator[tuple[str, str]]:
    samples, text = report.samples, report.text
    if not samples.seconds:
        return
    if not report.is_exact:
        low, high = samples.quartiles
        yield "fastest", text(min(samples.seconds))
        yield "middle half", f"{text(low)} to {text(high)}"
    if samples.first_s is not None:
        first = measured(samples.first_s, report.setting.floor_s)
        ratio = samples.first_s / samples.median_s if samples.median_s else 1.0
        more = f": {times_text(ratio)} the median" if ratio > 1 else ""
        yield "the very first call", f"{first}, before any warming up{more}"


def _interval(samples: Samples, text: Text) -> str:
    """From where to where the true median lies, or how near the one found is."""
    interval = samples.interval
    if interval is None:
        return "too few samples for an interval"
    low, high = text(interval.low), text(interval.high)
    if low != high:
        return f"{low} to {high}"
    away = max(interval.high - samples.median_s, samples.median_s - interval.low)
    return f"within {share_text(away / samples.median_s)} of it"
