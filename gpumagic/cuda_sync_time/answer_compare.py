"""Is one code faster than the other? They ran in turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpumagic.cuda_sync_time.answer_repeat import sample_facts
from gpumagic.cuda_sync_time.findings import measured, notes, ratio_text
from gpumagic.report import robust
from gpumagic.report.record import Report
from gpumagic.report.robust import Verdict, inverse
from gpumagic.report.units import count_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumagic.cuda_sync_time.records import Flag, Mode, Setting
    from gpumagic.report.places import Code
    from gpumagic.report.robust import Comparison


@dataclass(frozen=True)
class ComparisonReport(Report):
    """Two codes, measured in turn."""

    base: Code
    code: Code
    setting: Setting
    mode: Mode
    calls: int
    runs: int
    result: Comparison
    flags: tuple[Flag, ...] = ()

    @property
    def headline(self) -> str:
        """The verdict on the newer code, with its interval."""
        new, base = self._names
        result = self.result
        match result.verdict:
            case Verdict.FASTER:
                speed = self._ratio(inverse(result.ratio))
                return f"{new} is {speed} times as fast as {base}{self._between()}"
            case Verdict.SLOWER:
                time = self._ratio(result.ratio)
                return f"{new} takes {time} times as long as {base}{self._between()}"
            case Verdict.SAME:
                return f"{new} and {base} take the same time, within 1 %"
        said = f"cannot tell whether {new} or {base} is faster"
        if not result.more_pairs:
            return said
        return f"{said}: about {count_text(result.more_pairs, 'more pair')} might"

    def drawing(self) -> Any:
        """Both times, their ratio with its interval, and what to doubt."""
        from gpumagic.drawing import Drawing, one_screen

        return Drawing(self.headline, one_screen(_parts(self)), self.setting.label)

    @property
    def _names(self) -> tuple[str, str]:
        base, new = self.base.name or "the base", self.code.name or "this code"
        return (new, base) if new != base else (f"the newer {new}", f"the older {base}")

    def _ratio(self, ratio: float | None) -> str:
        interval = self.result.interval
        return ratio_text(ratio, interval.high - interval.low if interval else 0.0)

    def _between(self) -> str:
        """The interval, in the words of the verdict; nothing where it has no width."""
        interval = self.result.interval
        if not interval or interval.low == interval.high:
            return ""
        low, high = interval.low, interval.high
        if self.result.verdict is Verdict.FASTER:
            low, high = inverse(high) or 0.0, inverse(low) or 0.0
        return f" ({self._ratio(low)} to {self._ratio(high)})"


def _parts(report: ComparisonReport) -> Iterator[Any]:
    from gpumagic.drawing import Grid, Note, Paragraph, how_measured

    new, base = report._names  # noqa: SLF001 -- of the same file
    result = report.result
    ratio = report._ratio  # noqa: SLF001
    each_s = report.setting.floor_s / report.calls
    times = [robust.median(seconds) for seconds in zip(*result.pairs, strict=True)]
    names = f"{base}, median", f"{new}, median"
    shown = [(name, measured(time, each_s)) for name, time in zip(names, times)]  # noqa: B905 -- no pairs, no times
    shown.reverse()
    if result.interval:
        low, high, _ = result.interval
        text = f"{ratio(result.ratio)} [{ratio(low)} to {ratio(high)}]"
        shown.append((f"{new} over {base}", text))
    yield Grid("One call", tuple(shown))
    if result.verdict is Verdict.CANNOT_TELL:
        text = "the interval is too wide for an answer"
        yield Note("note", text, "--repeat 5s, or --repeat 100, narrows it")
    yield from notes(report.flags, report.setting)
    calls = f"{count_text(report.calls, 'call')} of either in each"
    yield how_measured(
        Paragraph(
            "Both run in turn, by chance in one order or the other. The interval holds "
            "the true ratio with 95 % confidence. Faster or slower is said where it "
            "leaves out 1; a difference of up to 1 % counts as the same."
        ),
        Grid(
            "",
            (
                ("pairs, in turn", f"{len(result.pairs):,}, with {calls}"),
                ("runs altogether", f"{report.runs:,}"),
                *sample_facts(report.mode, report.calls, report.setting),
            ),
        ),
    )
