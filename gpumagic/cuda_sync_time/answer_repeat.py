"""How long does a call take, and how sure is that? It ran many times."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from gpumagic.cuda_sync_time.findings import floor_text, measured, notes, where_measured
from gpumagic.cuda_sync_time.records import FlagKind, Mode, titled
from gpumagic.report.record import Report
from gpumagic.report.units import count_text, seconds_text, share_text, times_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.cuda_sync_time.records import Flag, Samples, Setting
    from gpumagic.report.places import Code
    from gpumagic.report.robust import Interval

    Text = Callable[[float], str]

_DRAWN = 4  # samples; fewer are told one by one
_WAITS = {
    Mode.LATENCY: "each call is waited for (latency)",
    Mode.THROUGHPUT: "many calls, then one wait (throughput)",
}
_TICK_S = 1e-9  # what the clocks count in
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
        samples = self.samples
        said = titled(self.code.name, f"{self.text(samples.median_s)} a call")
        if self.is_exact:
            return f"{said}, the same in each run"
        if interval := samples.interval:
            return f"{said} (median; 95 % interval: {self._ends(interval)})"
        return f"{said}, the median of {count_text(len(samples.seconds), 'sample')}"

    def _ends(self, interval: Interval) -> str:
        """From where to where the true median lies, or how near the one found is."""
        middle_s, (low, high) = self.samples.median_s, map(self.text, interval[:2])
        if low != high:
            return f"{low} to {high}"
        away_s = max(interval.high - middle_s, middle_s - interval.low)
        return f"within {share_text(away_s / middle_s)} of it"

    @property
    def is_exact(self) -> bool:
        """Whether there is nothing to tell apart, as on a simulated clock."""
        seconds = self.samples.seconds
        # On a model's clock times differ in what rounding leaves.
        dust = _DUST * bool(self.setting.label)
        return len(seconds) > 1 and max(seconds) - min(seconds) <= dust * max(seconds)

    @property
    def text(self) -> Text:
        """Writes the time of a call; the floor is shared by the calls of a sample."""
        return partial(measured, floor_s=self.setting.floor_s / self.samples.calls)

    def drawing(self) -> Any:
        """The samples in a picture, the figures that matter, and what to doubt."""
        from gpumagic.drawing import Drawing, one_screen

        return Drawing(self.headline, one_screen(_parts(self)), self.setting.label)


def sample_facts(
    mode: Mode, calls: int, setting: Setting
) -> Iterator[tuple[str, str | None]]:
    """What a sample is, and where it was taken."""
    yield "one sample", _WAITS[mode if calls > 1 else Mode.LATENCY]
    floor = f"measured as {floor_text(setting.floor_s)}; nothing is subtracted"
    yield "an empty cell", floor
    yield from where_measured(setting).items()


def _parts(report: RepeatedReport) -> Iterator[Any]:
    from gpumagic.drawing import Grid, Histogram, Paragraph, how_measured

    samples, text = report.samples, report.text
    drawn = len(samples.seconds) >= _DRAWN and not report.is_exact
    if drawn:
        yield Histogram("Samples by size", samples.seconds, text)
    yield Grid("One call", tuple(_figures(report)))
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
    if not report.is_exact and len(samples.seconds) > 1:
        low, high = samples.quartiles
        yield "fastest", text(min(samples.seconds))
        yield "middle half", f"{text(low)} to {text(high)}"
    first = measured(samples.first_s, report.setting.floor_s)
    times = times_text(samples.first_s / max(samples.median_s, _TICK_S))
    yield "the very first call", f"{first}, before any warming up: {times} the median"
